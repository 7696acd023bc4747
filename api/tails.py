"""What the streams tell: a job's events, metrics and logs, and all jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse

from api.sse import Look, message, place, stream
from rubato.wire.status import FINAL, Status
from rubato.wire.terminal import readable
from service.access import Principal
from service.context import Context
from service.events import event_json, list_events
from service.logs import LogFilter, LogPosition
from service.metrics import list_metrics, metric_json, most_rows
from service.models import Job
from service.notify import ALL_JOBS, job_topic
from service.threads import SEARCHES, run_in
from service.views import job_json
from service.watch import JobWatch

JOB_MESSAGE_INTERVAL_S = 0.5
"""Bursts are gathered: a page needs no more than two pictures of a job a second."""
PAGE = 1_000


@dataclass(frozen=True)
class _Slice:
    """What lies behind one position, encoded once for all who stand there."""

    messages: tuple[bytes, ...]
    position: int
    has_more: bool
    status: Status
    revision: int
    job: bytes


def job_events(context: Context, caller: Principal, job_id: str, after: int) -> StreamingResponse:
    """The events behind a position, and the job itself whenever it changed."""
    position = after
    told_revision = 0
    told_at = 0.0

    async def look() -> Look:
        nonlocal position, told_revision, told_at
        key = ("events", job_id, position)
        seen = await context.hub.read_once(key, lambda: _read_events(context, job_id, position))
        messages = list(seen.messages)
        position = seen.position
        is_over = seen.status in FINAL and not seen.has_more
        again_in_s = None
        if seen.revision != told_revision:
            again_in_s = told_at + JOB_MESSAGE_INTERVAL_S - time.monotonic()
            if again_in_s <= 0 or is_over:
                messages.append(seen.job)
                told_revision, told_at, again_in_s = seen.revision, time.monotonic(), None
        if is_over:
            messages.append(_end(seen.status))
        return Look(messages, is_over=is_over, has_more=seen.has_more, again_in_s=again_in_s)

    return stream(context, caller, [job_topic(job_id)], look)


def job_metrics(
    context: Context, caller: Principal, job_id: str, after: int, names: frozenset[str]
) -> StreamingResponse:
    """The metric rows behind an ingest position."""
    position = after

    async def look() -> Look:
        nonlocal position
        async with context.database.read() as session:
            job = await session.get_one(Job, job_id)
            rows = await list_metrics(session, job_id, position, min(PAGE, most_rows(job, names)))
        if rows:
            position = rows[-1].position
            items = [metric_json(row, names) for row in rows]
            found = message({"items": items}, event="metrics", id=str(position))
            return Look([found], has_more=True)
        if Status(job.status) in FINAL:
            return Look([_end(Status(job.status))], is_over=True)
        return Look([])

    return stream(context, caller, [job_topic(job_id)], look)


def job_logs(
    context: Context, caller: Principal, job_id: str, start: LogPosition, wanted: LogFilter
) -> StreamingResponse:
    """The lines behind a position; told from the first moment on is also where it stands."""
    position = start
    is_told = False

    async def look() -> Look:
        nonlocal position, is_told
        messages = []
        async with context.database.read() as session:
            job = await session.get_one(Job, job_id)
        end = LogPosition(job.log_segment, job.log_offset)
        if position < end:
            items, position = await run_in(SEARCHES, context.logs.read, job_id, position, end, PAGE, wanted)
            messages.append(_log_message(items, position))
        elif not is_told:
            messages.append(place(str(position)))
        is_told = True
        is_over = Status(job.status) in FINAL and position >= end
        if is_over:
            messages.append(_end(Status(job.status)))
        return Look(messages, is_over=is_over, has_more=position < end)

    return stream(context, caller, [job_topic(job_id)], look)


async def log_text(
    context: Context, job_id: str, start: LogPosition, end: LogPosition, wanted: LogFilter
) -> AsyncIterator[bytes]:
    """Lines between two positions as text, each with its time and who wrote it; without colours, and without
    what else would steer the terminal of whoever prints the file."""
    position = start
    while position < end:
        items, position = await run_in(SEARCHES, context.logs.read, job_id, position, end, PAGE, wanted)
        yield "".join(map(_text_line, items)).encode()


def _text_line(item: dict[str, Any]) -> str:
    source = item["worker_id"] if item["rank"] is None else f"rank {item['rank']}"
    mark = "" if item["stream"] == "stdout" else f" {item['stream']}"
    return f"{item['time']} [{source}{mark}] {readable(item['line'], keep_colours=False)}\n"


def all_jobs(context: Context, caller: Principal, *, with_history: bool = False) -> StreamingResponse:
    """A snapshot of the newest jobs, then each job that changed."""
    watch = JobWatch(context, caller, with_history=with_history)
    looked_at: float | None = None

    async def look() -> Look:
        nonlocal looked_at
        if looked_at is None:
            looked_at = time.monotonic()
            items, next_cursor = await watch.snapshot()
            return Look([message({"items": items, "next_cursor": next_cursor}, event="snapshot")])
        too_early_s = looked_at + JOB_MESSAGE_INTERVAL_S - time.monotonic()
        if too_early_s > 0:
            return Look([], again_in_s=too_early_s)
        looked_at = time.monotonic()
        return Look([message(data, event=event) for event, data in await watch.changes()])

    return stream(context, caller, [ALL_JOBS], look)


async def _read_events(context: Context, job_id: str, after: int) -> _Slice:
    async with context.database.read() as session:
        # The job first: once it is final, every event it will ever have can be seen behind it.
        job = await session.get_one(Job, job_id)
        events = await list_events(session, job_id, after, PAGE)
    return _Slice(
        messages=tuple(message(event_json(event), event="event", id=str(event.position)) for event in events),
        position=events[-1].position if events else after,
        has_more=len(events) == PAGE,
        status=Status(job.status),
        revision=job.revision,
        job=message(job_json(job, with_spec=True), event="job"),
    )


def _log_message(items: list[dict[str, Any]], position: LogPosition) -> bytes:
    return message({"items": items}, event="log", id=str(position)) if items else place(str(position))


def _end(status: Status) -> bytes:
    return message({"status": status}, event="end")
