from __future__ import annotations

import pytest

from rubato.wire.settings import is_section, why_empty


@pytest.mark.parametrize("path", ["config", "env", "labels", "workers", "restart.backoff"])
def test_a_section_is_set_by_its_keys(path: str) -> None:
    assert is_section(path)
    assert why_empty(path) == f"{path}= has no value: {path} is a section, its keys are set as {path}.KEY=VALUE"


@pytest.mark.parametrize("path", ["name", "config.lr", "workers.max", "checkpoint.keep_best", "wrokers", "name.x"])
def test_what_may_be_none_or_an_empty_text(path: str) -> None:
    assert not is_section(path)
    assert why_empty(path) == f"{path}= has no value; write {path}=null for none, {path}='\"\"' for an empty text"
