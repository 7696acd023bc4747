"""Who starts next: a pure decision. First in, first out within a priority; all of a job's minimum or nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

# Slots are floats (half a CPU is allowed); sums of tenths must not lose a worker to rounding.
_EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """What one worker takes of a node."""

    cpu: float
    gpu: float


@dataclass(frozen=True)
class NodeView:
    """What a node has in all."""

    node_id: str
    cpu: float
    gpu: float


@dataclass(frozen=True)
class ClusterView:
    """A cluster that can take jobs: it is online, and these nodes are not draining."""

    cluster_id: str
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True)
class Holding:
    """What a job with a controller takes."""

    cluster_id: str
    name: str
    shape: Shape
    workers: int
    placed: tuple[tuple[str, int], ...] = ()
    """Workers by node, as far as they are known; the rest is placed where it fits first."""


@dataclass(frozen=True)
class Waiting:
    """A queued job."""

    job_id: str
    name: str
    shape: Shape
    min_workers: int
    desired_workers: int
    priority: int
    queued_at: datetime
    queue_timeout: timedelta | None = None
    spare_workers: int = 0
    """Kept warm besides the desired ones, where slots are left."""


@dataclass(frozen=True)
class View:
    """All that is decided from."""

    clusters: tuple[ClusterView, ...]
    holdings: tuple[Holding, ...]
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True)
class Start:
    """Grant slots; the job gets a controller."""

    job_id: str
    cluster_id: str
    workers: int
    """Slots, those of spare workers among them."""
    because: str


@dataclass(frozen=True)
class Wait:
    """Stay queued."""

    job_id: str
    position: int
    because: str


@dataclass(frozen=True)
class Fail:
    """Give up waiting."""

    job_id: str
    reason: Literal["queue_timeout", "unschedulable"]
    because: str


Decision = Start | Wait | Fail


@dataclass
class _Free:
    """What is left of a cluster while decisions are made."""

    view: ClusterView
    cpu: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cpu = {node.node_id: node.cpu for node in self.view.nodes}
        self.gpu = {node.node_id: node.gpu for node in self.view.nodes}

    def fits_on(self, node_id: str, shape: Shape) -> int:
        """Workers that still fit on one node."""
        return _count(self.cpu[node_id], self.gpu[node_id], shape)

    def fits(self, shape: Shape) -> int:
        """Workers that still fit."""
        return sum(self.fits_on(node_id, shape) for node_id in self.cpu)

    def take(self, node_id: str, shape: Shape, workers: int) -> None:
        """Use up part of a node, below zero where reality is fuller than planned."""
        if node_id in self.cpu:
            self.cpu[node_id] -= workers * shape.cpu
            self.gpu[node_id] -= workers * shape.gpu

    def take_anywhere(self, shape: Shape, workers: int) -> None:
        """Use up whatever fits first."""
        for node_id in self.cpu:
            count = min(workers, max(0, self.fits_on(node_id, shape)))
            self.take(node_id, shape, count)
            workers -= count
        if workers and self.cpu:
            self.take(next(iter(self.cpu)), shape, workers)


def decide(view: View, now: datetime) -> list[Decision]:
    """One decision for every waiting job, in queue order.

    A job that does not fit holds back all behind it, so that no stream of small jobs starves a large one; a job that
    could not fit into the empty cluster holds back nobody.
    """
    free = {cluster.cluster_id: _Free(cluster) for cluster in view.clusters}
    for holding in view.holdings:
        if holding.cluster_id in free:
            _subtract(free[holding.cluster_id], holding)
    decisions: list[Decision] = []
    blocker: Waiting | None = None
    position = 0
    for job in sorted(view.waiting, key=lambda job: (-job.priority, job.queued_at, job.job_id)):
        largest = max((largest_fit(cluster, job.shape) for cluster in view.clusters), default=0)
        can_ever = largest >= job.min_workers
        roomiest = max(free.values(), key=lambda left: left.fits(job.shape), default=None)
        room = max(0, roomiest.fits(job.shape)) if roomiest is not None else 0
        if can_ever and blocker is None and roomiest is not None and room >= job.min_workers:
            workers = min(job.desired_workers + job.spare_workers, room)
            roomiest.take_anywhere(job.shape, workers)
            decisions.append(Start(job.job_id, roomiest.view.cluster_id, workers, _starting(job, workers, room)))
            continue
        if job.queue_timeout is not None and now - job.queued_at >= job.queue_timeout:
            decisions.append(_timed_out(job, view, largest, room))
            continue
        position += 1
        decisions.append(Wait(job.job_id, position, _waiting(job, view, largest, room, blocker)))
        if can_ever and blocker is None:
            blocker = job
    return decisions


def largest_fit(cluster: ClusterView, shape: Shape) -> int:
    """Workers that the empty cluster would take."""
    return _Free(cluster).fits(shape)


def _subtract(free: _Free, holding: Holding) -> None:
    unplaced = holding.workers
    for node_id, count in holding.placed:
        free.take(node_id, holding.shape, count)
        unplaced -= count
    if unplaced > 0:
        free.take_anywhere(holding.shape, unplaced)


def _starting(job: Waiting, workers: int, room: int) -> str:
    if workers < job.desired_workers:
        return f"starts with {workers} of {job.desired_workers} workers, free {room}; the rest join when slots are free"
    return f"needed at least {job.min_workers} {_slots(job.min_workers)}, free {room}"


def _timed_out(job: Waiting, view: View, largest: int, room: int) -> Fail:
    assert job.queue_timeout is not None
    waited = f"waited {job.queue_timeout.total_seconds():g} s (limits.queue_timeout)"
    if view.clusters and largest < job.min_workers:
        return Fail(job.job_id, "unschedulable", f"{waited}: {_never(job, largest)}")
    return Fail(job.job_id, "queue_timeout", f"{waited}: {_waiting(job, view, largest, room, None)}")


def _waiting(job: Waiting, view: View, largest: int, room: int, blocker: Waiting | None) -> str:
    if not view.clusters:
        return "no cluster is online; `rubato up` starts one on this machine"
    if largest < job.min_workers:
        return _never(job, largest)
    if blocker is not None:
        return f"waits behind {blocker.name}, which needs {blocker.min_workers} {_slots(blocker.min_workers)}"
    holders = sorted(holding.name for holding in view.holdings if holding.workers > 0)
    shown = ", ".join(holders[:3]) + (f" and {len(holders) - 3} more" if len(holders) > 3 else "")
    held = f", held by {shown}" if shown else ""
    return f"needs {job.min_workers} {_slots(job.min_workers)}, free {room}{held}"


def _never(job: Waiting, largest: int) -> str:
    return (
        f"needs {job.min_workers} {_slots(job.min_workers)} of {_describe(job.shape)}, and the whole cluster has "
        f"{largest}; lower workers.min or add nodes"
    )


def _describe(shape: Shape) -> str:
    parts = [f"{shape.cpu:g} CPU"] if shape.cpu else []
    parts += [f"{shape.gpu:g} GPU"] if shape.gpu else []
    return " and ".join(parts)


def _slots(count: int) -> str:
    return "slot" if count == 1 else "slots"


def _count(cpu: float, gpu: float, shape: Shape) -> int:
    counts = [int((have + _EPSILON) // need) for have, need in ((cpu, shape.cpu), (gpu, shape.gpu)) if need > 0]
    return max(0, min(counts, default=0))
