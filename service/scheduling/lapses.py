"""What the clock alone brings about: silent controllers, forced stops, and limits that are over."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from service.events import append_event
from service.models import Attempt, Job
from service.notify import desired_topic, notify
from service.states import WITH_CONTROLLER, settle_status


async def has_lapses(session: AsyncSession, now: datetime, forced_stop_after: timedelta) -> bool:
    """A look without the writer's turn: an idle service writes nothing."""
    lapsed = or_(_is_silent(now), _is_given_up(now - forced_stop_after), _is_overdue(now))
    looked_for = select(Job.id).where(Job.placed_at.is_not(None), lapsed).limit(1)
    return (await session.execute(looked_for)).first() is not None


async def apply_lapses(session: AsyncSession, now: datetime, forced_stop_after: timedelta) -> None:
    """Bring them about."""
    await _note_silent_controllers(session, now)
    await _end_forced_stops(session, now, forced_stop_after)
    await _stop_overdue(session, now)


def _is_silent(now: datetime) -> ColumnElement[bool]:
    return Job.placed_at.is_not(None) & Job.status.in_(("starting", "running")) & (Job.lease_expires_at < now)


def _is_given_up(since: datetime) -> ColumnElement[bool]:
    is_stopping = Job.placed_at.is_not(None) & (Job.status == "stopping")
    return is_stopping & Job.desired_force.is_(True) & (Job.lease_expires_at < since)


def _is_overdue(now: datetime) -> ColumnElement[bool]:
    holds_slots = Job.placed_at.is_not(None) & Job.status.in_(WITH_CONTROLLER)
    return holds_slots & (Job.deadline_at <= now) & (Job.desired_run != "stop")


async def _note_silent_controllers(session: AsyncSession, now: datetime) -> None:
    """A silent controller is not a dead one: the job recovers, and the agent's list still asks for one."""
    for job in await session.scalars(select(Job).where(_is_silent(now)).order_by(Job.id).with_for_update()):
        await settle_status(session, job, now=now, reason=Reason.CONTROLLER_LOST.value)


async def _end_forced_stops(session: AsyncSession, now: datetime, forced_stop_after: timedelta) -> None:
    """A forced cancel on a silent cluster ends once the workers' dead-man's switch has run out."""
    given_up = select(Job).where(_is_given_up(now - forced_stop_after)).order_by(Job.id).with_for_update()
    for job in await session.scalars(given_up):
        await session.execute(
            update(Attempt)
            .where(Attempt.job_id == job.id, Attempt.number == job.attempt)
            .values(ended_at=now, outcome="abandoned")
        )
        job.is_attempt_live = False
        await session.flush()
        because = "the cancel was forced, and the cluster has been silent for longer than its workers live alone"
        await settle_status(
            session, job, now=now, reason=job.stop_reason or Reason.CANCELLED_BY_USER.value, because=because
        )


async def _stop_overdue(session: AsyncSession, now: datetime) -> None:
    """A job that held slots for `limits.max_duration` is stopped, as by a cancel with the grace of its spec."""
    for job in await session.scalars(select(Job).where(_is_overdue(now)).order_by(Job.id).with_for_update()):
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
