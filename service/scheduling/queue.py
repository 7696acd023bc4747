"""The queue as people see it: who waits for what, and who runs with which slots."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row, func, literal, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import Principal
from service.clock import optional_rfc3339, parse_rfc3339, to_rfc3339
from service.context import Context
from service.ids import is_id
from service.jobs import find_visible
from service.models import IS_QUEUED, Job, Moment
from service.pages import bad_cursor, cut
from service.scheduling.unplaced import why_unplaced
from service.states import WITH_CONTROLLER

_ORDER = (Job.ranked_at, Job.id)
_SHOWN = (
    Job.id,
    Job.name,
    Job.priority,
    Job.status,
    Job.min_workers,
    Job.max_workers,
    Job.desired_workers,
    Job.granted_workers,
    Job.granted_standby,
    Job.workers,
    Job.cluster_id,
    Job.queued_at,
    Job.placed_at,
    Job.scheduling,
    Job.spec[("workers", "autoscale")].as_string().label("autoscale"),
)


async def read_queue(context: Context, caller: Principal, *, cursor: str | None, limit: int) -> dict[str, Any]:
    """A page of the queue in its order, and all jobs that hold slots; of the caller's projects.

    Places count the jobs of all projects: these wait for the same slots.

    Raises:
        ServiceError: invalid_request, where the cursor is none.
    """
    place = func.row_number().over(order_by=_ORDER).label("position")
    ranked = select(*_SHOWN, Job.project, Job.ranked_at, place).where(IS_QUEUED).subquery().c
    queued = select(*ranked).order_by(ranked.position).limit(limit + 1)
    placed = (
        select(*_SHOWN)
        .where(Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER))
        .order_by(Job.placed_at, Job.id)
    )
    if caller.visible_projects is not None:
        projects = sorted(caller.visible_projects)
        queued, placed = queued.where(ranked.project.in_(projects)), placed.where(Job.project.in_(projects))
    if cursor is not None:
        queued = queued.where(tuple_(ranked.ranked_at, ranked.id) > tuple_(*_read_place(cursor)))
    async with context.database.read() as session:
        page = (await session.execute(queued)).all()
        running = (await session.execute(placed)).all()
    items, next_cursor = cut(page, limit, lambda row: f"{to_rfc3339(row.ranked_at)}~{row.id}")
    return {
        "items": [_queued_json(row) for row in items],
        "next_cursor": next_cursor,
        "running": [_placed_json(row) for row in running],
    }


async def explain(context: Context, reference: str, caller: Principal) -> dict[str, Any]:
    """Why a job waits, or why it has so many workers; and where it stands among the others.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        job = await find_visible(session, reference, caller)
        position = await position_of(session, job) if job.status == "queued" else None
        unplaced = await why_unplaced(session, context, job, context.clock())
    return {
        "job_id": job.id,
        "name": job.name,
        "status": job.status,
        "reason": job.reason,
        "because": "; ".join(part for part in (job.scheduling or job.message, unplaced) if part),
        "position": position,
        "priority": job.priority,
        "autoscale": job.spec.get("workers", {}).get("autoscale", "off"),
        "min_workers": job.min_workers,
        "max_workers": job.max_workers,
        "desired_workers": job.desired_workers,
        "granted_workers": job.granted_workers,
        "granted_standby": job.granted_standby,
        "workers": job.workers,
        "queued_at": to_rfc3339(job.queued_at),
        "placed_at": optional_rfc3339(job.placed_at),
        "granted_at": optional_rfc3339(job.granted_at),
        "deadline_at": optional_rfc3339(job.deadline_at),
        "pause_seconds": job.pause_seconds,
        "rates": {count: entry["rate"] for count, entry in job.rates.items()},
    }


async def position_of(session: AsyncSession, job: Job) -> int:
    """The place of a queued job, 1 for the first."""
    up_to = select(func.count()).where(IS_QUEUED, tuple_(*_ORDER) <= tuple_(job.ranked_at, job.id))
    return (await session.execute(up_to)).scalar_one()


def _read_place(cursor: str) -> tuple[Any, Any]:
    """Behind which place a page goes on: that where its last job stood, wherever this one is now."""
    moment, _, job_id = cursor.partition("~")
    try:
        ranked_at = parse_rfc3339(moment)
    except ValueError:
        raise bad_cursor() from None
    if not is_id(job_id, "job"):
        raise bad_cursor()
    return literal(ranked_at, Moment()), literal(job_id)


def _queued_json(row: Row[Any]) -> dict[str, Any]:
    return {
        "position": row.position,
        **_common_json(row),
        "queued_at": to_rfc3339(row.queued_at),
    }


def _placed_json(row: Row[Any]) -> dict[str, Any]:
    return {
        **_common_json(row),
        "max_workers": row.max_workers,
        "autoscale": row.autoscale or "off",
        "cluster_id": row.cluster_id,
        "granted_workers": row.granted_workers,
        "granted_standby": row.granted_standby,
        "workers": row.workers,
        "placed_at": optional_rfc3339(row.placed_at),
    }


def _common_json(row: Row[Any]) -> dict[str, Any]:
    return {
        "job_id": row.id,
        "name": row.name,
        "status": row.status,
        "priority": row.priority,
        "min_workers": row.min_workers,
        "desired_workers": row.desired_workers,
        "because": row.scheduling,
    }
