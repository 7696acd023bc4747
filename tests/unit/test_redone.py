"""The checker of "at most one step is computed again" sees when it is not so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from redone import Told, check_told, redone_by_step


def formed(step: int, cause: str, again: int) -> tuple[int, dict[str, Any]]:
    return step, {"cause": cause, "redone_microbatches": again}


GOOD = Told([formed(1, "start", 0), formed(4, "recovery", 5), formed(6, "replace", 0)], [1, 2, 3, 4, 5, 6], 12, 1, 0)


def test_a_loss_that_costs_a_part_of_one_step_is_right() -> None:
    check_told(GOOD)
    assert redone_by_step(GOOD) == {4: 5}


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, formed=[*GOOD.formed, formed(7, "recovery", 1)]),
        replace(GOOD, formed=[formed(4, "recovery", 13)]),
        replace(GOOD, formed=[formed(4, "recovery", 12), formed(4, "recovery", 1)]),
        replace(GOOD, formed=[formed(4, "scale_down", 1)]),
        replace(GOOD, losses=0),
        replace(GOOD, steps=[1, 2, 3, 3, 4]),
    ],
    ids=["two steps", "more than a step", "a step and more", "a planned change", "no loss", "a step back"],
)
def test_what_costs_more_is_seen(bad: Told) -> None:
    with pytest.raises(AssertionError):
        check_told(bad)
