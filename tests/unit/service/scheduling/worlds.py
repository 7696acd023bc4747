"""Small worlds for single rounds: clusters of CPU slots, queued jobs, jobs that hold slots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from service.scheduling.capacity import ClusterView, NodeView, Shape
from service.scheduling.decide import decide
from service.scheduling.view import Decision, Placed, View, Waiting

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
CPU = Shape(cpu=1, gpu=0)


def cluster(*cpus: float, gpus: float = 0, name: str = "default", **more: Any) -> ClusterView:
    return ClusterView(name, tuple(NodeView(f"{name}-{index}", cpu, gpus, **more) for index, cpu in enumerate(cpus)))


def waiting(name: str, minimum: int = 1, wish: int | None = None, *, age: float = 0, **more: Any) -> Waiting:
    known = {"job_id": f"job_{name}", "name": name, "shape": CPU, "min_workers": minimum, "wish": wish or minimum}
    return Waiting(**{"max_workers": wish or minimum, **known, **more}, queued_at=NOW - timedelta(seconds=age))


def placed(name: str, granted: int, minimum: int = 1, wish: int | None = None, **more: Any) -> Placed:
    """A job that was placed an hour ago, and has had its grant since."""
    since = NOW - timedelta(hours=1)
    known = {"job_id": f"job_{name}", "name": name, "shape": CPU, "min_workers": minimum, "cluster_id": "default"}
    usual = {"wish": granted if wish is None else wish, "held": granted, "placed_at": since, "granted_at": since}
    usual["max_workers"] = max(usual["wish"], granted)
    return Placed(**{**usual, **known, "granted": granted, **more})


def elastic(name: str, granted: int, most: int, **more: Any) -> Placed:
    return placed(name, granted, **{"max_workers": most, "autoscale": "capacity", "num_microbatches": 12, **more})


def decided(view: View) -> dict[str, Decision]:
    return {decision.job_id.removeprefix("job_"): decision for decision in decide(view, NOW)}
