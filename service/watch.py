"""Watching all jobs: a snapshot, then each job that changed since."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, defer

from service.access import Principal
from service.context import Context
from service.history import list_json
from service.models import Job, unindexed
from service.pages import cut
from service.views import job_json

SNAPSHOT_JOBS = 200
MARGIN = timedelta(seconds=15)
"""A row carries the time its transaction began; one that began earlier may commit later by so much. SQLite sets no
limit to a transaction, but has one at a time: how long that has been under way is looked back over besides."""


class JobWatch:
    """One watcher's memory: which revision of each recent job it has told."""

    def __init__(self, context: Context, caller: Principal, *, with_history: bool = False) -> None:
        self._context = context
        self._with_history = with_history
        self._projects = caller.visible_projects
        self._told: dict[str, int] = {}
        self._since: datetime | None = None

    async def snapshot(self) -> tuple[list[dict[str, Any]], str | None]:
        """The newest jobs, and the cursor of the page after them; None: these are all."""
        self._since = self._context.clock() - self._context.database.writing_for
        newest = select(Job).options(defer(Job.spec)).where(Job.deleted_at.is_(None), *self._among(Job.project))
        statement = newest.order_by(Job.id.desc()).limit(SNAPSHOT_JOBS + 1)
        async with self._context.database.read() as session:
            rows = (await session.scalars(statement)).all()
            jobs, next_cursor = cut(rows, SNAPSHOT_JOBS, lambda job: job.id)
            items = await list_json(session, jobs, with_history=self._with_history)
        self._told = {job.id: job.revision for job in jobs}
        return items, next_cursor

    async def changes(self) -> list[tuple[Literal["job", "deleted"], dict[str, Any]]]:
        """The jobs that changed since the last call, in the order of their change; of deleted ones the id alone."""
        assert self._since is not None, "take a snapshot first"
        looked_at = self._context.clock() - self._context.database.writing_for
        visible = self._among(unindexed(Job.project))
        recent = select(Job.id, Job.revision).where(Job.updated_at >= self._since - MARGIN, *visible)
        async with self._context.database.read() as session:
            # Nearly all of these were told already: they are not read in full.
            rows = await session.execute(recent)
            changed = [job_id for job_id, revision in rows if self._told.get(job_id) != revision]
            whole = select(Job).options(defer(Job.spec)).where(Job.id.in_(changed))
            jobs = (await session.scalars(whole.order_by(Job.updated_at, Job.id))).all() if changed else []
        self._since = looked_at
        self._told.update({job.id: job.revision for job in jobs})
        return [("job", job_json(job)) if job.deleted_at is None else ("deleted", {"id": job.id}) for job in jobs]

    def _among(self, project: ColumnElement[str] | InstrumentedAttribute[str]) -> list[ColumnElement[bool]]:
        return [] if self._projects is None else [project.in_(sorted(self._projects))]
