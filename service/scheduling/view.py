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
    project: str = "default"


@dataclass(frozen=True, kw_only=True)
class Waiting(JobView):
    """A queued job."""

    queued_at: datetime
    queue_timeout: timedelta | None = None
    kept_rank: datetime | None = None
    """The place that it had before: it was paused for a job that it had overtaken."""
    has_place: bool = True
    """False: the view leaves out jobs before it."""

    @property
    def ranked_at(self) -> datetime:
        """The order of the queue, earliest first: all jobs age alike, so it is settled when a job is queued."""
        return self.kept_rank or ranked_at(self.priority, self.queued_at)


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
    is_backfilled: bool = False
    """It overtook others that did not fit: it holds its slots until the first of these can start with them."""
    ranked_at: datetime | None = None
    """Its place in the queue when it was there."""

    @property
    def occupied(self) -> int:
        """Granted slots that the job does not use yet are its own: its workers are on their way."""
        return max(self.held, self.granted + self.granted_standby)


@dataclass(frozen=True)
class View:
    """All that is decided from."""

    clusters: tuple[ClusterView, ...]
    placed: tuple[Placed, ...]
    waiting: tuple[Waiting, ...]
    max_slots: Mapping[str, int] = field(default_factory=dict)
    """Of projects that have a quota: slots that their jobs may hold at the same time, in all clusters together."""
    is_settled: bool = True
    """The clock has not jumped lately. Otherwise nobody has waited too long by it: that cannot be taken back."""


@dataclass(frozen=True)
class Start:
    """Grant slots to a queued job; it gets a controller."""

    job_id: str
    cluster_id: str
    workers: int
    standby: int
    because: str
    is_backfilled: bool = False
    """It overtakes the first of the queue, and is paused as soon as that can start."""


@dataclass(frozen=True)
class Wait:
    """Stay queued."""

    job_id: str
    position: int | None
    """In the queue, 1 for the first; None: jobs that were not looked at may stand before it."""
    because: str
    is_held_by_quota: bool = False
    """Nothing but its project's quota stands in its way: it holds back only jobs of its own project."""


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
    is_for_foreign: bool = False
    """That job lies in another project: who sees this one is not told which it is."""


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
    return max(float(job.priority), (now - job.ranked_at) / AGEING)
