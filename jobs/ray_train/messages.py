"""What Ray Train's processes say to the controller of the job. Plain data that Ray pickles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rubato.wire.cluster import LogStream

EndKind = Literal["finished", "workers_failed", "failed"]


@dataclass(frozen=True)
class GroupStarting:
    """A worker group asks Ray for room; it will go on behind `resume_step`."""

    workers: int
    resume_step: int


@dataclass(frozen=True)
class Member:
    """One worker of a group."""

    rank: int
    pid: int
    node: str
    node_id: str


@dataclass(frozen=True)
class GroupStarted:
    """All workers of a group are there, and the train function begins."""

    members: tuple[Member, ...]


@dataclass(frozen=True)
class CheckpointSeen:
    """A checkpoint that was reported, and is on the storage."""

    checkpoint_id: str
    path: str
    """Below the job's folder of the storage."""
    bytes: int


@dataclass(frozen=True)
class Reported:
    """One `ray.train.report` of all workers."""

    step: int
    at: float
    """Seconds since 1970, where Ray Train's controller runs."""
    values: dict[str, float]
    """The numbers of rank 0's metrics."""
    workers: int
    """Of the group."""
    checkpoint: CheckpointSeen | None = None
    deleted: tuple[str, ...] = ()
    """Ids of checkpoints that Ray Train's retention deleted."""


@dataclass(frozen=True)
class Remembered:
    """What drivers before this one reported, up to the checkpoint that it goes on from: some of it may have been lost
    with the controller that was told."""

    reports: tuple[Reported, ...]


@dataclass(frozen=True)
class WorkerError:
    """Why one worker of a group failed."""

    rank: int
    is_death: bool
    """Its process or node is gone; else its train function raised."""
    error: str
    """In a line."""
    traceback: str = ""


@dataclass(frozen=True)
class WorkersFailed:
    """Workers of the group failed: Ray Train starts the group again, or gives up."""

    errors: tuple[WorkerError, ...]


@dataclass(frozen=True)
class WorkerOutput:
    """Lines that a worker wrote."""

    rank: int
    pid: int
    node_id: str
    lines: tuple[tuple[str, LogStream, str], ...]
    """(time, stream, text)"""


Message = Remembered | GroupStarting | GroupStarted | Reported | WorkersFailed
"""In the order in which it happened."""


@dataclass(frozen=True)
class DriverEnd:
    """The last word of a driver."""

    kind: EndKind
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True)
class DriverPlan:
    """All that a driver needs. It lies in a file that only this user reads, and holds no token."""

    job_id: str
    attempt: int
    run: int
    """Counts the drivers of an attempt."""
    workers: int
    max_failures: int
    avoid_nodes: tuple[str, ...]
    storage: str
    """URI of the job's folder."""
    code: str
    """The unpacked package."""
    address: str
    """Of the Ray cluster."""
    spec: dict[str, Any]
