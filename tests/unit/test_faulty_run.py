"""A run is only right if each of its faults hit whom it was to hit."""

from __future__ import annotations

from pathlib import Path

import pytest
from faulty_run import Chaos, unarmed


def test_a_fault_of_several_leaves_a_mark_of_each(tmp_path: Path) -> None:
    chaos = Chaos(tmp_path, "a row")
    one = chaos.fault("forward", "signal", "SIGKILL")
    several = chaos.fault("update", "signal", "SIGKILL", who=[0, 2], each=True)
    assert chaos.marks() == [one, several.with_name("fault1-0"), several.with_name("fault1-2")]


@pytest.mark.parametrize("missing", ["fault0", "fault1-0", "fault1-2"])
def test_one_mark_that_is_missing_fails_the_proof(tmp_path: Path, missing: str) -> None:
    chaos = Chaos(tmp_path, "a row")
    unarmed(chaos.fault("forward", "signal", "SIGKILL"))  # that file is no proof
    chaos.fault("update", "signal", "SIGKILL", who=[0, 2], each=True)
    for mark in chaos.marks():
        if mark.name != missing:
            mark.touch()
    with pytest.raises(AssertionError, match=missing):
        chaos.check_marks()
