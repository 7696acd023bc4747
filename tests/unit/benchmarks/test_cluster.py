"""What the benchmark of a cluster makes of what it saw."""

from __future__ import annotations

import pytest

from benchmarks.cluster import FIGURES, cell, longest_pause_s, table
from benchmarks.timeline import SETTLING_STEPS, Row


def test_a_row_a_figure_and_a_column_for_each_number_of_spares() -> None:
    rounds = [
        {0: {"first": 4.0, "up": 0.1}, 1: {"next": 3.0, "up": 0.2}},
        {0: {"first": 6.0, "up": 0.3}, 1: {"next": 3.5, "up": 0.2}},
    ]
    lines = table(rounds)
    assert len(lines) == 2 + len(FIGURES)
    assert {line.count("|") for line in lines} == {5}
    assert lines[2] == "| submit -> first step, first job of the home | 5.00 s (4.00 to 6.00) | - | < 5 s |"
    assert lines[7] == "| 1 -> 2: downtime | 0.20 s (0.10 to 0.30) | 0.20 s (0.20 to 0.20) | < 0.1 s |"


def test_one_round_has_no_range() -> None:
    assert cell([1.234]) == "1.23 s"


def test_the_longest_pause_is_one_after_the_moment_less_a_step() -> None:
    gaps = [1.0] * 5 + [9.0] + [1.0] * 5 + [4.0] + [1.0] * (2 * SETTLING_STEPS)
    times = [sum(gaps[:count]) for count in range(len(gaps) + 1)]
    rows = [Row(step, time, 2, "1") for step, time in enumerate(times)]
    assert longest_pause_s(rows, at=0.0) == pytest.approx(8.0)
    assert longest_pause_s(rows, at=times[7]) == pytest.approx(3.0)
    assert longest_pause_s(rows, at=times[13]) == pytest.approx(0.0), "of the last step it is not known what it took"
