"""What happens in jobs: events, metrics and logs as JSON pages or as streams, and the stream of all jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import AwareDatetime

from api import schemas
from api.auth import Caller, JobReference, Parts
from api.routes.errors import errors
from api.routes.pages import History
from api.sse import EVENT_STREAM, wants_stream
from api.tails import PAGE, all_jobs, job_events, job_logs, job_metrics, log_text
from service import jobs
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.events import event_json, list_events
from service.logs import LogFilter, LogPosition
from service.metrics import list_metrics, metric_json, most_rows
from service.rollups import chart
from service.threads import SEARCHES, run_in

router = APIRouter(prefix="/api/v1", tags=["live data"])

_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}}}
_LARGEST = 2**63 - 1
TAIL = 100
"""Lines of a log, where nothing else is asked for."""

LastEventId = Annotated[str | None, Header()]
Rank = Annotated[str, Query(description="Ranks, separated by commas.")]
AttemptOf = Annotated[int | None, Query(ge=0, le=_LARGEST)]
Text = Annotated[str, Query(max_length=200, description="Part of the line.")]
Since = Annotated[AwareDatetime | None, Query(description="Only lines of this time and later.")]
After = Annotated[int, Query(ge=0, le=_LARGEST, description="Position behind which to begin.")]
Limit = Annotated[int, Query(ge=1, le=10_000)]


@router.get("/jobs/{reference}/events", response_model=schemas.EventPage, responses={**_STREAM, **errors(404)})
async def get_events(
    request: Request,
    reference: JobReference,
    context: Parts,
    caller: Caller,
    after: After = 0,
    limit: Limit = PAGE,
    last_event_id: LastEventId = None,
) -> Any:
    """The job's log in order. As a stream: replays behind Last-Event-ID, and tells the job whenever it changed."""
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
        if not wants_stream(request):
            items = [event_json(event) for event in await list_events(session, job.id, after, limit)]
            return {"items": items, "next_position": items[-1]["position"] if items else after}
    return job_events(context, caller, job.id, _resume_at(last_event_id, after))


@router.get("/jobs/{reference}/metrics", response_model=schemas.MetricPage, responses={**_STREAM, **errors(404)})
async def get_metrics(
    request: Request,
    reference: JobReference,
    context: Parts,
    caller: Caller,
    after: After = 0,
    names: Annotated[str, Query(description="Names of values, separated by commas; empty: all.")] = "",
    limit: Limit = PAGE,
    last_event_id: LastEventId = None,
) -> Any:
    """One row a step, in order of ingest; a step that was trained again comes again, with its newest position."""
    wanted = frozenset(name for name in names.split(",") if name)
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
        if not wants_stream(request):
            rows = await list_metrics(session, job.id, after, min(limit, most_rows(job, wanted)))
            items = [metric_json(row, wanted) for row in rows]
            return {"items": items, "next_position": items[-1]["position"] if items else after}
    return job_metrics(context, caller, job.id, _resume_at(last_event_id, after), wanted)


@router.get("/jobs/{reference}/metrics/chart", response_model=schemas.Chart, responses=errors(404))
async def get_chart(
    reference: JobReference,
    context: Parts,
    names: Annotated[str, Query(description="Names of values, separated by commas; empty: all.")] = "",
    x: Annotated[Literal["step", "time"], Query(description="time: seconds since 1970.")] = "step",
    max_points: Annotated[int, Query(ge=10, le=20_000, description="Of each metric, at most.")] = 1_000,
    start: Annotated[int, Query(ge=0, le=_LARGEST, description="First step.")] = 0,
    end: Annotated[int | None, Query(ge=0, le=_LARGEST, description="Last step; default: the newest.")] = None,
) -> Any:
    """Metrics thinned out for a chart, however long the job is: no peak is lost, because extremes are what stays.

    Of a job with very many metrics each has fewer points. A stream of the metrics that begins behind `position` goes on
    where the chart ends.
    """
    wanted = frozenset(name for name in names.split(",") if name)
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
        most = max(10, min(max_points, most_rows(job, wanted)))
        found = await chart(session, job.id, wanted, max_points=most, axis=x, start=start, end=end)
    return {**found, "position": job.metric_pos}


@router.get("/jobs/{reference}/logs", response_model=schemas.LogPage, responses={**_STREAM, **errors(404)})
async def get_logs(
    request: Request,
    reference: JobReference,
    context: Parts,
    caller: Caller,
    rank: Rank = "",
    attempt: AttemptOf = None,
    q: Text = "",
    since: Since = None,
    tail: Annotated[
        int | None,
        Query(ge=0, le=10_000, description="Lines from the end, where `after` is not given; without `since` 100."),
    ] = None,
    after: Annotated[str | None, Query(description="Go on behind this id.")] = None,
    before: Annotated[str | None, Query(description="Only lines before this: the `earlier` of the page after.")] = None,
    limit: Limit = PAGE,
    last_event_id: LastEventId = None,
) -> Any:
    """Lines of the workers, oldest first.

    Begins behind `after`; else with the newest `tail` of them; with `since` alone at that time, and `next` leads on.
    Backwards: the `tail` lines before `before`, and `earlier` leads on; null: nothing lies before. Where
    much is looked at, a page has fewer lines than were asked for, or none, and `earlier` still leads on.
    A page has about 2 MiB of lines at most: fewer of them than asked for are no end.
    As a stream: replays behind Last-Event-ID. An id without data tells where to go on while no line is wanted.
    """
    wanted = LogFilter(ranks=_ranks(rank), attempt=attempt, text=q, since=_moment(since))
    resumes = last_event_id is not None and wants_stream(request)
    begin = _log_position(last_event_id if resumes else after)
    if after is not None and before is not None:
        raise ServiceError(ErrorKind.INVALID_REQUEST, "Send after, which leads on, or before, which leads back.")
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
    end = LogPosition(job.log_segment, job.log_offset)
    if begin is not None and begin > end and not resumes:
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"after lies behind the end of this log, which is '{end}'.")
    if before is not None:
        return await _page_before(
            context, job.id, min(_parse_position(before), end), TAIL if tail is None else tail, wanted
        )
    if begin is None and tail is None and wanted.since is not None:
        begin = await run_in(SEARCHES, context.logs.find, job.id, end, wanted.since)
    count = TAIL if tail is None else tail
    if wants_stream(request):
        if begin is None:
            begin = await run_in(SEARCHES, context.logs.find_tail, job.id, end, count, wanted)
        return job_logs(context, caller, job.id, begin, wanted)
    if begin is None:
        items, earlier = await run_in(SEARCHES, context.logs.tail, job.id, end, count, wanted)
        return _log_page(items, end, earlier, has_more=False)
    items, position = await run_in(SEARCHES, context.logs.read, job.id, begin, end, limit, wanted)
    return _log_page(items, position, begin, has_more=position < end)


@router.get("/jobs/{reference}/logs/file", response_class=PlainTextResponse, responses=errors(404))
async def download_logs(
    reference: JobReference,
    context: Parts,
    rank: Rank = "",
    attempt: AttemptOf = None,
    q: Text = "",
    since: Since = None,
) -> StreamingResponse:
    """All lines of the workers up to now as one text file, oldest first."""
    wanted = LogFilter(ranks=_ranks(rank), attempt=attempt, text=q, since=_moment(since))
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
    end = LogPosition(job.log_segment, job.log_offset)
    begin = LogPosition()
    if wanted.since is not None:
        begin = await run_in(SEARCHES, context.logs.find, job.id, end, wanted.since)
    headers = {"Content-Disposition": f'attachment; filename="{job.name}.log"'}
    return StreamingResponse(log_text(context, job.id, begin, end, wanted), media_type="text/plain", headers=headers)


@router.get("/events", responses={**_STREAM, **errors()}, response_class=StreamingResponse)
async def watch_jobs(context: Parts, caller: Caller, history: History = False) -> StreamingResponse:
    """All jobs as a stream: a snapshot of the newest on every connect, then each job that changed."""
    return all_jobs(context, caller, with_history=history)


def _resume_at(last_event_id: str | None, after: int) -> int:
    if last_event_id is None:
        return after
    if not last_event_id.isdecimal() or len(last_event_id) > 18:
        raise ServiceError(ErrorKind.INVALID_REQUEST, "Last-Event-ID must be the id of a former event of this stream.")
    return int(last_event_id)


async def _page_before(
    context: Context, job_id: str, before: LogPosition, count: int, wanted: LogFilter
) -> dict[str, Any]:
    items, earlier = await run_in(SEARCHES, context.logs.tail, job_id, before, count, wanted)
    return _log_page(items, before, earlier, has_more=True)


def _log_page(
    items: list[dict[str, Any]], position: LogPosition, earlier: LogPosition | None, *, has_more: bool
) -> dict[str, Any]:
    is_first = earlier is None or earlier == LogPosition()
    return {"items": items, "next": str(position), "has_more": has_more, "earlier": None if is_first else str(earlier)}


def _log_position(text: str | None) -> LogPosition | None:
    return None if text is None else _parse_position(text)


def _parse_position(text: str) -> LogPosition:
    try:
        return LogPosition.parse(text)
    except ValueError as error:
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"{error}.") from None


def _moment(since: datetime | None) -> datetime | None:
    # Years near the ends of the calendar overflow when an offset is taken off.
    if since is not None and not 1970 <= since.year < 9000:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, f"since takes a time of now or earlier, got the year {since.year}."
        )
    return since


def _ranks(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) < 7 for word in words):
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"rank takes numbers separated by commas, got {text[:80]!r}.")
    return frozenset(int(word) for word in words)
