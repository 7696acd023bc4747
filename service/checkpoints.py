"""Checkpoints as their events told, and their files from the storage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.context import Context
from service.errors import not_found
from service.jobs import find
from service.models import Checkpoint
from service.storage import ObjectFile, find_stored
from service.views import checkpoint_json


async def list_of_job(context: Context, reference: str) -> list[dict[str, Any]]:
    """A job's checkpoints that were not deleted, newest first.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        job = await find(session, reference)
        statement = select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.deleted_at.is_(None))
        newest_first = statement.order_by(Checkpoint.attempt.desc(), Checkpoint.step.desc())
        return [checkpoint_json(checkpoint) for checkpoint in await session.scalars(newest_first)]


async def get(context: Context, checkpoint_id: str) -> dict[str, Any]:
    """One checkpoint.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        return checkpoint_json(await _find(session, checkpoint_id))


async def find_file(context: Context, checkpoint_id: str, name: str) -> tuple[Path | ObjectFile, str]:
    """A file of a checkpoint, and what to call it.

    The asked name is only compared with the names that the manifest listed; the path is built from those, which ingest
    let in as plain file names only.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        checkpoint = await _find(session, checkpoint_id)
    listed = next((item["name"] for item in checkpoint.files if item["name"] == name), None)
    if listed is None:
        raise not_found("file of the checkpoint", name[:200])
    where = context.settings.storage_uri / checkpoint.job_id / checkpoint.checkpoint_id / listed
    found = await asyncio.to_thread(find_stored, where)
    if found is None:
        raise not_found("file in storage", f"{checkpoint.checkpoint_id}/{listed}")
    return found, f"{checkpoint.checkpoint_id}-{listed}"


async def _find(session: AsyncSession, checkpoint_id: str) -> Checkpoint:
    found = await session.get(Checkpoint, checkpoint_id) if "\x00" not in checkpoint_id else None
    if found is None or found.deleted_at is not None:
        raise not_found("checkpoint", checkpoint_id[:80])
    return found
