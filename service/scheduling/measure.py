"""What a job's own reports say about worker counts: throughput by count, and the price of a change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rubato.wire.cluster import EventReport, MetricRow
from rubato.wire.events import EventKind

WEIGHT = 0.1
"""Of the newest step in the running mean: about the last twenty count."""
MIN_STEPS = 20
"""Steps at a count before it counts as measured: the first ones warm up."""
PAUSE_WEIGHT = 0.5


def fold_rates(rates: Mapping[str, Any], rows: Iterable[MetricRow]) -> dict[str, Any]:
    """The rates with newly committed steps: samples a second as a running mean, by number of workers."""
    folded = {count: dict(entry) for count, entry in rates.items()}
    for row in rows:
        rate = row.values.get("samples_per_second")
        if row.workers < 1 or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
            continue
        entry = folded.setdefault(str(row.workers), {"rate": float(rate), "steps": 0})
        entry["steps"] += 1
        entry["rate"] += max(WEIGHT, 1 / entry["steps"]) * (rate - entry["rate"])
    return folded


def measured_rates(rates: Mapping[str, Any]) -> dict[int, float]:
    """Samples a second by number of workers, of the counts that were trained with for long enough."""
    return {int(count): float(entry["rate"]) for count, entry in rates.items() if entry["steps"] >= MIN_STEPS}


def fold_pauses(pause_s: float | None, events: Iterable[EventReport]) -> float | None:
    """The pause of a change of membership, as a running mean; None while none was measured."""
    for event in events:
        measured = event.data.get("paused_seconds")
        if (
            event.kind != EventKind.GENERATION_FORMED
            or not isinstance(measured, int | float)
            or not 0 <= measured < 1e6
        ):
            continue
        pause_s = float(measured) if pause_s is None else pause_s + PAUSE_WEIGHT * (measured - pause_s)
    return pause_s
