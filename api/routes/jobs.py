"""Jobs: submit, find, and what a person wants of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request, Response
from fastapi.responses import JSONResponse

from api import schemas
from api.auth import Caller, JobReference, JobToDelete, Parts
from api.bodies import check_text, read_json, read_spec_data
from api.routes.asking import Asker, IdempotencyKey, Wait
from api.routes.errors import errors
from api.routes.pages import Cursor, History, PageLimit
from rubato.wire.events import EventKind
from rubato.wire.remarks import remarks_of
from rubato.wire.status import FINAL, Status
from service import clones, code, jobs, removal, updates, wishes
from service.attempts import list_attempts, list_workers
from service.clock import parse_rfc3339, to_rfc3339
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.events import list_events
from service.notify import job_topic
from service.pages import cut, read_number
from service.requests import Asked
from service.views import attempt_json
from service.wishes import Changed

router = APIRouter(prefix="/api/v1", tags=["jobs"])

_SPEC_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}
_PATCH_CONTENT = {kind: {"schema": {"type": "object"}} for kind in ("application/merge-patch+json", "application/json")}
_DONE: dict[int | str, dict[str, Any]] = {200: {"model": schemas.Job, "description": "Nothing to do, or done."}}


@router.post(
    "/jobs",
    status_code=201,
    response_model=schemas.Job,
    responses={200: {"model": schemas.DryRun}, **errors(409, 413, 415)},
    openapi_extra=_SPEC_BODY,
)
async def submit_job(
    request: Request,
    response: Response,
    context: Parts,
    caller: Caller,
    dry_run: bool = False,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Submit a job spec, JSON or YAML. With `dry_run` the resolved spec comes back and nothing is stored."""
    spec = jobs.read_spec(await read_spec_data(request, context.settings.max_spec_bytes))
    await code.check_program(context, spec)
    if dry_run:
        return JSONResponse({"spec": await jobs.check(context, spec, caller), "remarks": remarks_of(spec)})
    return _created(response, await jobs.submit(context, spec, asked=Asked(caller, idempotency_key)))


@router.get("/jobs", response_model=schemas.JobPage, response_model_exclude_unset=True, responses=errors())
async def list_jobs(
    context: Parts,
    caller: Caller,
    status: Annotated[str, Query(description="Statuses, separated by commas.")] = "",
    project: Annotated[str, Query(max_length=63)] = "",
    label: Annotated[list[str] | None, Query(description="NAME=VALUE; repeated: all of them.")] = None,
    q: Annotated[str, Query(max_length=63, description="Part of the name.")] = "",
    created_after: Annotated[str, Query(max_length=40, description="RFC 3339, such as 2026-01-31T12:00:00Z.")] = "",
    history: History = False,
    limit: PageLimit = 50,
    cursor: Cursor = None,
) -> Any:
    """Jobs, newest first; the next page begins at `next_cursor`."""
    for name, text in (("project", project), ("q", q), *(("label", one) for one in label or ())):
        check_text(text, name)
    wanted = jobs.JobFilter(_statuses(status, "status"), project, _labels(label or []), q, _moment(created_after))
    items, next_cursor = await jobs.list_jobs(context, caller, wanted, cursor=cursor, limit=limit, with_history=history)
    return {"items": items, "next_cursor": next_cursor}


@router.get("/jobs/{reference}", response_model=schemas.Job, responses=errors(404))
async def get_job(
    reference: JobReference,
    response: Response,
    context: Parts,
    wait: Wait = 0,
    for_: Annotated[str, Query(alias="for", description="Statuses to wait for, separated by commas.")] = "",
) -> Any:
    """A job by id, or the newest of a name. With `wait` it answers once the status is one of `for`, or final."""
    wanted = set(_statuses(for_, "for")) | FINAL
    job = await jobs.get(context, reference)
    if wait and job["status"] not in wanted:
        job = await _wait(context, job["id"], lambda seen: seen["status"] in wanted, wait)
    return _tagged(response, job)


@router.patch(
    "/jobs/{reference}",
    response_model=schemas.Job,
    responses=errors(404, 409, 412, 413, 415),
    openapi_extra={"requestBody": {"required": True, "content": _PATCH_CONTENT}},
)
async def update_job(
    reference: JobReference, request: Request, response: Response, context: Parts, asked: Asker
) -> Any:
    """Change labels, workers.min and max, limits and scheduling; a merge patch of the spec: null takes away.

    Training goes on meanwhile. Of a job that has ended only the labels can be changed.
    """
    patch = await read_json(request, "change", context.settings.max_spec_bytes, tuple(_PATCH_CONTENT))
    changed = await updates.update(context, reference, patch, asked=asked)
    return _tagged(response, changed.job)


@router.delete("/jobs/{reference}", status_code=204, response_class=Response, responses=errors(404, 409, 412, 503))
async def delete_job(
    reference: JobToDelete,
    context: Parts,
    asked: Asker,
    keep_checkpoints: Annotated[bool, Query(description="Leave the checkpoints on the storage.")] = False,
) -> Response:
    """Delete a job that has ended: it is gone at once, its rows, logs and checkpoints soon after.

    Sent again it changes nothing, by a name only while the deletion is under way: after that the name means the job
    before it, so programs send the id. 409 where it has not ended, where a job that has not ended begins from one of
    its checkpoints, and, unless these are kept, where one is pinned.
    """
    await removal.delete(context, reference, keep_checkpoints=keep_checkpoints, asked=asked)
    return Response(status_code=204)


@router.post(
    "/jobs/{reference}/clone", status_code=201, response_model=schemas.Job, responses=errors(404, 409, 413, 415)
)
async def clone_job(
    reference: JobReference,
    body: schemas.CloneRequest,
    response: Response,
    context: Parts,
    caller: Caller,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Submit the job again, with other values where `overrides` says so; its code is not uploaded again."""
    asked = Asked(caller, idempotency_key)
    return _created(response, await clones.clone(context, reference, body.overrides, body.from_checkpoint, asked=asked))


@router.post(
    "/jobs/{reference}/scale", status_code=202, response_model=schemas.Job, responses=_DONE | errors(404, 409, 412, 415)
)
async def scale_job(
    reference: JobReference,
    body: schemas.ScaleRequest,
    response: Response,
    context: Parts,
    asked: Asker,
    wait: Wait = 0,
) -> Any:
    """Want another number of workers; training goes on meanwhile. 200: nothing to change, or done within `wait`."""
    changed = await wishes.scale(context, reference, body.workers, asked=asked)

    def is_done(job: dict[str, Any]) -> bool:
        return bool(job["workers"] == job["desired_workers"] and not job["joining"]) or job["status"] in FINAL

    return await _answer(context, response, changed, is_done, wait)


@router.post(
    "/jobs/{reference}/pause", status_code=202, response_model=schemas.Job, responses=_DONE | errors(404, 409, 412, 415)
)
async def pause_job(
    reference: JobReference,
    response: Response,
    context: Parts,
    asked: Asker,
    body: Annotated[schemas.PauseRequest | None, Body()] = None,
    wait: Wait = 0,
) -> Any:
    """Checkpoint, then give the slots back until resume; with `force` also where no controller answers any more."""
    how = body or schemas.PauseRequest()
    changed = await wishes.pause(context, reference, force=how.force, asked=asked)
    return await _answer(context, response, changed, lambda job: job["status"] in FINAL | {Status.PAUSED}, wait)


@router.post(
    "/jobs/{reference}/resume",
    status_code=202,
    response_model=schemas.Job,
    responses=_DONE | errors(404, 409, 412),
)
async def resume_job(reference: JobReference, response: Response, context: Parts, asked: Asker, wait: Wait = 0) -> Any:
    """Queue a paused job again; it goes on from its last checkpoint."""
    changed = await wishes.resume(context, reference, asked=asked)
    return await _answer(context, response, changed, lambda job: job["status"] in FINAL | {Status.RUNNING}, wait)


@router.post(
    "/jobs/{reference}/cancel",
    status_code=202,
    response_model=schemas.Job,
    responses=_DONE | errors(404, 409, 412, 415),
)
async def cancel_job(
    reference: JobReference,
    response: Response,
    context: Parts,
    asked: Asker,
    body: Annotated[schemas.CancelRequest | None, Body()] = None,
    wait: Wait = 0,
) -> Any:
    """End the job; with `force` without its grace. Once acknowledged, no other outcome can win."""
    how = body or schemas.CancelRequest()
    changed = await wishes.cancel(context, reference, force=how.force, grace_s=how.grace_seconds, asked=asked)
    return await _answer(context, response, changed, lambda job: job["status"] in FINAL, wait)


@router.post(
    "/jobs/{reference}/checkpoint",
    status_code=202,
    response_model=schemas.Job,
    responses=_DONE | errors(404, 409, 412),
)
async def checkpoint_job(
    reference: JobReference, response: Response, context: Parts, asked: Asker, wait: Wait = 0
) -> Any:
    """Save a checkpoint soon. With `wait` it answers 200 once one was committed."""
    changed = await wishes.request_checkpoint(context, reference, asked=asked)
    if wait:
        job_id = changed.job["id"]

        async def look() -> bool:
            async with context.database.read() as session:
                return await wishes.has_checkpoint_since_request(session, job_id)

        if await context.hub.wait_until([job_topic(job_id)], look, bool, wait):
            response.status_code = 200
        return _tagged(response, await jobs.get(context, job_id))
    return _tagged(response, changed.job)


@router.get("/jobs/{reference}/workers", response_model=schemas.Items, responses=errors(404))
async def get_workers(reference: JobReference, context: Parts) -> Any:
    """The workers as the controller last reported them."""
    async with context.database.read() as session:
        return {"items": await list_workers(session, await jobs.find(session, reference))}


@router.get("/jobs/{reference}/attempts", response_model=schemas.AttemptPage, responses=errors(404))
async def get_attempts(reference: JobReference, context: Parts, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """The lives of the job's controller, in order; the next page begins at `next_cursor`."""
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
        rows = await list_attempts(session, job.id, after=read_number(cursor, "attempts"), limit=limit + 1)
    page, next_cursor = cut(rows, limit, lambda attempt: attempt.number, of="attempts")
    return {"items": [attempt_json(attempt) for attempt in page], "next_cursor": next_cursor}


@router.get("/jobs/{reference}/generations", response_model=schemas.GenerationPage, responses=errors(404))
async def get_generations(reference: JobReference, context: Parts, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """The memberships of the job, in order, as their events told; the next page begins at `next_cursor`."""
    async with context.database.read() as session:
        job = await jobs.find(session, reference)
        kind = EventKind.GENERATION_FORMED
        rows = await list_events(session, job.id, read_number(cursor, "generations"), limit + 1, kind=kind)
    page, next_cursor = cut(rows, limit, lambda event: event.position, of="generations")
    items = [{**event.data, "attempt": event.attempt, "time": to_rfc3339(event.time)} for event in page]
    return {"items": items, "next_cursor": next_cursor}


_LABEL = re.compile(r'[^="\\]+=.*', re.DOTALL)


def _labels(pairs: list[str]) -> dict[str, str]:
    # Names with these marks cannot be addressed in a document: SQLite takes them for the end of a path.
    wrong = [pair for pair in pairs if not _LABEL.fullmatch(pair)]
    if wrong:
        message = f"label must be NAME=VALUE, the name without quotes and backslashes; got {wrong[0][:80]!r}."
        raise ServiceError(ErrorKind.INVALID_REQUEST, message)
    return dict(pair.split("=", 1) for pair in pairs)


def _moment(text: str) -> datetime | None:
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, f"created_after must be a time such as 2026-01-31T12:00:00Z, got {text[:40]!r}."
        ) from None


def _statuses(text: str, name: str) -> list[Status]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    unknown = [word for word in words if word not in set(Status)]
    if unknown:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, f"{name} knows {', '.join(Status)}; got {', '.join(unknown)[:200]!r}."
        )
    return [Status(word) for word in words]


async def _answer(
    context: Context,
    response: Response,
    changed: Changed,
    is_done: Callable[[dict[str, Any]], bool],
    wait_s: float,
) -> dict[str, Any]:
    """200 where nothing was to be done or it is done; 202 while it goes on."""
    job = changed.job
    if changed.has_changed and wait_s:
        job = await _wait(context, job["id"], is_done, wait_s)
    if not changed.has_changed or (wait_s and is_done(job)):
        response.status_code = 200
    return _tagged(response, job)


def _tagged(response: Response, job: dict[str, Any]) -> dict[str, Any]:
    """The job, with its entity tag as a header too."""
    response.headers["ETag"] = job["etag"]
    return job


def _created(response: Response, job: dict[str, Any]) -> dict[str, Any]:
    response.headers["Location"] = f"/api/v1/jobs/{job['id']}"
    return _tagged(response, job)


async def _wait(
    context: Context, job_id: str, is_done: Callable[[dict[str, Any]], bool], wait_s: float
) -> dict[str, Any]:
    return await context.hub.wait_until([job_topic(job_id)], lambda: jobs.get(context, job_id), is_done, wait_s)
