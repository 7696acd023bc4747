"""The event log of a job: positions without gaps, given out in the transaction that writes the event."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.attributes import set_committed_value

from rubato.wire.cluster import EventReport
from rubato.wire.events import EventKind
from service.clock import parse_or, to_rfc3339
from service.models import Event, Job
from service.webhooks.outbox import put_events


async def reserve_positions(session: AsyncSession, job: Job, count: int) -> int:
    """The first of `count` new positions of the job's log.

    The update locks the row until the commit, so positions become visible in order: a reader that saw n has seen all
    below. A serial column would not promise that.
    """
    statement = update(Job).where(Job.id == job.id).values(last_pos=Job.last_pos + count).returning(Job.last_pos)
    last = (await session.execute(statement.execution_options(synchronize_session=False))).scalar_one()
    set_committed_value(job, "last_pos", last)
    return last - count + 1


async def append_event(
    session: AsyncSession,
    job: Job,
    kind: EventKind,
    message: str,
    *,
    now: datetime,
    data: dict[str, Any] | None = None,
    attempt: int | None = None,
) -> int:
    """Write one event of the service itself; gives its position."""
    position = await reserve_positions(session, job, 1)
    row: dict[str, Any] = {
        "job_id": job.id,
        "position": position,
        "time": now,
        "kind": str(kind),
        "message": message,
        "attempt": attempt,
        "data": data or {},
    }
    await session.execute(insert(Event).values(row))
    await put_events(session, job, [row], now=now)
    return position


async def append_reported(
    session: AsyncSession, job: Job, attempt: int, reports: Sequence[EventReport], *, now: datetime
) -> None:
    """Write what a controller reported, in its order."""
    if not reports:
        return
    first = await reserve_positions(session, job, len(reports))
    rows = [
        {
            "job_id": job.id,
            "position": first + index,
            "time": parse_or(report.time, now),
            "kind": report.kind[:64],
            "message": report.message,
            "step": report.step,
            "generation": report.generation,
            "attempt": attempt,
            "seq": report.seq,
            "data": report.data,
        }
        for index, report in enumerate(reports)
    ]
    await session.execute(insert(Event), rows)
    await put_events(session, job, rows, now=now)


async def list_events(
    session: AsyncSession, job_id: str, after: int, limit: int, *, kind: EventKind | None = None
) -> list[Event]:
    """The events behind a position, in order."""
    statement = select(Event).where(Event.job_id == job_id, Event.position > after)
    if kind is not None:
        statement = statement.where(Event.kind == str(kind))
    return list((await session.scalars(statement.order_by(Event.position).limit(limit))).all())


def event_json(event: Event) -> dict[str, Any]:
    """The event as the API shows it."""
    return {
        "position": event.position,
        "time": to_rfc3339(event.time),
        "kind": event.kind,
        "message": event.message,
        "step": event.step,
        "generation": event.generation,
        "attempt": event.attempt,
        "data": event.data,
    }
