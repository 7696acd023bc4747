from __future__ import annotations

from typing import get_args

import pytest

from rubato.errors import SpecError
from rubato.wire.spec import StatusName, parse_spec
from rubato.wire.status import Status

SMALLEST = {"name": "a", "entrypoint": "train.py"}


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_process_can_be_given_in_its_environment_is_refused(value: str) -> None:
    with pytest.raises(SpecError, match=r"env.A: holds a NUL or half a character"):
        parse_spec({**SMALLEST, "env": {"A": value, "B": "b"}})


@pytest.mark.parametrize("value", ["", "naïve", "caf\udce9"])
def test_what_a_process_can_be_given_is_taken(value: str) -> None:
    assert parse_spec({**SMALLEST, "env": {"A": value}}).env == {"A": value}


def test_a_job_may_ask_to_be_told_of_every_status_there_is() -> None:
    assert set(get_args(StatusName)) == set(Status)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"on": ["done"], "webhook": "team"},
            r"notifications\[0\].on\[0\]: must be one of .*'succeeded'.*, got 'done'",
        ),
        ({"on": [], "webhook": "team"}, r"notifications\[0\].on: name at least one status"),
        ({"on": "failed", "webhook": "team"}, r"notifications\[0\].on: expected a list"),
    ],
)
def test_what_is_wrong_with_a_notification_is_said(asked: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_spec({**SMALLEST, "notifications": [asked]})


def test_off_is_not_false() -> None:
    """YAML 1.1 reads `autoscale: off` as a truth value."""
    assert parse_spec({**SMALLEST, "workers": {"autoscale": False}}).workers.autoscale == "off"
    with pytest.raises(SpecError, match="autoscale: must be one of"):
        parse_spec({**SMALLEST, "workers": {"autoscale": True}})
