from __future__ import annotations

import pytest

from rubato.errors import SpecError
from rubato.wire.spec import parse_spec

SMALLEST = {"name": "a", "entrypoint": "train.py"}


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_process_can_be_given_in_its_environment_is_refused(value: str) -> None:
    with pytest.raises(SpecError, match=r"env.A: holds a NUL or half a character"):
        parse_spec({**SMALLEST, "env": {"A": value, "B": "b"}})


@pytest.mark.parametrize("value", ["", "naïve", "caf\udce9"])
def test_what_a_process_can_be_given_is_taken(value: str) -> None:
    assert parse_spec({**SMALLEST, "env": {"A": value}}).env == {"A": value}
