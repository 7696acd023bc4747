"""The measured table of docs/faults.md, from what runs recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from invariants import cost_of_restarts, standstill_s

from scripts.fault_table import check_seeds, draw

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def line(fault: str, **more: Any) -> dict[str, Any]:
    usual = {"test": "tests/chaos/test_x.py::test_it[a]", "pauses": [], "redone": [], "step_seconds": 0.1}
    return {"fault": fault, **usual, "microbatches": 12, "lost": 0, **more}


def drawn(*lines: dict[str, Any]) -> str:
    return draw(lines, "a machine").splitlines()[-1]


def test_the_longest_pause_of_each_run_counts() -> None:
    runs = [line("kill", pauses=[0.1, 0.3], redone=[9, 10], lost=1), line("kill", pauses=[0.2])]
    assert drawn(*runs) == "| `test_x.py` | kill | 2 | 250 ms (300 ms) | 10 of 12 | 0 to 1 |"


def test_so_does_how_late_a_step_came_whether_the_membership_changed_or_not() -> None:
    runs = [line("head", standstill=4.0, steps_again=3), line("head", pauses=[0.0], standstill=6.0, steps_again=5)]
    assert drawn(*runs) == "| `test_x.py` | head | 2 | 5.0 s (6.0 s) | 5 steps | 0 |"


def test_a_run_that_noted_nothing_has_no_figure() -> None:
    assert drawn(line("short stop")) == "| `test_x.py` | short stop | 1 | - | - | 0 |"


def test_how_the_pauses_of_churning_runs_are_spread_is_told() -> None:
    runs = [line("churn", test="", pauses=[0.01 * number for number in range(1, 101)]), line("kill", pauses=[9.0])]
    told = draw(runs, "a machine").splitlines()[1]
    assert told == (
        "Of 100 pauses in runs that change without an end: half up to 500 ms, nine of ten up to 900 ms, "
        "99 of a hundred up to 990 ms."
    )


def test_rows_go_by_file_and_fault() -> None:
    found = [line("b"), line("soaked", test=""), line("a"), line("c", test="test_a.py")]
    rows = draw(found, "a machine").splitlines()[4:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| `soak.py`", "soaked"],
        ["| `test_a.py`", "c"],
        ["| `test_x.py`", "a"],
        ["| `test_x.py`", "b"],
    ]


def commits(*seconds: float) -> list[datetime]:
    return [BEGUN + timedelta(seconds=second) for second in seconds]


def test_a_standstill_is_the_longest_gap_after_the_fault_less_what_was_usual() -> None:
    # The gap of five seconds was before; the one of two began before the fault and ended after it.
    assert standstill_s(commits(0, 5, 6, 7, 9, 10), BEGUN + timedelta(seconds=7.5)) == pytest.approx(1.0)
    assert standstill_s(commits(9, 7, 6, 5), BEGUN + timedelta(seconds=7.5)) == pytest.approx(1.0), "in any order"


def test_steps_that_come_faster_than_before_are_no_standstill() -> None:
    assert standstill_s(commits(0, 1, 2, 2.1), BEGUN + timedelta(seconds=2)) == 0.0


def test_a_fault_after_which_no_step_came_has_no_figure() -> None:
    with pytest.raises(AssertionError, match="no step was committed"):
        standstill_s(commits(0, 1), BEGUN + timedelta(seconds=2))


def test_a_seed_that_lacks_a_fault_is_named() -> None:
    whole = [line("kill"), line("kill"), line("stop")]
    check_seeds({"seed-1": whole, "seed-2": whole[::-1]})
    with pytest.raises(SystemExit, match="seed-2 lacks 1 faults, run that seed again"):
        check_seeds({"seed-1": whole, "seed-2": whole[1:]})


def test_what_going_back_to_a_checkpoint_cost() -> None:
    times = [moment.isoformat() for moment in commits(0, 1, 2, 9, 10, 30, 31)]
    told = [
        {"step": step, "generation": generation, "time": time}
        for (step, generation), time in zip(
            [(1, 1), (2, 1), (3, 1), (2, 2), (3, 3), (4, 4), (5, 4)], times, strict=True
        )
    ]
    assert cost_of_restarts(told, {2}) == {"standstill": 7.0, "steps_again": 2}
    assert cost_of_restarts(told, {2, 4}) == {"standstill": 20.0, "steps_again": 2}
    assert cost_of_restarts(told, set()) == {}
