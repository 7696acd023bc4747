from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from rubato.engine.coordinator.pauses import PATIENCE_S, SETTLING_STEPS, PauseMeter
from rubato.wire.cluster import MetricRow


def rows(first_step: int, times: list[float], generation: int, workers: int | list[int]) -> list[MetricRow]:
    each = workers if isinstance(workers, list) else [workers] * len(times)
    return [
        MetricRow(step, datetime.fromtimestamp(at, UTC).isoformat(), generation, count, {"step_seconds": 0.001})
        for step, at, count in zip(itertools.count(first_step), times, each, strict=False)
    ]


BEFORE = rows(1, [10.0, 12.0, 14.0], 1, 2)
"""Two seconds a step."""


def meter(times: list[float], world: int, workers: int | list[int], earlier: list[MetricRow] = BEFORE) -> PauseMeter:
    made = PauseMeter(2, world, list(earlier))
    for number, row in enumerate(rows(4, times, 2, workers)):
        made.see(row, now=100.0 + number)
    return made


def test_the_gap_counts_against_the_steps_after_it() -> None:
    leave = meter([19.0, 22.0, 25.0], 1, 1)
    assert leave.paused_s() == pytest.approx(5.0 - 3.0)


def test_the_bridge_of_a_join_counts_against_the_steps_before_and_the_next_against_those_after() -> None:
    join = meter([17.0, 18.5, 19.5, 20.5], 3, [2, 3, 3, 3])
    assert join.paused_s() == pytest.approx((3.0 - 2.0) + (1.5 - 1.0))


def test_a_pause_shorter_than_a_step_is_none() -> None:
    assert meter([16.0, 17.0, 18.0], 3, [2, 3, 3]).paused_s() == pytest.approx(0.0)


@pytest.mark.parametrize(("times", "workers"), [([19.0], 2), ([19.0, 21.0], [2, 3])])
def test_however_long_steps_are_a_step_of_the_new_membership_is_waited_for(
    times: list[float], workers: int | list[int]
) -> None:
    """A figure from the one step itself would be nothing by construction."""
    world = 2 if workers == 2 else 3
    made = meter(times, world, workers)
    assert not made.is_ripe(now=100.0 + 10 * PATIENCE_S)
    made.see(rows(4 + len(times), [times[-1] + 2.0], 2, world)[0], now=140.0)
    assert made.is_ripe(now=140.0)
    assert made.paused_s() == pytest.approx(3.0)


def test_with_short_steps_ten_are_waited_for() -> None:
    made = meter([15.0 + 0.01 * number for number in range(SETTLING_STEPS)], 2, 2)
    assert not made.is_ripe(now=100.0)
    assert made.is_ripe(now=100.0 + PATIENCE_S)
    made.see(rows(20, [16.0], 2, 2)[0], now=100.0)
    assert made.is_ripe(now=100.0)


def test_a_generation_that_ended_at_once_is_measured_by_the_steps_before() -> None:
    assert meter([19.0], 3, 2).paused_s() == pytest.approx(3.0)
    assert meter([19.0], 1, 1).paused_s() == pytest.approx(3.0)


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert meter([19.0, 21.0], 2, 2, earlier=[]).paused_s() is None
    assert meter([], 2, 2).paused_s() is None
    assert meter([19.0], 2, 2, earlier=BEFORE[-1:]).paused_s() is None


def test_a_late_row_of_the_generation_before_is_where_the_gap_begins() -> None:
    made = PauseMeter(2, 1, BEFORE[:2])
    made.see(BEFORE[2], now=100.0)
    for row in rows(4, [19.0, 22.0], 2, 1):
        made.see(row, now=100.0)
    assert made.paused_s() == pytest.approx(5.0 - 3.0)
