"""Checkpoints as their events told, and their files on the storage: listed, downloaded, pinned, deleted."""

from __future__ import annotations

from datetime import datetime
from typing import Any, BinaryIO

from sqlalchemy import ColumnElement, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from rubato.wire.status import FINAL, Status
from rubato.wire.storage import PIN_NAME
from service import storage
from service.access import Principal
from service.context import Context
from service.errors import ErrorKind, ServiceError, not_found
from service.events import append_event
from service.jobs import find
from service.models import IS_NOT_FINAL, AuditEntry, Checkpoint, Job
from service.notify import ALL_JOBS, job_topic, notify
from service.pages import cut, read_pair
from service.restarts import refuse_foreign
from service.stored import ObjectFile, StoredFolder
from service.views import checkpoint_json


async def list_of_job(
    context: Context, reference: str, *, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of a job's checkpoints that were not deleted, newest first, and the cursor of the next one.

    Raises:
        ServiceError: not_found, invalid_request (the cursor).
    """
    after = read_pair(cursor, "checkpoints")
    async with context.database.read() as session:
        job = await find(session, reference)
        statement = select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.deleted_at.is_(None))
        if after is not None:
            attempt, step = after
            older = or_(Checkpoint.attempt < attempt, (Checkpoint.attempt == attempt) & (Checkpoint.step < step))
            statement = statement.where(older)
        newest_first = statement.order_by(Checkpoint.attempt.desc(), Checkpoint.step.desc()).limit(limit + 1)
        rows = (await session.scalars(newest_first)).all()
    page, next_cursor = cut(rows, limit, lambda row: f"{row.attempt}-{row.step}", of="checkpoints")
    pinned = await context.storage.pinned(job.id, [row.checkpoint_id for row in page])
    return [checkpoint_json(row, is_pinned=pinned[row.checkpoint_id]) for row in page], next_cursor


async def get(context: Context, checkpoint_id: str) -> dict[str, Any]:
    """One checkpoint.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        found = await _find(session, checkpoint_id)
    pinned = await context.storage.pinned(found.job_id, [found.checkpoint_id])
    return checkpoint_json(found, is_pinned=pinned[found.checkpoint_id])


async def name_of_newest(session: AsyncSession, job_id: str) -> str | None:
    """Of a job's checkpoints that nobody deleted, as far as it told; None: it has none."""
    told = select(Checkpoint.checkpoint_id).where(Checkpoint.job_id == job_id, Checkpoint.deleted_at.is_(None))
    return await session.scalar(told.order_by(Checkpoint.attempt.desc(), Checkpoint.step.desc()).limit(1))


async def project_of(context: Context, checkpoint_id: str) -> str:
    """The project of a checkpoint's job.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        found = await _find(session, checkpoint_id)
        return (await session.get_one(Job, found.job_id)).project


async def find_file(context: Context, checkpoint_id: str, name: str) -> tuple[BinaryIO | ObjectFile, str]:
    """A file of a checkpoint, and what to call it.

    The asked name is only compared with the names that the manifest listed; the path is built from those, which ingest
    let in as plain file names only.

    Raises:
        ServiceError: not_found, storage_unreachable.
    """
    async with context.database.read() as session:
        checkpoint = await _find(session, checkpoint_id)
    listed = next((item["name"] for item in checkpoint.files if item["name"] == name), None)
    if listed is None:
        raise ServiceError(ErrorKind.NOT_FOUND, f"The checkpoint {checkpoint.checkpoint_id} has no file {name!r}.")
    found = await context.storage.find(checkpoint.job_id, checkpoint.checkpoint_id, listed)
    if found is None:
        message = f"The file {listed!r} of the checkpoint {checkpoint.checkpoint_id} is not on the storage any more."
        raise ServiceError(ErrorKind.NOT_FOUND, message)
    return found, f"{checkpoint.checkpoint_id}-{listed}"


async def set_pinned(context: Context, checkpoint_id: str, *, is_pinned: bool, actor: str) -> dict[str, Any]:
    """Keep a checkpoint whatever the job's retention says, or leave it to that again.

    Raises:
        ServiceError: not_found, conflict (it is being deleted), storage_unreachable.
    """
    async with context.database.read() as session:
        found = await _find(session, checkpoint_id)
        refuse_foreign(await session.get_one(Job, found.job_id), found, "pinned")

    def change(folder: StoredFolder) -> tuple[bool, bool]:
        was_pinned = folder.exists(PIN_NAME)
        if is_pinned and not was_pinned:
            return storage.pin(folder), False
        if was_pinned and not is_pinned:
            folder.remove(PIN_NAME)
        return True, was_pinned

    is_there, was_pinned = await context.storage.change(found.job_id, found.checkpoint_id, change)
    if not is_there:
        raise ServiceError(
            ErrorKind.CONFLICT,
            f"Checkpoint {found.checkpoint_id} is not on the storage any more: the job's retention deleted it.",
        )
    if is_pinned != was_pinned:
        kind = EventKind.CHECKPOINT_PINNED if is_pinned else EventKind.CHECKPOINT_UNPINNED
        verb = "pinned" if is_pinned else "unpinned"
        async with context.database.write() as session:
            await _record(context, session, found, kind, f"{actor} {verb} checkpoint {found.checkpoint_id}.", actor)
    return checkpoint_json(found, is_pinned=is_pinned)


async def delete(context: Context, checkpoint_id: str, *, caller: Principal) -> None:
    """Delete a checkpoint and its files for good.

    Raises:
        ServiceError: not_found, conflict (it is pinned, or a job may need it), storage_unreachable.
    """
    async with context.database.write() as session:
        found = await _find(session, checkpoint_id)
        # Locked against jobs that are just submitted: they begin from it and keep it, or they find the mark.
        refuse_foreign(await find(session, found.job_id, for_update=True), found, "deleted by hand")
        await _refuse_needed(session, found, caller)
        await _mark(session, found, context.clock())
    # The files before the row: what is left where this is cut short can still be found, and deleted again.
    if not await context.storage.change(found.job_id, found.checkpoint_id, storage.delete):
        async with context.database.write() as session:
            await _mark(session, found, None)
        raise ServiceError(
            ErrorKind.CONFLICT, f"Checkpoint {found.checkpoint_id} is pinned; unpin it first (`rubato pin --undo`)."
        )
    async with context.database.write() as session:
        gone = (
            update(Checkpoint)
            .where(Checkpoint.id == found.id, Checkpoint.deleted_at.is_(None))
            .values(deleted_at=context.clock())
            .returning(Checkpoint.id)
            .execution_options(synchronize_session=False)
        )
        if (await session.execute(gone)).first() is not None:
            message = f"{caller.name} deleted checkpoint {found.checkpoint_id}."
            await _record(context, session, found, EventKind.CHECKPOINT_DELETED, message, caller.name)


async def _mark(session: AsyncSession, checkpoint: Checkpoint, began_at: datetime | None) -> None:
    """That its files may be going, or that all of them stay."""
    marked = update(Checkpoint).where(Checkpoint.id == checkpoint.id).values(deletion_began_at=began_at)
    await session.execute(marked.execution_options(synchronize_session=False))


async def _refuse_needed(session: AsyncSession, checkpoint: Checkpoint, caller: Principal) -> None:
    """Refuse to delete what a job goes back to, or begins from."""
    job = await session.get_one(Job, checkpoint.job_id)
    if Status(job.status) not in FINAL:
        newest = (
            select(Checkpoint.id)
            .where(Checkpoint.job_id == job.id, Checkpoint.deleted_at.is_(None))
            .order_by(Checkpoint.attempt.desc(), Checkpoint.step.desc())
            .limit(1)
        )
        if await session.scalar(newest) == checkpoint.id:
            raise ServiceError(
                ErrorKind.CONFLICT,
                f"Checkpoint {checkpoint.checkpoint_id} is the newest of {job.name}, which has not ended: it is what "
                "the job goes back to. Cancel the job first, or wait for a newer one.",
            )
    heir = await find_heir(session, Checkpoint.id == checkpoint.id, caller)
    if heir is not None:
        raise ServiceError(ErrorKind.CONFLICT, f"{heir} and has not ended.")


async def find_heir(session: AsyncSession, which: ColumnElement[bool], caller: Principal) -> str | None:
    """That a job which has not ended begins from one of these checkpoints; of a foreign one no name is told."""
    origin = Job.spec["checkpoint"]["resume_from"].as_string()
    begins = select(Job.name, Job.project, Checkpoint.checkpoint_id).join(Checkpoint, Checkpoint.id == origin)
    found = (await session.execute(begins.where(which, IS_NOT_FINAL).limit(1))).first()
    if found is None:
        return None
    name = found.name if caller.role_in(found.project) is not None else "A job of another project"
    return f"{name} begins from checkpoint {found.checkpoint_id}"


async def _record(
    context: Context, session: AsyncSession, checkpoint: Checkpoint, kind: EventKind, message: str, actor: str
) -> None:
    now = context.clock()
    job = await find(session, checkpoint.job_id, for_update=True)
    data = {"checkpoint_id": checkpoint.checkpoint_id, "by": actor}
    await append_event(session, job, kind, message, now=now, data=data)
    session.add(AuditEntry(time=now, actor=actor, action=str(kind), job_id=job.id, detail=data))
    notify(session, job_topic(job.id), ALL_JOBS)


async def _find(session: AsyncSession, checkpoint_id: str) -> Checkpoint:
    of_job = select(Checkpoint).join(Job, Job.id == Checkpoint.job_id)
    there = of_job.where(Checkpoint.id == checkpoint_id, Checkpoint.deleted_at.is_(None), Job.deleted_at.is_(None))
    found = (await session.scalars(there)).one_or_none() if "\x00" not in checkpoint_id else None
    if found is None:
        raise not_found("checkpoint", checkpoint_id[:80])
    return found
