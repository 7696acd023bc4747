"""Attempts: the strictly growing number that fences a superseded controller, its lease, and the wishes it polls for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from rubato.errors import Finding
from rubato.wire.cluster import Acquired, AcquireRequest, Desired, Distrust, ProcessIdentity, RunWish
from rubato.wire.codec import from_json
from rubato.wire.events import EventKind
from rubato.wire.status import Status
from service.auth import Principal
from service.checkpoints import name_of_newest
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.events import append_event
from service.job_secrets import give, values_of
from service.jobs import find
from service.metrics import last_metric_step
from service.models import Attempt, Checkpoint, Cluster, Event, Job
from service.notify import ALL_JOBS, desired_topic, job_topic, notify
from service.states import WITH_CONTROLLER
from service.worker_actions import listed

LARGEST = 2**63 - 1
UNSURE_RETRY = timedelta(seconds=1)
MAX_DESIRED_WAIT_S = 25.0
"""Below the lease of 30 s, which each poll renews at its start."""


async def acquire(context: Context, request: AcquireRequest, principal: Principal) -> Acquired:
    """Grant the next attempt, once the predecessor cannot act any more.

    Raises:
        ServiceError: forbidden (another job's ticket), conflict (the job is not to run), lease_held, invalid_request.
    """
    if principal.job_id != request.job_id:
        raise ServiceError(ErrorKind.FORBIDDEN, "The ticket is for another job.")
    _check_numbers(request.process)
    asked_at = context.clock()
    async with context.database.write() as session:
        now = context.clock()
        job = await find(session, request.job_id, for_update=True)
        if Status(job.status) not in WITH_CONTROLLER:
            raise ServiceError(ErrorKind.CONFLICT, f"{job.name} is {job.status}; no controller is wanted.")
        predecessor = await session.get(Attempt, (job.id, job.attempt))
        if job.is_attempt_live and predecessor is not None:
            # As of before the writer's turn: while this request waited for it, so did the predecessor's reports.
            _check_predecessor_gone(context, job, predecessor, request, asked_at)
            predecessor.ended_at = now
            predecessor.outcome = "superseded"
        return await _grant(context, session, job, request.process, now)


async def desired(context: Context, job_id: str, principal: Principal, after: int, wait_s: float) -> Desired:
    """The wishes, as soon as their version is above `after` or the wait is over; renews the lease.

    Raises:
        ServiceError: forbidden, fenced.
    """
    is_renewed = False

    async def look() -> Desired:
        nonlocal is_renewed
        now = context.clock()
        if is_renewed:
            async with context.database.read() as session:
                return _wishes_of(await find_fenced(session, job_id, principal), now)
        async with context.database.write() as session:
            job = await find_fenced(session, job_id, principal, for_update=True)
            job.lease_expires_at = now + context.settings.lease
            wishes = _wishes_of(job, now)
        is_renewed = True
        return wishes

    return await context.hub.wait_until(
        [desired_topic(job_id)],
        look,
        lambda wishes: wishes.version > after,
        min(wait_s, MAX_DESIRED_WAIT_S),
        looks_at_end=False,
    )


async def secrets_for_workers(context: Context, job_id: str, principal: Principal) -> dict[str, str]:
    """The secrets of a live attempt by name; for the memory of its workers, and for nothing else.

    Raises:
        ServiceError: forbidden, fenced, conflict (one is not there any more), not_ready (its key is not).
    """
    async with context.database.read() as session:
        job = await find_fenced(session, job_id, principal)
        return await values_of(session, context.vault, job)


async def find_fenced(session: AsyncSession, job_id: str, principal: Principal, *, for_update: bool = False) -> Job:
    """The job of a live attempt.

    Raises:
        ServiceError: forbidden (another job's token), fenced (a newer attempt exists, or this one has ended).
    """
    if principal.job_id != job_id:
        raise ServiceError(ErrorKind.FORBIDDEN, "The token is for another job.")
    job = await find(session, job_id, for_update=for_update)
    if principal.attempt != job.attempt or not job.is_attempt_live:
        raise fenced(job, principal.attempt)
    return job


def fenced(job: Job, attempt: int) -> ServiceError:
    """The refusal of a stale attempt: its controller must exit without touching anything."""
    what = f"attempt {job.attempt} is the newest" if attempt != job.attempt else f"the job is {job.status}"
    return ServiceError(
        ErrorKind.FENCED,
        f"Attempt {attempt} of {job.id} no longer counts: {what}. Exit without touching storage.",
        extra={"attempt": job.attempt},
    )


async def confirm_gone(session: AsyncSession, job_id: str, attempt: int, cluster_id: str | None) -> None:
    """The cluster's agent saw that an attempt's process is dead: its successor need not wait for the lease.

    `cluster_id`: nothing changes unless the job is placed there; None: wherever it is.
    """
    statement = (
        update(Attempt)
        .where(Attempt.job_id == job_id, Attempt.number == attempt, Attempt.ended_at.is_(None))
        .where(Attempt.is_confirmed_gone.is_(False))
        .values(is_confirmed_gone=True)
    )
    if cluster_id is not None:
        statement = statement.where(Attempt.job_id.in_(select(Job.id).where(Job.cluster_id == cluster_id)))
    await session.execute(statement.execution_options(synchronize_session=False))


async def rearm_leases(session: AsyncSession, now: datetime, lease: timedelta) -> None:
    """Give every live attempt a whole lease: the silence was the service's own (a restart, a jump of its clock)."""
    statement = update(Job).where(Job.is_attempt_live.is_(True)).values(lease_expires_at=now + lease)
    await session.execute(statement.execution_options(synchronize_session=False))


async def list_attempts(session: AsyncSession, job_id: str, *, after: int, limit: int) -> list[Attempt]:
    """The attempts of a job behind one, in order."""
    statement = select(Attempt).where(Attempt.job_id == job_id, Attempt.number > after)
    return list((await session.scalars(statement.order_by(Attempt.number).limit(limit))).all())


async def list_workers(session: AsyncSession, job: Job) -> list[Any]:
    """The workers as they were last reported; none once the job has left the cluster."""
    if Status(job.status) not in WITH_CONTROLLER:
        return []
    return await _known_workers(session, job.id)


def is_newest_attempt() -> ColumnElement[bool]:
    """Joins a job with its newest attempt: by that one's row, for the job's own number jumps at a restore."""
    other = aliased(Attempt)
    newest = select(func.max(other.number)).where(other.job_id == Job.id).correlate(Job).scalar_subquery()
    return (Attempt.job_id == Job.id) & (Attempt.number == newest)


async def _known_workers(session: AsyncSession, job_id: str) -> list[Any]:
    """Those of the newest attempt: what it reported, or until it does what it was granted with."""
    newest = select(Attempt.workers).where(Attempt.job_id == job_id).order_by(Attempt.number.desc()).limit(1)
    return list((await session.scalars(newest)).one_or_none() or [])


async def forget_workers(session: AsyncSession, job_id: str) -> None:
    """Those of all attempts: after a restore the newest one is not that of the job's number."""
    told = update(Attempt).where(Attempt.job_id == job_id, Attempt.workers != []).values(workers=[])
    await session.execute(told.execution_options(synchronize_session=False))


async def _take_over_workers(session: AsyncSession, job_id: str) -> list[Any]:
    """They outlive their controller: until its successor has found them, its node is not empty.

    The attempt before keeps none: of many attempts it would be much.
    """
    workers = await _known_workers(session, job_id)
    await forget_workers(session, job_id)
    return workers


def _check_numbers(process: ProcessIdentity) -> None:
    """Refuse numbers that no database column holds, before they become its error."""
    findings = [
        Finding(f"process.{name}", f"must lie in 0..2**63-1, got {value}")
        for name, value in (("pid", process.pid), ("start_time", process.start_time))
        if not 0 <= value <= LARGEST
    ]
    if findings:
        raise ServiceError(ErrorKind.INVALID_REQUEST, "The process has numbers out of range.", findings=findings)


def _check_predecessor_gone(
    context: Context, job: Job, predecessor: Attempt, request: AcquireRequest, now: datetime
) -> None:
    same_boot = predecessor.boot_id == request.process.boot_id
    is_same_process = same_boot and (predecessor.pid, predecessor.start_time) == (
        request.process.pid,
        request.process.start_time,
    )
    # A process that asks again lost the reply to its first request: nobody else holds that attempt.
    seen_gone = same_boot and request.gone == predecessor.number
    if is_same_process or seen_gone or predecessor.is_confirmed_gone:
        return
    free_at = (job.lease_expires_at or now) + context.settings.lease_margin
    if free_at <= now:
        interval_s = context.settings.scheduler_interval.total_seconds()
        # Both clocks as of now: beside a steady clock of now, a moment before the wait looks like a jump.
        if context.heartbeat.why_unsure(context.clock(), interval_s) is None:
            return
        free_at = now + UNSURE_RETRY  # the silence may be our own: the loop gives the holder a new lease first
    raise ServiceError(
        ErrorKind.LEASE_HELD,
        f"Attempt {predecessor.number} may still be alive (pid {predecessor.pid} on node {predecessor.node_id}). "
        "Ask again with `gone` once that process is known to be dead, or after retry_after seconds.",
        extra={
            "predecessor": {
                "attempt": predecessor.number,
                "node_id": predecessor.node_id,
                "boot_id": predecessor.boot_id,
                "pid": predecessor.pid,
                "start_time": predecessor.start_time,
            },
            "retry_after": round((free_at - now).total_seconds(), 3),
        },
    )


async def _grant(
    context: Context, session: AsyncSession, job: Job, process: ProcessIdentity, now: datetime
) -> Acquired:
    job.attempt += 1
    token = context.authority.attempt_token(job.id, job.attempt)
    job.is_attempt_live = True
    job.lease_expires_at = now + context.settings.lease
    job.observed_state = None
    job.revision += 1
    job.updated_at = now
    attempt = Attempt(
        job_id=job.id,
        number=job.attempt,
        token_hmac=context.authority.digest(token),
        node_id=process.node_id,
        boot_id=process.boot_id,
        pid=process.pid,
        start_time=process.start_time,
        granted_at=now,
        workers=await _take_over_workers(session, job.id),
    )
    session.add(attempt)
    await give(session, job, job.attempt)
    cluster = await session.get(Cluster, job.cluster_id) if job.cluster_id else None
    job.avoid_nodes = sorted(cluster.node_marks) if cluster is not None else []
    await session.flush()
    await append_event(
        session,
        job,
        EventKind.ATTEMPT_ACQUIRED,
        f"Attempt {job.attempt} was acquired by process {process.pid}.",
        now=now,
        data={"attempt": job.attempt, "node": process.node_id, "pid": process.pid},
        attempt=job.attempt,
    )
    notify(session, job_topic(job.id), desired_topic(job.id), ALL_JOBS)
    return Acquired(
        attempt=job.attempt,
        token=token,
        job_name=job.name,
        spec=await _spec_for_controller(session, job),
        storage=context.settings.storage,
        desired=_wishes_of(job, now),
        resume_step=job.step,
        restarts=job.restarts,
        scalings=job.scalings,
        last_step=await last_metric_step(session, job.id),
        distrusted=await _list_distrusted(session, job.id),
        newest_checkpoint=await name_of_newest(session, job.id) or "",
    )


async def _list_distrusted(session: AsyncSession, job_id: str) -> tuple[Distrust, ...]:
    """Which checkpoints the controllers so far found to be wrong, in order."""
    told = await session.scalars(
        select(Event.data).where(Event.job_id == job_id, Event.kind == EventKind.DIVERGED).order_by(Event.position)
    )
    return tuple(from_json(Distrust, data["distrusted"]) for data in told if data.get("distrusted"))


async def _spec_for_controller(session: AsyncSession, job: Job) -> dict[str, Any]:
    """The spec, where `checkpoint.resume_from` is the checkpoint's folder below the storage root instead of its id."""
    origin = job.spec.get("checkpoint", {}).get("resume_from")
    checkpoint = await session.get(Checkpoint, origin) if origin else None
    if checkpoint is None:
        return job.spec
    folder = f"{checkpoint.job_id}/{checkpoint.checkpoint_id}"
    return {**job.spec, "checkpoint": {**job.spec["checkpoint"], "resume_from": folder}}


def _wishes_of(job: Job, now: datetime) -> Desired:
    """What the controller is told: never more workers than the scheduler gave it slots for."""
    wishes: tuple[RunWish, ...] = ("run", "pause", "stop")
    run = next(wish for wish in wishes if wish == job.desired_run)
    return Desired(
        version=job.desired_version,
        run="pause" if run == "run" and job.preempted_at is not None else run,
        workers=job.granted_workers,
        standby=job.granted_standby,
        checkpoint_request=job.checkpoint_request,
        force=job.desired_force,
        grace_s=job.desired_grace_s,
        actions=tuple(action.told(now) for action in listed(job.desired_actions)),
        avoid_nodes=tuple(job.avoid_nodes),
    )
