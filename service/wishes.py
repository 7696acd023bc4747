"""What people want of a job: another size, a pause, an end, a checkpoint. One call is one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding
from rubato.wire.events import EventKind
from rubato.wire.status import FINAL, Status
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.events import append_event
from service.jobs import find
from service.models import AuditEntry, Cluster, Event, Job
from service.notify import ALL_JOBS, SCHEDULER, desired_topic, job_topic, notify
from service.scheduler import largest_fit
from service.scheduler_view import cluster_view, shape_of
from service.states import settle_status
from service.views import job_json


@dataclass(frozen=True)
class Changed:
    """A job after a request, and whether the request changed it."""

    job: dict[str, Any]
    has_changed: bool


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
        await _explain_capacity(session, job)
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


async def _explain_capacity(session: AsyncSession, job: Job) -> None:
    """Say at once what can only come later; the controller's next report says how it goes."""
    cluster = await session.get(Cluster, job.cluster_id) if job.cluster_id else None
    if cluster is None:
        return
    room = largest_fit(cluster_view(cluster), shape_of(job))
    if job.desired_workers > room:
        job.message = (
            f"{job.desired_workers} workers are wanted, and the cluster has slots for {room}; "
            "the rest join when there are more"
        )


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
