"""What the clock alone brings about: silent controllers, forced stops, and limits that are over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import Status
from service.attempts import forget_workers
from service.events import append_event
from service.models import Attempt, Cluster, Job
from service.notify import desired_topic, notify
from service.states import WITH_CONTROLLER, change_status, settle_status

AT_ONCE = 100
"""So many jobs lapse in one transaction, of each kind: when a large cluster is lost, the next rounds go on."""


@dataclass(frozen=True)
class Terms:
    """What time is judged by."""

    now: datetime
    forced_stop_after: timedelta
    """Silence after which nobody is waited for."""
    stranded_after: timedelta
    """Silence of a cluster after which what nobody began there is placed anew; it must count as offline by then, or it
    would get the job again."""
    has_listened: bool
    """For `stranded_after`: agents could speak. What controllers could not tell meanwhile, their leases account for."""
    is_settled: bool
    """The clock has not jumped lately. Otherwise nothing is over by it that cannot be taken back."""

    @property
    def silent_since(self) -> datetime:
        """Who was last heard before is given up."""
        return self.now - self.forced_stop_after

    @property
    def stranded_since(self) -> datetime:
        """A cluster that was last heard before holds no job that nobody began."""
        return self.now - self.stranded_after


async def has_lapses(session: AsyncSession, terms: Terms) -> bool:
    """A look without the writer's turn: an idle service writes nothing."""
    lapses = [_is_silent(terms.now), _is_given_up(terms.silent_since)]
    if terms.has_listened:
        lapses.append(_is_stranded(terms.stranded_since))
    if terms.is_settled:
        lapses.append(_is_overdue(terms.now))
    lapsed = or_(*lapses)
    looked_for = select(Job.id).where(Job.placed_at.is_not(None), lapsed).limit(1)
    return (await session.execute(looked_for)).first() is not None


async def apply_lapses(session: AsyncSession, terms: Terms) -> None:
    """Bring them about."""
    await _note_silent_controllers(session, terms.now)
    await _end_forced(session, terms)
    if terms.has_listened:
        await _queue_stranded(session, terms)
    if terms.is_settled:
        await _stop_overdue(session, terms.now)


def _few(those: ColumnElement[bool]) -> Select[Job]:
    """Some of them, locked in the order of their ids, as everywhere where several rows are."""
    return select(Job).where(those).order_by(Job.id).limit(AT_ONCE).with_for_update()


def _is_silent(now: datetime) -> ColumnElement[bool]:
    return Job.placed_at.is_not(None) & Job.status.in_(("starting", "running")) & (Job.lease_expires_at < now)


def _is_given_up(since: datetime) -> ColumnElement[bool]:
    is_leaving = Job.placed_at.is_not(None) & Job.status.in_(("pausing", "stopping"))
    return is_leaving & Job.desired_force.is_(True) & (Job.lease_expires_at < since)


def _is_stranded(since: datetime) -> ColumnElement[bool]:
    is_unbegun = Job.placed_at.is_not(None) & (Job.status == "starting") & Job.is_attempt_live.is_(False)
    return is_unbegun & Job.cluster_id.in_(select(Cluster.id).where(Cluster.last_seen < since))


def _is_overdue(now: datetime) -> ColumnElement[bool]:
    holds_slots = Job.placed_at.is_not(None) & Job.status.in_(WITH_CONTROLLER)
    return holds_slots & (Job.deadline_at <= now) & (Job.desired_run != "stop")


async def _note_silent_controllers(session: AsyncSession, now: datetime) -> None:
    """A silent controller is not a dead one: the job recovers, and the agent's list still asks for one."""
    for job in await session.scalars(_few(_is_silent(now))):
        await settle_status(session, job, now=now, reason=Reason.CONTROLLER_LOST.value)


async def _end_forced(session: AsyncSession, terms: Terms) -> None:
    """A forced cancel or pause on a silent cluster ends once the workers' dead-man's switch has run out."""
    for job in await session.scalars(_few(_is_given_up(terms.silent_since))):
        await session.execute(
            update(Attempt)
            .where(Attempt.job_id == job.id, Attempt.number == job.attempt)
            .values(ended_at=terms.now, outcome="abandoned")
        )
        await forget_workers(session, job.id)
        job.is_attempt_live = False
        await session.flush()
        is_cancel = job.desired_run == "stop"
        reason = (job.stop_reason or Reason.CANCELLED_BY_USER.value) if is_cancel else None
        what = "cancel" if is_cancel else "pause"
        because = f"the {what} was forced, and the cluster has been silent for longer than its workers live alone"
        await settle_status(session, job, now=terms.now, reason=reason, because=because)


async def _queue_stranded(session: AsyncSession, terms: Terms) -> None:
    """A job that nobody has begun on a cluster that fell silent is placed anew; it keeps its place in the queue."""
    for job in await session.scalars(_few(_is_stranded(terms.stranded_since))):
        because = f"the cluster {job.cluster_id} fell silent before a controller was started there"
        place = job.ranked_at
        await change_status(session, job, Status.QUEUED, because=because, now=terms.now)
        job.ranked_at = place


async def _stop_overdue(session: AsyncSession, now: datetime) -> None:
    """A job that held slots for `limits.max_duration` is stopped, as by a cancel with the grace of its spec."""
    for job in await session.scalars(_few(_is_overdue(now))):
        limit_s = job.spec["limits"]["max_duration"]
        because = f"it held slots for {limit_s:g} s (limits.max_duration)"
        job.desired_run = "stop"
        job.stop_reason = Reason.DEADLINE_EXCEEDED.value
        job.desired_version += 1
        await session.flush()
        message, data = f"The job is stopped: {because}.", {"seconds": limit_s}
        await append_event(session, job, EventKind.DEADLINE_EXCEEDED, message, now=now, data=data)
        await settle_status(session, job, now=now, reason=Reason.DEADLINE_EXCEEDED.value, because=because)
        notify(session, desired_topic(job.id))
