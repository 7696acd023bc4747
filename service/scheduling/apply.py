"""Writes what was decided: statuses through `states`, grants, sentences, and an event for each change of a grant."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import Status
from service.events import append_event
from service.models import Job
from service.notify import ALL_JOBS, SCHEDULER, desired_topic, job_topic, notify
from service.scheduling.observe import LEAVING, Seen
from service.scheduling.sentences import UNSEEN
from service.scheduling.view import Decision, Fail, Keep, Preempt, Resize, Start, Wait
from service.states import WITH_CONTROLLER, change_status, settle_status

APPLY_FOR_S = 3.0
"""Later in its transaction a round writes no more, and the next one goes on: a transaction has 12 s, and where the
decisions about a long queue took longer, each round would be in vain, and the queue longer at the next."""


def changes_among(seen: Seen, decisions: Sequence[Decision]) -> list[Decision]:
    """The decisions that change something: a job whose sentence stays as it is, is not touched."""
    changes: list[Decision] = []
    for decision in decisions:
        position = decision.position if isinstance(decision, Wait) else None
        is_told = seen.told.get(decision.job_id) == (position, decision.because)
        if not (isinstance(decision, Wait | Keep) and is_told):
            changes.append(decision)
    return changes


async def apply_decisions(
    session: AsyncSession, decisions: Sequence[Decision], fallen: Sequence[str], now: datetime, began: float
) -> None:
    """Write them: first what gives slots back, then what takes them, then what only tells.

    A job that is no longer where the decision found it is left for the next round; so is what there was no time for.

    Args:    began: of the transaction, by the monotonic clock, in seconds.
    """
    ids = sorted({*(decision.job_id for decision in decisions), *fallen})
    # In the order of their ids, as everywhere where several rows are locked.
    rows = select(Job).where(Job.id.in_(ids)).order_by(Job.id).with_for_update()
    jobs = {job.id: job for job in await session.scalars(rows.execution_options(populate_existing=True))}
    for decision in sorted(decisions, key=lambda one: turn(one, jobs)):
        if (job := jobs.get(decision.job_id)) is None:
            continue
        if isinstance(decision, Start | Wait | Fail):
            if job.status == Status.QUEUED:
                await _apply_to_queued(session, job, decision, now)
        elif Status(job.status) in WITH_CONTROLLER:
            await _apply_to_placed(session, job, decision, now)
        if time.monotonic() >= began + APPLY_FOR_S:
            notify(session, SCHEDULER)
            return
    for job_id in fallen:
        if (job := jobs.get(job_id)) is not None and job.status == Status.QUEUED:
            _tell(session, job, None, UNSEEN, now)


def turn(decision: Decision, jobs: Mapping[str, Job]) -> int:
    """When it is written. After a cut nobody has been let by for whom slots were not asked back yet."""
    match decision:
        case Preempt() | Fail():
            return 0
        case Start():
            return 1
        case Resize():
            job = jobs.get(decision.job_id)
            held = 0 if job is None else job.granted_workers + job.granted_standby
            return 0 if decision.workers + decision.standby < held else 1
        case Wait() | Keep():
            return 2


async def _apply_to_queued(session: AsyncSession, job: Job, decision: Start | Wait | Fail, now: datetime) -> None:
    match decision:
        case Start():
            job.cluster_id = decision.cluster_id
            job.granted_workers, job.granted_standby = decision.workers, decision.standby
            job.granted_at = now
            job.is_backfilled = decision.is_backfilled
            job.scheduling = decision.because
            await session.flush()
            await change_status(session, job, Status.STARTING, because=decision.because, now=now)
            job.message = "waits for the cluster's agent to start a controller"
        case Fail():
            await change_status(
                session, job, Status.FAILED, because=decision.because, now=now, reason=decision.reason.value
            )
            job.failure = {
                "failure_class": "infrastructure",
                "reason": decision.reason.value,
                "message": decision.because,
            }
        case Wait():
            _tell(session, job, decision.position, decision.because, now)


async def _apply_to_placed(session: AsyncSession, job: Job, decision: Resize | Preempt | Keep, now: datetime) -> None:
    is_leaving = job.status in LEAVING or job.desired_run != "run" or job.preempted_at is not None
    if isinstance(decision, Keep):
        job.scheduling = decision.because
        _touch(session, job, now)
    elif not is_leaving and isinstance(decision, Resize):
        before, before_standby = job.granted_workers, job.granted_standby
        job.granted_workers, job.granted_standby = decision.workers, decision.standby
        job.granted_at = now
        job.scheduling = decision.because
        job.desired_version += 1
        _touch(session, job, now)
        await session.flush()
        data = {"from": before, "to": decision.workers, "from_standby": before_standby, "to_standby": decision.standby}
        await append_event(session, job, EventKind.GRANTED, f"{decision.because}.", now=now, data=data)
        notify(session, desired_topic(job.id))
    elif not is_leaving and isinstance(decision, Preempt):
        job.preempted_at = now
        job.scheduling = decision.because
        job.desired_version += 1
        _touch(session, job, now)
        await session.flush()
        by = {} if decision.is_for_foreign else {"by": decision.by}
        await append_event(session, job, EventKind.PREEMPTED, f"{decision.because}.", now=now, data=by)
        await settle_status(session, job, now=now, reason=Reason.PREEMPTED.value, because=decision.because)


def _tell(session: AsyncSession, job: Job, position: int | None, because: str, now: datetime) -> None:
    job.queue_position, job.message, job.scheduling = position, because, because
    _touch(session, job, now)


def _touch(session: AsyncSession, job: Job, now: datetime) -> None:
    job.updated_at = now
    job.revision += 1
    notify(session, job_topic(job.id), ALL_JOBS)
