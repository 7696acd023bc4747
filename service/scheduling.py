"""The loop around the scheduler: look, decide, apply in one transaction; and the watch over silent controllers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from sqlalchemy import delete, literal, or_, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.status import Status
from service.attempts import rearm_leases
from service.context import Context
from service.database import insert_for
from service.models import Attempt, Job, Lease, Session, StoredReply
from service.notify import ALL_JOBS, SCHEDULER, job_topic, notify
from service.scheduler import Decision, Fail, Start, Wait, decide
from service.scheduler_view import observe_view
from service.states import IllegalTransition, change_status, settle_status

LEASE_NAME = "scheduler"
LEASE_LIFETIME = timedelta(seconds=30)
QUEUE_INTERVAL_S = 5.0
ABSENCE_S = 5.0
HOUSEKEEPING_S = 600.0
REPLY_LIFETIME = timedelta(hours=24)

log = structlog.get_logger(__name__)


def decide_absence(wall_s: float, steady_s: float, interval_s: float) -> str | None:
    """Why leases cannot be judged by the time that passed since the last round; None: they can.

    A clock that was set, a machine that slept, a stopped process: the silence then says nothing of the controllers.
    """
    if abs(wall_s - steady_s) > ABSENCE_S:
        return f"the clock jumped by {wall_s - steady_s:.1f} s"
    if steady_s - interval_s > ABSENCE_S:
        return f"the service stood still for {steady_s - interval_s:.1f} s"
    return None


class SchedulingLoop:
    """Runs one round when something changed, and once a second otherwise."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._holder = secrets.token_hex(8)
        self._cleaned_at = 0.0

    async def run(self) -> None:
        """Until cancelled. An error costs one round, not the loop."""
        settings = self._context.settings
        interval_s = settings.scheduler_interval.total_seconds()
        # Whatever changes the queue wakes the loop. Looking anyway is for time-outs and clusters that fell silent,
        # and with replicas for what was woken elsewhere.
        queue_interval_s = QUEUE_INTERVAL_S if settings.is_sqlite else interval_s
        queue_due_at = 0.0
        wall, steady = self._context.clock(), time.monotonic()
        is_woken = True
        with self._context.hub.subscribe(SCHEDULER) as subscription:
            while not self._context.hub.is_closed:
                passed = ((self._context.clock() - wall).total_seconds(), time.monotonic() - steady)
                wall, steady = self._context.clock(), time.monotonic()
                try:
                    absence = decide_absence(*passed, interval_s)
                    if absence is not None:
                        log.warning("leases_rearmed", because=absence)
                        await rearm_leases(self._context)
                    if is_woken or steady >= queue_due_at:
                        queue_due_at = steady + queue_interval_s
                        await self.run_once()
                    else:
                        await self.run_once(with_queue=False)
                    await self._clean_up()
                except (DBAPIError, IllegalTransition, OSError) as error:
                    # Another replica was faster, or the database is away: look again in the next round.
                    log.warning("scheduling_round_failed", error=str(error).splitlines()[0])
                except Exception:
                    log.exception("scheduling_round_failed")
                is_woken = await subscription.wait(interval_s)

    async def run_once(self, *, with_queue: bool = True) -> None:
        """One round: silent controllers, forced stops, then the queue."""
        now = self._context.clock()
        if not await self._has_work(now, with_queue=with_queue):
            return
        async with self._context.database.write() as session:
            if not await self._take_lease(session, now):
                return
            await self._note_lost_controllers(session, now)
            await self._end_forced_stops(session, now)
            queued = await _queued_jobs(session)
            if queued:
                view = await observe_view(session, queued, self._context, now)
                await apply_decisions(session, queued, decide(view, now), now)

    async def _has_work(self, now: datetime, *, with_queue: bool) -> bool:
        """A look without the writer's turn: an idle service writes nothing."""
        silent = self._context.settings.forced_stop_after
        lost = (Job.status.in_(("starting", "running"))) & (Job.lease_expires_at < now)
        forced = (Job.status == "stopping") & Job.desired_force.is_(True) & (Job.lease_expires_at < now - silent)
        queued = (Job.status == "queued") & literal(with_queue)
        async with self._context.database.read() as session:
            return (await session.execute(select(Job.id).where(or_(lost, forced, queued)).limit(1))).first() is not None

    async def _take_lease(self, session: AsyncSession, now: datetime) -> bool:
        """Compare-and-set in the round's own transaction: a second replica waits for the row and finds it taken."""
        ours = {"holder": self._holder, "expires_at": now + LEASE_LIFETIME}
        free = or_(Lease.holder == self._holder, Lease.expires_at < now)
        taken = update(Lease).where(Lease.name == LEASE_NAME, free).values(ours).returning(Lease.name)
        if (await session.execute(taken.execution_options(synchronize_session=False))).first() is not None:
            return True
        first = (
            insert_for(session, Lease).values(name=LEASE_NAME, **ours).on_conflict_do_nothing(index_elements=["name"])
        )
        return (await session.execute(first.returning(Lease.name))).first() is not None

    async def _note_lost_controllers(self, session: AsyncSession, now: datetime) -> None:
        """A silent controller is not a dead one: the job recovers, and the agent's list still asks for one."""
        lost = select(Job).where(Job.status.in_(("starting", "running")), Job.lease_expires_at < now)
        for job in await session.scalars(lost.with_for_update()):
            await settle_status(session, job, now=now, reason="controller_lost")

    async def _end_forced_stops(self, session: AsyncSession, now: datetime) -> None:
        """A forced cancel on a silent cluster ends once the workers' dead-man's switch has run out."""
        since = now - self._context.settings.forced_stop_after
        silent = select(Job).where(Job.status == "stopping", Job.desired_force.is_(True), Job.lease_expires_at < since)
        for job in await session.scalars(silent.with_for_update()):
            await session.execute(
                update(Attempt)
                .where(Attempt.job_id == job.id, Attempt.number == job.attempt)
                .values(ended_at=now, outcome="abandoned")
            )
            job.is_attempt_live = False
            await session.flush()
            because = "the cancel was forced, and the cluster has been silent for longer than its workers live alone"
            await settle_status(session, job, now=now, reason="cancelled_by_user", because=because)

    async def _clean_up(self) -> None:
        if time.monotonic() - self._cleaned_at < HOUSEKEEPING_S and self._cleaned_at:
            return
        self._cleaned_at = time.monotonic()
        now = self._context.clock()
        async with self._context.database.write() as session:
            await session.execute(delete(Session).where(Session.expires_at < now))
            await session.execute(delete(StoredReply).where(StoredReply.created_at < now - REPLY_LIFETIME))


async def apply_decisions(
    session: AsyncSession, queued: Sequence[Job], decisions: Sequence[Decision], now: datetime
) -> None:
    """Write what was decided; a job whose sentence did not change is not touched."""
    jobs = {job.id: job for job in queued}
    for decision in decisions:
        job = jobs[decision.job_id]
        match decision:
            case Start():
                job.cluster_id = decision.cluster_id
                job.granted_workers = decision.workers
                await session.flush()
                await change_status(session, job, Status.STARTING, because=decision.because, now=now)
                job.message = "waits for the cluster's agent to start a controller"
            case Fail():
                await session.flush()
                await change_status(
                    session, job, Status.FAILED, because=decision.because, now=now, reason=decision.reason
                )
                job.failure = {
                    "failure_class": "infrastructure",
                    "reason": decision.reason,
                    "message": decision.because,
                }
            case Wait():
                if (job.queue_position, job.message) != (decision.position, decision.because):
                    job.queue_position, job.message = decision.position, decision.because
                    job.updated_at = now
                    job.revision += 1
                    notify(session, job_topic(job.id), ALL_JOBS)


async def _queued_jobs(session: AsyncSession) -> list[Job]:
    return list((await session.scalars(select(Job).where(Job.status == "queued").with_for_update())).all())
