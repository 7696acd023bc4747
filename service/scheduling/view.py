"""What the scheduler decides from, and what it decides: frozen dataclasses, no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from rubato.wire.reasons import Reason
from rubato.wire.spec import Autoscale
from service.scheduling.capacity import ClusterView, Shape

AGEING = timedelta(minutes=1)
"""A queued job gains a point of priority in so much time: none starves, and a hundred minutes outweigh any priority."""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """What a job may have."""

    job_id: str
    name: str
    shape: Shape
    min_workers: int
    max_workers: int
    wish: int
    """Workers that the user wants."""
    standby: int = 0
    """Spare workers that the spec asks for, kept warm where slots are left."""
    priority: int = 50
    is_preemptible: bool = True
    autoscale: Autoscale = "off"
    num_microbatches: int = 64


@dataclass(frozen=True, kw_only=True)
class Waiting(JobView):
    """A queued job."""

    queued_at: datetime
    queue_timeout: timedelta | None = None

    @property
    def ranked_at(self) -> datetime:
        """The order of the queue, earliest first: all jobs age alike, so it is settled when a job is queued."""
        return ranked_at(self.priority, self.queued_at)


@dataclass(frozen=True, kw_only=True)
class Placed(JobView):
    """A job that holds slots of a cluster."""

    cluster_id: str
    granted: int
    """Workers that its controller may have."""
    granted_standby: int = 0
    held: int = 0
    """Slots that its processes take as far as reported: those that leave are still among them."""
    nodes: tuple[str, ...] = ()
    """Where they are, by rank; a slot whose place is not known is taken where it fits first."""
    is_leaving: bool = False
    """It pauses or stops: it gets nothing, and gives all back."""
    placed_at: datetime
    granted_at: datetime
    """When its grant last changed."""
    wished_at: datetime | None = None
    """When the user last asked for another number of workers."""
    pause_s: float | None = None
    """What a change of its membership costs, as measured."""
    rates: Mapping[int, float] = field(default_factory=dict)
    """Samples a second by number of workers, as measured."""


@dataclass(frozen=True)
class View:
    """All that is decided from."""

    clusters: tuple[ClusterView, ...]
    placed: tuple[Placed, ...]
    waiting: tuple[Waiting, ...]


@dataclass(frozen=True)
class Start:
    """Grant slots to a queued job; it gets a controller."""

    job_id: str
    cluster_id: str
    workers: int
    standby: int
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
    reason: Literal[Reason.QUEUE_TIMEOUT, Reason.UNSCHEDULABLE]
    because: str


@dataclass(frozen=True)
class Resize:
    """Grant another number of workers to a job that holds slots."""

    job_id: str
    workers: int
    standby: int
    because: str


@dataclass(frozen=True)
class Preempt:
    """Pause a job with a checkpoint, for a more important one; it comes back to the queue by itself."""

    job_id: str
    by: str
    """Id of the job that needs the slots."""
    because: str


@dataclass(frozen=True)
class Keep:
    """Leave a job with the slots that it has."""

    job_id: str
    because: str


Decision = Start | Wait | Fail | Resize | Preempt | Keep


def ranked_at(priority: int, queued_at: datetime) -> datetime:
    """`queued_at`, moved back by what the priority is worth."""
    return queued_at - priority * AGEING


def rank(job: Waiting, now: datetime) -> float:
    """The priority of a queued job, with its age."""
    return job.priority + max(0.0, (now - job.queued_at) / AGEING)
