"""Which links are measured, for how long, and how it is told; nothing is measured here."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from benchmarks import strategy_steps
from benchmarks.kept import Kept
from benchmarks.strategies import PROFILE, STRATEGIES, Emulated
from benchmarks.strategy_steps import LEAST, LOCAL, LONG_S, STEPS, links_of, parser, steps_of, tables
from rubato.planner.options import name_of


def test_all_nine_links_are_measured_unless_others_are_named() -> None:
    grid = product((10, 50, 100), (0, 2, 5))
    assert sorted((one.mbit, one.latency_ms) for one in links_of(parser().parse_args([]))) == sorted(grid)
    few = parser().parse_args(["--mbit", "50", "--latency-ms", "0,5"])
    assert links_of(few) == [Emulated(50, 0), Emulated(50, 5)]


@pytest.mark.parametrize(("step_s", "steps"), [(0.01, STEPS), (1.0, 20), (60.0, LEAST)])
def test_of_long_steps_there_are_fewer(step_s: float, steps: int) -> None:
    assert steps_of(step_s) == steps
    assert steps * step_s <= max(LONG_S, LEAST * step_s)


def test_each_latency_has_a_table_and_the_ratio_is_over_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever trains here takes one second a step, whatever the link; one is measured already."""
    trained: list[tuple[dict[str, Any], int]] = []

    def train(net: object, workers: int, fields: dict[str, Any], steps: int) -> float:
        trained.append((fields, steps))
        return 1.0

    monkeypatch.setattr(strategy_steps, "train", train)
    monkeypatch.setattr(strategy_steps, "emulate", lambda workers, link: nullcontext("a network"))
    links = [Emulated(mbit, latency) for latency in (0, 5) for mbit in (10, 100)]
    kept = Kept[float](tmp_path / "kept.json", {})
    kept.put("10 Mb/s, 0 ms", "auto", 2.5)
    told = tables(PROFILE, 4, links, kept)
    assert told.count("| strategy | 10 Mb/s: measured, predicted | 100 Mb/s: measured, predicted |") == 2
    names = [name_of(one) for one in (*STRATEGIES, *LOCAL)]
    assert all(told.count(f"| `{name}` | ") == 2 for name in names)
    assert "Latency 5 ms one way:" in told
    assert "| `auto` | 2500, " in told
    assert len(trained) == 4 * len(names) - 1
    assert min(steps for _, steps in trained) < STEPS
    assert told.endswith(" at most.")
    again = tables(PROFILE, 4, links, Kept(tmp_path / "kept.json", {}))
    assert (again, len(trained)) == (told, 4 * len(names) - 1)
