"""What people want of a job: another size, a pause, an end, a checkpoint. One call is one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import FINAL, Status
from rubato.wire.units import plural
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.events import append_event
from service.jobs import find
from service.models import AuditEntry, Cluster, Event, Job
from service.notify import ALL_JOBS, SCHEDULER, desired_topic, job_topic, notify
from service.requests import Asked, answer_once, check_edition
from service.restarts import restart_note, restarts_to_scale
from service.scheduling.capacity import largest_fit
from service.scheduling.observe import cluster_view, shape_of
from service.states import WITH_CONTROLLER, settle_status
from service.views import job_json


@dataclass(frozen=True)
class Changed:
    """A job after a request, and whether the request changed it."""

    job: dict[str, Any]
    has_changed: bool


async def scale(context: Context, reference: str, workers: int, *, asked: Asked) -> Changed:
    """Want another number of workers.

    Raises:
        ServiceError: not_found, job_final, out_of_bounds, precondition_failed.
    """

    async def change(session: AsyncSession, job: Job, now: datetime) -> bool:
        refuse_final(job, "scaled")
        if not job.min_workers <= workers <= job.max_workers:
            message = (
                f"workers must lie in {job.min_workers}..{job.max_workers} (workers.min..workers.max of the spec; "
                f"`rubato update` changes them), got {workers}."
            )
            finding = Finding("workers", f"must lie in {job.min_workers}..{job.max_workers}, got {workers}")
            raise ServiceError(ErrorKind.OUT_OF_BOUNDS, message, findings=[finding])
        if workers == job.desired_workers:
            return False
        before = job.desired_workers
        job.desired_workers = workers
        job.wished_at = now
        note = await restart_note(session, job) if job.status in WITH_CONTROLLER else None
        message = " ".join(
            filter(None, (f"{asked.actor} asked for {plural(workers, 'worker')} instead of {before}.", note))
        )
        job.message = note or job.message
        data = {"from": before, "to": workers, "by": asked.actor}
        await record_wish(session, job, EventKind.SCALE_REQUESTED, message, data, actor=asked.actor, now=now)
        await explain_capacity(session, job)
        return True

    return await change_job(context, reference, asked, ["scale", workers], change)


async def pause(context: Context, reference: str, *, force: bool = False, asked: Asked) -> Changed:
    """Want the job paused, with a checkpoint first; forced, without waiting for one, nor for a cluster that is silent.

    Asked again it may be forced.

    Raises:
        ServiceError: not_found, job_final, conflict, precondition_failed.
    """

    async def change(session: AsyncSession, job: Job, now: datetime) -> bool:
        refuse_final(job, "paused")
        if job.status == Status.STOPPING:
            raise ServiceError(ErrorKind.CONFLICT, f"{job.name} is being cancelled; a cancel cannot be taken back.")
        if job.desired_run == "pause" and (job.status == Status.PAUSED or job.desired_force or not force):
            return False
        job.desired_run = "pause"
        job.desired_force = force
        because = f"{asked.actor} {'forced' if force else 'asked for'} a pause"
        data = {"by": asked.actor, "force": force}
        await record_wish(session, job, EventKind.PAUSE_REQUESTED, f"{because}.", data, actor=asked.actor, now=now)
        await settle_status(session, job, now=now, because=because)
        return True

    return await change_job(context, reference, asked, ["pause", *(["force"] if force else [])], change)


async def resume(context: Context, reference: str, *, asked: Asked) -> Changed:
    """Let a paused job queue again; it goes on from its last checkpoint.

    Raises:
        ServiceError: not_found, job_final, conflict, precondition_failed.
    """

    async def change(session: AsyncSession, job: Job, now: datetime) -> bool:
        refuse_final(job, "resumed")
        if job.status in (Status.PAUSING, Status.STOPPING):
            raise ServiceError(
                ErrorKind.CONFLICT,
                f"{job.name} is {job.status}; resume is possible once it is paused. A pause on a cluster that is gone "
                f"ends when it is forced (`rubato pause {job.name} --force`)."
                if job.status == Status.PAUSING
                else f"{job.name} is {job.status}; a cancel cannot be taken back.",
            )
        if job.desired_run == "run":
            return False
        job.desired_run = "run"
        job.desired_force = False
        because = f"{asked.actor} asked to resume"
        data = {"by": asked.actor}
        await record_wish(session, job, EventKind.RESUME_REQUESTED, f"{because}.", data, actor=asked.actor, now=now)
        await settle_status(session, job, now=now, because=because)
        return True

    return await change_job(context, reference, asked, ["resume"], change)


async def cancel(
    context: Context, reference: str, *, force: bool, grace_s: float | None = None, asked: Asked
) -> Changed:
    """Want the job ended, its workers within a grace; an acknowledged cancel wins over every other outcome.

    Asked again it may be forced, or get another grace, which counts from the first time.

    Raises:
        ServiceError: not_found, job_final, precondition_failed.
    """

    async def change(session: AsyncSession, job: Job, now: datetime) -> bool:
        if job.status == Status.CANCELLED:
            return False
        refuse_final(job, "cancelled")
        is_new_grace = grace_s is not None and grace_s != job.desired_grace_s
        if job.desired_run == "stop" and (job.desired_force or not (force or is_new_grace)):
            return False
        job.desired_run = "stop"
        job.desired_force = force
        job.desired_grace_s = grace_s if grace_s is not None else job.desired_grace_s
        job.stop_reason = job.stop_reason or Reason.CANCELLED_BY_USER.value
        of_spec = "with the grace of its spec"
        how = "at once" if force else of_spec if job.desired_grace_s is None else f"within {job.desired_grace_s:g} s"
        message = f"{asked.actor} asked to cancel the job {how}."
        data = {"by": asked.actor, "force": force, "grace_seconds": job.desired_grace_s}
        await record_wish(session, job, EventKind.CANCEL_REQUESTED, message, data, actor=asked.actor, now=now)
        because = f"{asked.actor} asked to cancel"
        await settle_status(session, job, now=now, reason=job.stop_reason, because=because)
        return True

    return await change_job(context, reference, asked, ["cancel", force, grace_s], change)


async def request_checkpoint(context: Context, reference: str, *, asked: Asked) -> Changed:
    """Want a checkpoint soon.

    Raises:
        ServiceError: not_found, job_final, conflict, precondition_failed.
    """

    async def change(session: AsyncSession, job: Job, now: datetime) -> bool:
        refuse_final(job, "checkpointed")
        possible = (Status.STARTING, Status.RUNNING, Status.RECOVERING)
        if job.status not in possible:
            raise ServiceError(
                ErrorKind.CONFLICT,
                f"{job.name} is {job.status}; a checkpoint is possible while it is {', '.join(possible)}.",
            )
        if restarts_to_scale(job):
            raise ServiceError(
                ErrorKind.CONFLICT,
                f"{job.name} runs under Ray Train, where the program alone decides when it reports a checkpoint.",
            )
        job.checkpoint_request += 1
        message = f"{asked.actor} asked for a checkpoint."
        data = {"by": asked.actor, "request": job.checkpoint_request}
        await record_wish(session, job, EventKind.CHECKPOINT_REQUESTED, message, data, actor=asked.actor, now=now)
        return True

    return await change_job(context, reference, asked, ["checkpoint"], change)


async def change_job(
    context: Context,
    reference: str,
    asked: Asked,
    request: list[Any],
    change: Callable[[AsyncSession, Job, datetime], Awaitable[bool]],
) -> Changed:
    """Change a job in one transaction, once for a key; `change` says whether there was anything to do.

    Raises:
        ServiceError: not_found, precondition_failed, idempotency_mismatch, and whatever `change` raises.
    """

    async def run(session: AsyncSession) -> dict[str, Any]:
        job = await find(session, reference, for_update=True)
        check_edition(job, asked.if_match)
        has_changed = await change(session, job, context.clock())
        return {"job": job_json(job, with_spec=True), "has_changed": has_changed}

    reply = await answer_once(context, asked, [reference, *request], run)
    return Changed(reply["job"], has_changed=reply["has_changed"])


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


async def explain_capacity(session: AsyncSession, job: Job) -> None:
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


def refuse_final(job: Job, done: str) -> None:
    """Refuse to change a job that has ended.

    Raises:
        ServiceError: job_final.
    """
    if Status(job.status) in FINAL:
        ended = f"{'was' if job.status == Status.CANCELLED else 'has'} {job.status}"
        raise ServiceError(ErrorKind.JOB_FINAL, f"{job.name} {ended}; only a job that has not ended can be {done}.")


async def record_wish(
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
    if kind not in (EventKind.SCALE_REQUESTED, EventKind.UPDATED):
        # The version is of what the controller is told; another number of workers only once it is granted.
        job.desired_version += 1
    job.revision += 1
    job.updated_at = now
    await session.flush()
    await append_event(session, job, kind, message, now=now, data=data)
    session.add(AuditEntry(time=now, actor=actor, action=str(kind), job_id=job.id, detail=data))
    notify(session, job_topic(job.id), desired_topic(job.id), ALL_JOBS, SCHEDULER)
