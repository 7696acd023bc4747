"""The loop around the decision: look, decide, apply; and nothing at all where nothing changes.

Each round looks without the writer's turn first. Only where something is to be written it looks again, in the
transaction that takes the scheduler's lease and writes: so a decision never rests on what another replica has changed.
"""

from __future__ import annotations

import asyncio
import math
import time
from datetime import datetime, timedelta

import structlog
from sqlalchemy import delete
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession

from service.context import Context
from service.heartbeat import ABSENCE_S
from service.leases import take_lease
from service.models import Session
from service.nodes import has_drains, settle_drains
from service.notify import SCHEDULER
from service.requests import forget_old_replies
from service.scheduling.apply import apply_decisions, changes_among
from service.scheduling.capacity import largest_fit
from service.scheduling.guard import Passed, decide_around
from service.scheduling.lapses import Terms, apply_lapses, has_lapses
from service.scheduling.observe import Seen, observe
from service.scheduling.view import Decision, Wait
from service.states import IllegalTransition
from service.vigil import NOTE_S, compare_clocks, note_listening, rearm_unheard

LEASE_NAME = "scheduler"
QUEUE_INTERVAL_S = 5.0
HOUSEKEEPING_S = 600.0
LATE = timedelta(seconds=ABSENCE_S)
"""Nothing is judged by a moment so long ago, and no row carries it: watchers look back for no longer than 15 s."""
WINDOW = 64
"""So many of the queue are looked at: those behind may go first only once they come into it."""
MAX_WINDOW = 1024
"""And so many where a cluster has nothing to do for any of those: jobs that fit nowhere must not hide the others."""
MIN_REST_S = 0.02
REST_FACTOR = 20
"""After a round the loop rests for so many times what it took: under a storm of wake-ups it takes a twentieth of a
core, and a lone wake-up waits for nothing."""

log = structlog.get_logger(__name__)


class ClockOutOfStep(Exception):
    """This clock and that of the database differ: by it no lease can be judged that another replica wrote."""


class SchedulingLoop:
    """Runs a round when something changed, and looks for what the clock brings once a second."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cleaned_at = 0.0
        self._noted_at = self._freed_at = -NOTE_S
        self._was_late = self._is_late = False
        """Whether the turn to write came too late in the round before, and in this one."""

    async def run(self) -> None:
        """Until cancelled. An error costs one round, not the loop."""
        settings = self._context.settings
        interval_s = settings.scheduler_interval.total_seconds()
        # Whatever changes the queue wakes the loop. Looking anyway is for time-outs and clusters that fell silent,
        # and with replicas for what was woken elsewhere.
        queue_interval_s = QUEUE_INTERVAL_S if settings.is_sqlite else interval_s
        queue_due_at = 0.0
        heartbeat = self._context.heartbeat
        is_woken = True
        unheard: str | None = None  # why controllers could not renew their leases
        with self._context.hub.subscribe(SCHEDULER) as subscription:
            while not self._context.hub.is_closed:
                began = time.monotonic()
                try:
                    await self._free_locks(began)
                    await self._compare_clocks()
                    now = self._context.clock()
                    unheard = heartbeat.why_unsure(now, interval_s) or unheard
                    if unheard is not None and await rearm_unheard(self._context):
                        log.warning("leases_rearmed", because=unheard)
                    # Not before that: where it failed, nobody is sure of any lease.
                    heartbeat.look(now, is_anew=unheard is not None)
                    unheard = None
                    if began - self._noted_at >= NOTE_S:
                        await note_listening(self._context)
                        self._noted_at = began
                    with_queue = is_woken or began >= queue_due_at
                    if with_queue:
                        queue_due_at = began + queue_interval_s
                    await self.run_once(with_queue=with_queue)
                    await self._clean_up()
                except IllegalTransition as error:
                    # Another replica was faster: look again in the next round.
                    log.warning("scheduling_round_failed", error=str(error))
                except ClockOutOfStep as error:
                    unheard = str(error)
                    log.warning("scheduling_round_failed", error=unheard)
                except (DataError, IntegrityError, ProgrammingError):
                    log.exception("scheduling_round_failed")  # the database did answer, and did not like the question
                except (DBAPIError, OSError) as error:
                    # What is silent to the scheduler took no reports either.
                    unheard = "the database did not answer"
                    log.warning("scheduling_round_failed", error=repr(error)[:500])
                except Exception:
                    log.exception("scheduling_round_failed")
                took_s = time.monotonic() - began
                is_woken = await subscription.wait(interval_s)
                rest_s = max(MIN_REST_S, REST_FACTOR * took_s) - (time.monotonic() - began)
                if is_woken and rest_s > 0:
                    await asyncio.sleep(min(rest_s, interval_s))

    async def _free_locks(self, began: float) -> None:
        """Wait for no replica that stands still inside a transaction."""
        if began - self._freed_at >= NOTE_S:
            self._freed_at = began
            try:
                if count := await self._context.database.end_stalled():
                    log.warning("stalled_transactions_ended", count=count)
            except ProgrammingError as error:  # not allowed to: rounds do not depend on it
                self._freed_at = math.inf
                log.warning("stalled_transactions_cannot_be_ended", error=str(error)[:500])

    async def _compare_clocks(self) -> None:
        """Have nothing judged by a clock that differs from that of the database, the one that all replicas see.

        Raises:
            ClockOutOfStep: it does.
        """
        if (because := await compare_clocks(self._context)) is not None:
            raise ClockOutOfStep(because)

    async def run_once(self, *, with_queue: bool = True) -> None:
        """One round: what the clock brings, then the queue and the shares."""
        self._was_late, self._is_late = self._is_late, False
        now = self._context.clock()
        terms = self._terms(now)
        async with self._context.database.read() as session:
            lapses = await has_lapses(session, terms)
            drains = await has_drains(session)
        if lapses or drains:
            # By itself: a plan that fails must not take back what time alone has brought about.
            async with self._context.database.write() as session:
                if not await self._may_write(session, now):
                    return
                if drains:
                    await settle_drains(session, now)  # first: it locks clusters, which come before jobs
                await apply_lapses(session, terms)
        if with_queue:
            async with self._context.database.read() as session:
                changes, fallen = await self._plan(session, now)
            if not (changes or fallen):
                return
            async with self._context.database.write() as session:
                began = time.monotonic()
                if not await self._may_write(session, now):
                    return
                changes, fallen = await self._plan(session, now)
                await apply_decisions(session, changes, fallen, now, began)

    async def _may_write(self, session: AsyncSession, now: datetime) -> bool:
        """Whether what was seen is to be judged: by this replica, and now.

        Where the turn to write came long after the look, reports waited as well: the next round knows of that.
        """
        self._is_late = self._context.clock() - now > LATE
        if self._is_late and not self._was_late:
            log.warning("scheduling_round_late", late_s=round((self._context.clock() - now).total_seconds(), 1))
        return not self._is_late and await take_lease(session, LEASE_NAME, self._context.holder, now)

    def _terms(self, now: datetime) -> Terms:
        settings, heartbeat = self._context.settings, self._context.heartbeat
        stranded_after = max(settings.forced_stop_after, settings.cluster_offline_after)
        is_settled = heartbeat.why_unsettled(now) is None
        has_listened = is_settled and heartbeat.has_listened_for(stranded_after)
        return Terms(now, settings.forced_stop_after, stranded_after, has_listened=has_listened, is_settled=is_settled)

    async def _plan(self, session: AsyncSession, now: datetime) -> tuple[list[Decision], tuple[str, ...]]:
        """What a round would change, and which queued jobs it does not look at any more."""
        limit = WINDOW
        passed_over: frozenset[str] = frozenset()
        while True:
            seen = await observe(session, self._context, now, limit, passed_over)
            decisions, passed = decide_around(seen.view, now)
            passed += seen.passed
            if not (seen.has_more and _may_go_on(seen, decisions)):
                return _changes(seen, decisions, passed), seen.fallen
            held = passed_over | _held_projects(seen, decisions)
            # The jobs of one project, waiting for its own quota, must not hide those of others.
            if held == passed_over:
                if limit >= MAX_WINDOW:
                    return _changes(seen, decisions, passed), seen.fallen
                limit *= 4
            passed_over = held

    async def _clean_up(self) -> None:
        if time.monotonic() - self._cleaned_at < HOUSEKEEPING_S and self._cleaned_at:
            return
        now = self._context.clock()
        if self._context.heartbeat.why_unsettled(now) is not None:
            return
        self._cleaned_at = time.monotonic()
        async with self._context.database.write() as session:
            await session.execute(delete(Session).where(Session.expires_at < now))
        has_more = True
        while has_more:
            async with self._context.database.write() as session:
                has_more = await forget_old_replies(session, now)


def _changes(seen: Seen, decisions: list[Decision], passed: Passed) -> list[Decision]:
    """What is to be written; of a job that is passed over the log says why, once."""
    ours = {decision.job_id for decision in decisions}
    changes = changes_among(seen, [*decisions, *(one for one, _ in passed if one.job_id not in ours)])
    faults = {decision.job_id: fault for decision, fault in passed}
    for change in changes:
        if (fault := faults.get(change.job_id)) is not None:
            log.error("job_passed_over", job_id=change.job_id, exc_info=fault)
    return changes


def _may_go_on(seen: Seen, decisions: list[Decision]) -> bool:
    """Whether one behind the view might start: there is a cluster that nobody in it waits for."""
    waits = {one.job_id for one in decisions if isinstance(one, Wait) and not one.is_held_by_quota}
    waiting = [job for job in seen.view.waiting if job.job_id in waits]
    return any(
        all(largest_fit(cluster, job.shape) < job.min_workers for job in waiting) for cluster in seen.view.clusters
    )


def _held_projects(seen: Seen, decisions: list[Decision]) -> frozenset[str]:
    """Projects of which one waits for the quota already: behind the window nobody of theirs is looked for."""
    held = {one.job_id for one in decisions if isinstance(one, Wait) and one.is_held_by_quota}
    limits = seen.view.max_slots
    return frozenset(
        job.project for job in seen.view.waiting if job.job_id in held and job.min_workers <= limits[job.project]
    )
