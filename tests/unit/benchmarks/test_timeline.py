from __future__ import annotations

import pytest

from benchmarks.timeline import (
    Event,
    Row,
    beyond_former_s,
    downtime_s,
    recovery_s,
    redone_steps,
    requested_s,
    steady_s,
    uncounted,
    warming_ratio,
)


def run(*parts: tuple[str, int, float, float, int], step: int = 0) -> list[Row]:
    """Rows of (generation, workers, time of the first commit, time of a step, steps), one part after the other."""
    rows: list[Row] = []
    for generation, workers, first, step_s, steps in parts:
        begin = rows[-1].step if rows else step
        rows += [Row(begin + n + 1, first + n * step_s, workers, generation) for n in range(steps)]
    return rows


def test_downtime_is_the_gap_less_a_step_as_it_is_afterwards() -> None:
    rows = run(("1", 1, 0.0, 0.3, 11), ("2", 2, 4.0, 0.2, 20))
    up = Event("up", at=0.5, workers=2)
    assert downtime_s(rows, up) == pytest.approx(4.0 - 3.0 - 0.2)
    assert requested_s(rows, up) == pytest.approx(3.5)


def test_a_step_of_those_who_were_there_is_no_standstill() -> None:
    rows = run(("1", 1, 0.0, 0.3, 11), ("2", 2, 3.35, 0.2, 20))
    up = Event("up", at=2.9, workers=2)
    assert downtime_s(rows, up) == pytest.approx(0.15)
    assert beyond_former_s(rows, up) == pytest.approx(0.05)
    assert beyond_former_s(rows, Event("up", at=0.2, workers=2)) is None
    assert beyond_former_s(rows[:11], up) is None


def test_gaps_of_workers_that_join_one_by_one_are_each_held_against_the_step_before_the_request() -> None:
    rows = run(("1", 2, 0.0, 0.1, 11), ("2", 3, 2.0, 0.2, 11), ("3", 4, 5.0, 0.1, 20))
    assert beyond_former_s(rows, Event("up", at=0.95, workers=4)) == pytest.approx(0.9 + 0.9)


def test_workers_that_join_one_by_one_stop_the_training_several_times() -> None:
    rows = run(("1", 2, 0.0, 0.1, 11), ("2", 3, 2.0, 0.1, 11), ("3", 4, 5.0, 0.1, 20))
    assert downtime_s(rows, Event("up", at=0.0, workers=4)) == pytest.approx(0.9 + 1.9)


def test_what_comes_after_the_size_is_reached_or_after_the_next_event_does_not_count() -> None:
    rows = run(("1", 1, 0.0, 0.1, 11), ("2", 2, 2.0, 0.1, 11), ("3", 2, 9.0, 0.1, 20))
    assert downtime_s(rows, Event("up", at=0.0, workers=2)) == pytest.approx(0.9)
    assert downtime_s(rows, Event("up", at=0.0, workers=2, until=1.5)) is None
    assert requested_s(rows, Event("up", at=0.0, workers=3)) is None


def test_a_recovery_counts_until_anybody_trains() -> None:
    rows = run(("1", 4, 0.0, 0.1, 11), ("2", 3, 1.5, 0.1, 11), ("3", 4, 9.0, 0.1, 11))
    kill = Event("kill", at=1.0, workers=4)
    assert recovery_s(rows, kill) == pytest.approx(0.4)
    assert recovery_s(rows[:11], kill) is None


def test_a_pause_is_never_negative_and_counts_in_full_where_nothing_came_after() -> None:
    rows = run(("1", 1, 0.0, 0.1, 5), ("2", 2, 0.5, 0.3, 12))
    assert downtime_s(rows, Event("up", at=0.0, workers=2)) == 0.0
    assert downtime_s(rows[:6], Event("up", at=0.0, workers=2)) == pytest.approx(0.1)


def test_the_step_of_the_others_while_one_warms_up_is_told_against_that_before() -> None:
    rows = run(("1", 1, 0.0, 0.2, 11), ("1", 1, 2.25, 0.25, 8), ("2", 2, 9.0, 0.1, 12))
    assert warming_ratio(rows, Event("up", at=2.1, workers=2)) == pytest.approx(1.25)
    assert warming_ratio(rows, Event("up", at=3.9, workers=2)) is None
    assert warming_ratio(rows[:19], Event("up", at=2.1, workers=2)) is None


def test_steps_that_were_committed_again_are_counted() -> None:
    before = [Row(step, float(step), 4, "1") for step in range(1, 18)]
    again = [Row(step, 20.0 + step, 4, "2") for step in range(11, 40)]
    kill = Event("kill", at=17.5, workers=4)
    assert redone_steps([*before, *again], kill) == 7
    assert redone_steps(before, kill) == 0


def test_a_steady_step_is_a_median_without_the_first_steps() -> None:
    rows = run(("1", 2, 0.0, 5.0, 6), ("1", 2, 25.2, 0.2, 9))
    assert steady_s(rows) == pytest.approx(0.2)


def test_samples_are_lost_or_repeated_by_how_often_the_weights_saw_them() -> None:
    assert uncounted([2, 2, 2, 2], steps=4, batch=2) == (0, 0)
    assert uncounted([1, 3, 2, 0], steps=4, batch=2) == (3, 1)
    with pytest.raises(ValueError, match="no whole epochs"):
        uncounted([1, 1, 1], steps=4, batch=2)
