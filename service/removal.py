"""Deleting a job that has ended: a mark in one transaction, and it is there for nobody; `sweep` does the rest."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.status import FINAL, Status
from service.checkpoints import find_heir, name_of_newest
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.jobs import find
from service.models import AuditEntry, Checkpoint, Job
from service.notify import ALL_JOBS, SWEEP, job_topic, notify
from service.requests import Asked, check_edition


async def delete(context: Context, reference: str, *, keep_checkpoints: bool, asked: Asked) -> None:
    """Delete a job. A second time, by its id or its name, while the first is under way, changes nothing.

    Raises:
        ServiceError: not_found, precondition_failed, conflict (it has not ended, a job begins from one of its
            checkpoints, or one is pinned and not to be kept), storage_unreachable.
    """
    async with context.database.read() as session:
        job = await find(session, reference, with_deleted=True)
        if job.deleted_at is not None:
            context.hub.publish((SWEEP,))
            return
        _refuse_unfinished(job)
        check_edition(job, asked.if_match)
        is_told_of = await name_of_newest(session, job.id) is not None
    if not keep_checkpoints:
        # Outside of the transaction: the storage may take its time. What is pinned after this look, stays all the same.
        _refuse_pinned(job, await context.storage.pinned_of(job.id, is_told_of=is_told_of))
    async with context.database.write() as session:
        job = await find(session, job.id, for_update=True, with_deleted=True)
        if job.deleted_at is not None:
            return
        check_edition(job, asked.if_match)
        await _refuse_origin(session, job, asked)
        now = context.clock()
        job.deleted_at = job.updated_at = now
        job.keeps_checkpoints = keep_checkpoints
        job.revision += 1
        detail = {"name": job.name, "project": job.project, "status": job.status, "keep_checkpoints": keep_checkpoints}
        session.add(AuditEntry(time=now, actor=asked.actor, action="job.deleted", job_id=job.id, detail=detail))
        notify(session, job_topic(job.id), ALL_JOBS, SWEEP)


def _refuse_unfinished(job: Job) -> None:
    if Status(job.status) not in FINAL:
        raise ServiceError(
            ErrorKind.CONFLICT,
            f"{job.name} is {job.status}; only a job that has ended can be deleted. Cancel it first "
            f"(`rubato cancel {job.name} --wait`).",
        )


def _refuse_pinned(job: Job, pinned: list[str]) -> None:
    if pinned:
        those = f"Checkpoint {pinned[0]}" if len(pinned) == 1 else f"{len(pinned)} checkpoints, {pinned[0]} among them,"
        raise ServiceError(
            ErrorKind.CONFLICT,
            f"{those} of {job.name} {'is' if len(pinned) == 1 else 'are'} pinned. Unpin first (`rubato pin --undo`), "
            "or delete the job with keep_checkpoints=true (`rubato delete --keep-checkpoints`).",
            extra={"pinned": pinned},
        )


async def _refuse_origin(session: AsyncSession, job: Job, asked: Asked) -> None:
    """Refuse where a job that has not ended begins from one of the checkpoints: it looks for it by its row."""
    heir = await find_heir(session, Checkpoint.job_id == job.id, asked.caller)
    if heir is not None:
        raise ServiceError(
            ErrorKind.CONFLICT, f"{heir} of {job.name} and has not ended; wait for it, or cancel it first."
        )
