"""What people do with jobs: submit, find, scale, pause, resume, cancel, checkpoint. One call is one transaction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from rubato.errors import Finding, SpecError
from rubato.wire.events import EventKind
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json
from rubato.wire.status import FINAL, Status
from service.context import Context
from service.errors import ErrorKind, ServiceError, invalid_spec, not_found
from service.events import append_event
from service.ids import is_id, new_id
from service.models import AuditEntry, Checkpoint, Event, Job, Package, StoredReply
from service.notify import ALL_JOBS, SCHEDULER, desired_topic, job_topic, notify
from service.states import settle_status
from service.views import job_json

NOT_FINAL_STATUSES = tuple(sorted(set(Status) - FINAL))


@dataclass(frozen=True)
class Changed:
    """A job after a request, and whether the request changed it."""

    job: dict[str, Any]
    has_changed: bool


def read_spec(data: Any) -> JobSpec:
    """A valid spec.

    Raises:
        ServiceError: invalid_spec, with every finding.
    """
    try:
        spec = parse_spec(data)
    except SpecError as error:
        raise invalid_spec(error) from None
    if spec.name.startswith("job_"):
        finding = Finding("name", "must not begin with 'job_': ids begin so, and a job is found by id or name")
        raise invalid_spec(SpecError([finding]))
    return spec


async def submit(context: Context, spec: JobSpec, *, actor: str, idempotency_key: str | None = None) -> dict[str, Any]:
    """Store a new job, queued; the same key and spec give the stored reply again.

    Raises:
        ServiceError: name_taken, package_unknown, idempotency_mismatch, invalid_spec (unknown checkpoint).
    """
    resolved = spec_to_json(spec)
    try:
        return await _submit_once(context, spec, resolved, actor, idempotency_key)
    except IntegrityError:
        # Another replica took the name or the key between look and insert, and a unique index decided. The second look
        # finds its row, and says which it was.
        pass
    except ServiceError as error:
        # The name may have been taken by this very request, sent to another replica a moment before.
        if error.kind is not ErrorKind.NAME_TAKEN or idempotency_key is None:
            raise
    return await _submit_once(context, spec, resolved, actor, idempotency_key)


async def get(context: Context, reference: str) -> dict[str, Any]:
    """A job by id, or the newest of a name.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        return job_json(await find(session, reference), with_spec=True)


async def list_jobs(
    context: Context, *, statuses: Sequence[Status], text: str, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Jobs from the newest on, and the cursor of the next page."""
    statement = select(Job).options(defer(Job.spec)).order_by(Job.id.desc()).limit(limit + 1)
    if statuses:
        statement = statement.where(Job.status.in_(statuses))
    if text:
        statement = statement.where(Job.name.contains(text.lower(), autoescape=True))
    if cursor is not None:
        if not is_id(cursor, "job"):
            raise ServiceError(ErrorKind.INVALID_REQUEST, "cursor must be the next_cursor of a former page.")
        statement = statement.where(Job.id < cursor)
    async with context.database.read() as session:
        jobs = list((await session.scalars(statement)).all())
    more = len(jobs) > limit
    page = jobs[:limit]
    return [job_json(job) for job in page], page[-1].id if more else None


async def scale(context: Context, reference: str, workers: int, *, actor: str) -> Changed:
    """Want another number of workers.

    Raises:
        ServiceError: not_found, job_final, out_of_bounds.
    """
    now = context.clock()
    async with context.database.write() as session:
        job = await find(session, reference, for_update=True)
        _refuse_final(job, "scaled")
        if not job.min_workers <= workers <= job.max_workers:
            message = (
                f"workers must lie in {job.min_workers}..{job.max_workers} (workers.min..workers.max of the spec), "
                f"got {workers}."
            )
            finding = Finding("workers", f"must lie in {job.min_workers}..{job.max_workers}, got {workers}")
            raise ServiceError(ErrorKind.OUT_OF_BOUNDS, message, findings=[finding])
        if workers == job.desired_workers:
            return Changed(job_json(job, with_spec=True), has_changed=False)
        before = job.desired_workers
        job.desired_workers = workers
        await _wish(
            session,
            job,
            EventKind.SCALE_REQUESTED,
            f"{actor} asked for {workers} workers instead of {before}.",
            {"from": before, "to": workers, "by": actor},
            actor=actor,
            now=now,
        )
        return Changed(job_json(job, with_spec=True), has_changed=True)


async def pause(context: Context, reference: str, *, actor: str) -> Changed:
    """Want the job paused, with a checkpoint first.

    Raises:
        ServiceError: not_found, job_final, conflict.
    """
    now = context.clock()
    async with context.database.write() as session:
        job = await find(session, reference, for_update=True)
        _refuse_final(job, "paused")
        if job.status == Status.STOPPING:
            raise ServiceError(ErrorKind.CONFLICT, f"{job.name} is being cancelled; a cancel cannot be taken back.")
        if job.desired_run == "pause":
            return Changed(job_json(job, with_spec=True), has_changed=False)
        job.desired_run = "pause"
        await _wish(
            session, job, EventKind.PAUSE_REQUESTED, f"{actor} asked for a pause.", {"by": actor}, actor=actor, now=now
        )
        await settle_status(session, job, now=now, because=f"{actor} asked for a pause")
        return Changed(job_json(job, with_spec=True), has_changed=True)


async def resume(context: Context, reference: str, *, actor: str) -> Changed:
    """Let a paused job queue again; it goes on from its last checkpoint.

    Raises:
        ServiceError: not_found, job_final, conflict.
    """
    now = context.clock()
    async with context.database.write() as session:
        job = await find(session, reference, for_update=True)
        _refuse_final(job, "resumed")
        if job.status in (Status.PAUSING, Status.STOPPING):
            raise ServiceError(ErrorKind.CONFLICT, f"{job.name} is {job.status}; resume is possible once it is paused.")
        if job.desired_run == "run":
            return Changed(job_json(job, with_spec=True), has_changed=False)
        job.desired_run = "run"
        await _wish(
            session, job, EventKind.RESUME_REQUESTED, f"{actor} asked to resume.", {"by": actor}, actor=actor, now=now
        )
        await settle_status(session, job, now=now, because=f"{actor} asked to resume")
        return Changed(job_json(job, with_spec=True), has_changed=True)


async def cancel(context: Context, reference: str, *, force: bool, actor: str) -> Changed:
    """Want the job ended; an acknowledged cancel wins over every other outcome.

    Raises:
        ServiceError: not_found, job_final.
    """
    now = context.clock()
    async with context.database.write() as session:
        job = await find(session, reference, for_update=True)
        if job.status == Status.CANCELLED:
            return Changed(job_json(job, with_spec=True), has_changed=False)
        _refuse_final(job, "cancelled")
        if job.desired_run == "stop" and (job.desired_force or not force):
            return Changed(job_json(job, with_spec=True), has_changed=False)
        job.desired_run = "stop"
        job.desired_force = force
        how = "at once" if force else "with the grace of its spec"
        await _wish(
            session,
            job,
            EventKind.CANCEL_REQUESTED,
            f"{actor} asked to cancel the job {how}.",
            {"by": actor, "force": force},
            actor=actor,
            now=now,
        )
        await settle_status(session, job, now=now, reason="cancelled_by_user", because=f"{actor} asked to cancel")
        return Changed(job_json(job, with_spec=True), has_changed=True)


async def request_checkpoint(context: Context, reference: str, *, actor: str) -> Changed:
    """Want a checkpoint soon.

    Raises:
        ServiceError: not_found, job_final, conflict.
    """
    now = context.clock()
    async with context.database.write() as session:
        job = await find(session, reference, for_update=True)
        _refuse_final(job, "checkpointed")
        possible = (Status.STARTING, Status.RUNNING, Status.RECOVERING)
        if job.status not in possible:
            raise ServiceError(
                ErrorKind.CONFLICT,
                f"{job.name} is {job.status}; a checkpoint is possible while it is {', '.join(possible)}.",
            )
        job.checkpoint_request += 1
        await _wish(
            session,
            job,
            EventKind.CHECKPOINT_REQUESTED,
            f"{actor} asked for a checkpoint.",
            {"by": actor, "request": job.checkpoint_request},
            actor=actor,
            now=now,
        )
        return Changed(job_json(job, with_spec=True), has_changed=True)


async def has_checkpoint_since_request(session: AsyncSession, job_id: str) -> bool:
    """Whether a checkpoint was committed behind the last request for one."""
    requested = select(func.max(Event.position)).where(
        Event.job_id == job_id, Event.kind == str(EventKind.CHECKPOINT_REQUESTED)
    )
    committed = select(Event.position).where(
        Event.job_id == job_id,
        Event.kind == str(EventKind.CHECKPOINT_COMMITTED),
        Event.position > requested.scalar_subquery(),
    )
    return (await session.execute(committed.limit(1))).first() is not None


async def find(session: AsyncSession, reference: str, *, for_update: bool = False) -> Job:
    """A job by id, or the newest of a name; locked against other writers where it is to be changed.

    Raises:
        ServiceError: not_found.
    """
    if is_id(reference, "job"):
        statement = select(Job).where(Job.id == reference)
    else:
        statement = select(Job).where(Job.name == reference).order_by(Job.id.desc()).limit(1)
    if for_update:
        statement = statement.with_for_update()
    # NUL cannot stand in a text of PostgreSQL, nor in any name.
    job = None if "\x00" in reference else (await session.scalars(statement)).one_or_none()
    if job is None:
        raise not_found("job", reference)
    return job


async def _submit_once(
    context: Context, spec: JobSpec, resolved: dict[str, Any], actor: str, key: str | None
) -> dict[str, Any]:
    now = context.clock()
    async with context.database.write() as session:
        if key is not None:
            stored = await _stored_reply(session, actor, key, resolved)
            if stored is not None:
                return stored
        await _check_references(session, spec)
        job = await _insert_job(session, spec, resolved, actor=actor, now=now)
        reply = job_json(job, with_spec=True)
        if key is not None:
            digest = _digest(resolved)
            session.add(StoredReply(actor=actor, key=key, body_sha256=digest, reply=reply, created_at=now))
        notify(session, ALL_JOBS, SCHEDULER)
        return reply


def _refuse_final(job: Job, done: str) -> None:
    if Status(job.status) in FINAL:
        raise ServiceError(
            ErrorKind.JOB_FINAL, f"{job.name} has {job.status}; only a job that has not ended can be {done}."
        )


async def _wish(
    session: AsyncSession,
    job: Job,
    kind: EventKind,
    message: str,
    data: dict[str, Any],
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write a changed wish: its version, its event and its audit row."""
    job.desired_version += 1
    job.revision += 1
    job.updated_at = now
    await session.flush()
    await append_event(session, job, kind, message, now=now, data=data)
    session.add(AuditEntry(time=now, actor=actor, action=str(kind), job_id=job.id, detail=data))
    notify(session, job_topic(job.id), desired_topic(job.id), ALL_JOBS, SCHEDULER)


async def _insert_job(
    session: AsyncSession, spec: JobSpec, resolved: dict[str, Any], *, actor: str, now: datetime
) -> Job:
    taken = select(Job.id).where(Job.project == spec.project, Job.name == spec.name, Job.status.in_(NOT_FINAL_STATUSES))
    if (await session.execute(taken)).first() is not None:
        raise _name_taken(spec.name)
    job = Job(
        id=new_id("job", now),
        project=spec.project,
        name=spec.name,
        labels=dict(spec.labels),
        spec=resolved,
        priority=spec.scheduling.priority,
        min_workers=spec.workers.min,
        max_workers=spec.workers.upper,
        created_at=now,
        updated_at=now,
        queued_at=now,
        status=str(Status.QUEUED),
        message="waits for the scheduler",
        desired_workers=spec.workers.initial,
        latest_metrics={},
    )
    session.add(job)
    await session.flush()
    await append_event(session, job, EventKind.SUBMITTED, f"{actor} submitted the job.", now=now, data={"by": actor})
    session.add(AuditEntry(time=now, actor=actor, action=str(EventKind.SUBMITTED), job_id=job.id, detail={}))
    await session.refresh(job)
    return job


async def _check_references(session: AsyncSession, spec: JobSpec) -> None:
    if spec.package is not None and await session.get(Package, spec.package) is None:
        raise ServiceError(
            ErrorKind.PACKAGE_UNKNOWN,
            f"The package {spec.package[:12]}... was never uploaded; PUT it to /api/v1/packages/{{sha256}} first "
            "(rubato submit does).",
            findings=[Finding("package", "is not stored here")],
        )
    origin = spec.checkpoint.resume_from
    if origin is not None:
        found = await session.get(Checkpoint, origin[:40])
        if found is None or found.deleted_at is not None:
            finding = Finding("checkpoint.resume_from", f"there is no checkpoint {origin!r}; see rubato checkpoints ls")
            raise invalid_spec(SpecError([finding]))


async def _stored_reply(session: AsyncSession, actor: str, key: str, resolved: dict[str, Any]) -> dict[str, Any] | None:
    stored = await session.get(StoredReply, (actor, key))
    if stored is None:
        return None
    if stored.body_sha256 != _digest(resolved):
        raise ServiceError(
            ErrorKind.IDEMPOTENCY_MISMATCH,
            "This Idempotency-Key was used with another spec; use a fresh key for a new submit.",
        )
    return stored.reply


def _name_taken(name: str) -> ServiceError:
    return ServiceError(
        ErrorKind.NAME_TAKEN,
        f"A job named {name!r} has not ended yet; cancel it first, or choose another name.",
        findings=[Finding("name", "is taken by a job that has not ended")],
    )


def _digest(resolved: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()
