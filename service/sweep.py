"""What deleted jobs left, and what the retention no longer keeps, removed in rounds.

A mark in the job's row says what is to go; the row itself goes last. So whatever is cut short, by a crash at any point
or by a storage that does not answer, the next round finds the mark and goes on. Files are removed outside of
transactions, rows some thousand at a time: nobody waits long for the database's writer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import delete, select, tuple_, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from service.audit import forget_entries
from service.checkpoints import name_of_newest
from service.context import Context
from service.counters import SWEEP_FAILURES, SWEEPS, SWEPT
from service.errors import ServiceError
from service.leases import is_held, take_lease
from service.models import Base, Event, Job, Metric, MetricRollup
from service.notify import ALL_JOBS, SWEEP, job_topic, notify
from service.threads import HOME_FILES, run_in
from service.uploads import find_unused, finish_removals, remove_unused
from service.vigil import compare_clocks

LEASE_NAME = "sweeper"
INTERVAL_S = 60.0
"""How often it looks when nothing wakes it: for time that passes, and for what another replica marked."""
TOMBSTONE = timedelta(minutes=1)
"""So long a deleted job's row stays: watchers at all replicas hear of the deletion by it, within seconds."""
ROWS = 2_000
"""Deleted in one transaction: some hundredths of a second of the writer's turn."""
FILES = 100
JOBS = 200
"""Looked at in a round."""
PACKAGES_EVERY = timedelta(hours=1)
"""To find those that no job has, the specs of all jobs are read."""
REST = timedelta(minutes=5)
"""After something failed for a job, for so long others have their turn."""

log = structlog.get_logger(__name__)


class LeaseLost(Exception):
    """Another replica sweeps."""


@dataclass(frozen=True)
class Deleted:
    """A job that is to be removed."""

    id: str
    deleted_at: datetime
    keeps_checkpoints: bool


@dataclass(frozen=True)
class Retention:
    """How long a part of the history of jobs that have ended is kept."""

    remove: Callable[[str], Awaitable[None]]
    """Takes that part of a job, by its id."""
    days: float | None
    dropped_at: InstrumentedAttribute[datetime | None]


class Sweeper:
    """Runs a round when a job was deleted, and once a minute."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._not_before: dict[str, datetime] = {}
        self._packages_due = context.clock()
        settings = context.settings
        self._retentions = (
            Retention(self._remove_logs, settings.keep_logs_days, Job.logs_dropped_at),
            Retention(self._remove_metrics, settings.keep_metrics_days, Job.metrics_dropped_at),
            Retention(self._remove_events, settings.keep_events_days, Job.events_dropped_at),
        )

    async def run(self) -> None:
        """Until cancelled. An error costs one round, not the loop."""
        with self._context.hub.subscribe(SWEEP) as subscription:
            while not self._context.hub.is_closed:
                try:
                    # By a clock that is not the database's not even the lease can be judged.
                    if await compare_clocks(self._context) is None:
                        await self.run_once()
                except LeaseLost:
                    pass
                except (DBAPIError, OSError, TimeoutError) as error:
                    log.warning("sweep_failed", error=repr(error)[:500])
                except Exception:
                    log.exception("sweep_failed")
                await subscription.wait(INTERVAL_S)

    async def run_once(self) -> None:
        """One round: deleted jobs, then the retention. What cannot be done for one job is left for the next round.

        Raises:
            LeaseLost: another replica sweeps.
        """
        began = time.perf_counter()
        now = self._context.clock()
        try:
            await self._remove_deleted(now)
            # Its users asked for the rest; this goes by the clock alone, and the removals may have taken minutes.
            now = self._context.clock()
            is_settled = self._context.heartbeat.why_unsettled(now) is None
            for retention in self._retentions if is_settled else ():
                for job_id in await self._outlived(retention, now):
                    try:
                        await self._drop(job_id, retention)
                    except (ServiceError, DBAPIError, OSError) as error:
                        self._note_failure(job_id, error)
            if is_settled and not is_held(self._packages_due, now, PACKAGES_EVERY):
                self._packages_due = now + PACKAGES_EVERY
                await self._remove_packages(now - timedelta(days=self._context.settings.keep_packages_days))
            if is_settled and (days := self._context.settings.keep_audit_days) is not None:
                await self._remove_audit_entries(now - timedelta(days=days))
        finally:
            SWEEPS.observe(time.perf_counter() - began)

    def _note_failure(self, job_id: str, error: Exception) -> None:
        SWEEP_FAILURES.inc()
        log.warning("sweep_of_job_failed", job=job_id, error=str(error)[:500])

    async def _remove_deleted(self, now: datetime) -> None:
        """What is left of deleted jobs, the first deleted first.

        One for which something failed waits for a while, and lets those behind it come. Where the root of the storage
        does not answer either, it is not asked again in the round: each time would take a minute.
        """
        self._not_before = {job_id: due for job_id, due in self._not_before.items() if is_held(due, now, REST)}
        has_storage = True
        for job in await self._deleted():
            try:
                if not await self._remove(job, now, has_storage=has_storage):
                    self._not_before[job.id] = now + REST
            except (ServiceError, DBAPIError, OSError) as error:
                self._note_failure(job.id, error)
                self._not_before[job.id] = now + REST
                if isinstance(error, ServiceError):
                    has_storage = await self._context.storage.answers()

    async def _deleted(self) -> list[Deleted]:
        """Those to begin with, without those that wait."""
        found: list[Deleted] = []
        marked = select(Job.id, Job.deleted_at, Job.keeps_checkpoints).where(Job.deleted_at.is_not(None))
        marked = marked.order_by(Job.deleted_at, Job.id).limit(JOBS)
        page = marked
        async with self._context.database.read() as session:
            while rows := (await session.execute(page)).all():
                found += (
                    Deleted(row.id, row.deleted_at, row.keeps_checkpoints)
                    for row in rows
                    if row.id not in self._not_before
                )
                if len(found) >= JOBS or len(rows) < JOBS:
                    break
                page = marked.where(tuple_(Job.deleted_at, Job.id) > tuple_(rows[-1].deleted_at, rows[-1].id))
        return found[:JOBS]

    async def _outlived(self, retention: Retention, now: datetime) -> list[str]:
        if retention.days is None:
            return []
        ended_before = now - timedelta(days=retention.days)
        old = select(Job.id).where(Job.finished_at < ended_before, retention.dropped_at.is_(None))
        async with self._context.database.read() as session:
            return list((await session.scalars(old.order_by(Job.finished_at).limit(JOBS))).all())

    async def _remove(self, job: Deleted, now: datetime, *, has_storage: bool) -> bool:
        """Everything of a deleted job, but for what needs the storage where that is silent; gives whether all was done.

        The cheap and certain first: a storage may not answer for days.
        """
        await self._remove_metrics(job.id)
        await self._remove_events(job.id)
        await self._remove_logs(job.id)
        if not job.keeps_checkpoints:
            if not has_storage:
                return False
            async with self._context.database.read() as session:
                is_told_of = await name_of_newest(session, job.id) is not None
            async for _ in self._context.storage.remove_checkpoints(job.id, is_told_of=is_told_of):
                SWEPT.labels("checkpoints").inc()
        if now - job.deleted_at < TOMBSTONE:
            return True
        async with self._transaction() as session:
            # Attempts and checkpoints are few, and go with it.
            gone = delete(Job).where(Job.id == job.id)
            await session.execute(gone.execution_options(synchronize_session=False))
        SWEPT.labels("jobs").inc()
        return True

    async def _drop(self, job_id: str, retention: Retention) -> None:
        """What the retention no longer keeps of a job."""
        await retention.remove(job_id)
        async with self._transaction() as session:
            now = self._context.clock()
            done = {retention.dropped_at: now, Job.updated_at: now, Job.revision: Job.revision + 1}
            mark = update(Job).where(Job.id == job_id).values(done)
            await session.execute(mark.execution_options(synchronize_session=False))
            notify(session, job_topic(job_id), ALL_JOBS)

    async def _remove_metrics(self, job_id: str) -> None:
        await self._remove_rows(Metric, Metric.step, job_id, "metric_rows")
        # Of a bucket number there is one row a level, at most.
        await self._remove_rows(MetricRollup, MetricRollup.bucket, job_id, "metric_rollups")

    async def _remove_events(self, job_id: str) -> None:
        await self._remove_rows(Event, Event.position, job_id, "event_rows")

    async def _remove_packages(self, before: datetime) -> None:
        """Those that were stored before then and that no job has."""
        await finish_removals(self._context)
        while unused := await find_unused(self._context, before, FILES):
            for sha256 in unused:
                is_gone = await remove_unused(self._context, self._transaction, sha256, before)
                SWEPT.labels("packages").inc(is_gone)

    async def _remove_audit_entries(self, before: datetime) -> None:
        """Those of what people changed before then."""
        removed = ROWS
        while removed == ROWS:
            async with self._transaction() as session:
                removed = await forget_entries(session, before, ROWS)
            SWEPT.labels("audit_rows").inc(removed)

    async def _remove_rows(self, table: type[Base], key: InstrumentedAttribute[int], job_id: str, what: str) -> None:
        """All rows of a job, a stretch of keys at a time."""
        of_job = table.__table__.c.job_id == job_id
        while True:
            async with self._transaction() as session:
                end = await session.scalar(select(key).where(of_job).order_by(key).limit(1).offset(ROWS - 1))
                stretch = delete(table).where(of_job) if end is None else delete(table).where(of_job, key <= end)
                done = await session.execute(stretch.execution_options(synchronize_session=False))
            SWEPT.labels(what).inc(max(0, done.rowcount))  # type: ignore[attr-defined]
            if end is None:
                return

    async def _remove_logs(self, job_id: str) -> None:
        while removed := await run_in(HOME_FILES, self._context.logs.remove, job_id, FILES):
            SWEPT.labels("log_files").inc(removed)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncSession]:
        """A write under the sweeper's lease."""
        async with self._context.database.write() as session:
            if not await take_lease(session, LEASE_NAME, self._context.holder, self._context.clock()):
                raise LeaseLost
            yield session
