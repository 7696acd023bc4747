"""A job submitted again: the spec of an old one with some fields changed, from the start or from a checkpoint."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.jobs import find, insert, read_spec
from service.models import Job, newest_checkpoint, unindexed
from service.requests import Asked, answer_once
from service.updates import merge_patch, refuse_growth

LATEST = "latest"
_LONGEST_BASE = 58
"""Of the 63 characters of a name, so that a number fits behind."""
_NAMES_AT_ONCE, _MOST_NAMES_AT_ONCE = 16, 4096
_LONGEST_ORIGIN_BYTES = 100
"""What a number behind the name and the id of a checkpoint add."""


async def clone(
    context: Context, reference: str, overrides: dict[str, Any], from_checkpoint: str | None, *, asked: Asked
) -> dict[str, Any]:
    """Store a new job made of an old one, queued; the old one may have any status.

    Args:
        context: the service's parts.
        reference: id or name of the old job.
        overrides: a merge patch of its spec; without a name the new job is called as the old one, with a number.
        from_checkpoint: id of a checkpoint to begin from, or `latest` for the newest of the old job.
        asked: who asks.

    Raises:
        ServiceError: not_found, conflict (the job has no checkpoint yet), invalid_spec, name_taken, body_too_large.
    """

    async def change(session: AsyncSession) -> dict[str, Any]:
        # Locked: clones that are made at once must not choose the same name.
        source = await find(session, reference, for_update=True)
        data = merge_patch(source.spec, overrides)
        if "name" not in overrides:
            data["name"] = await _free_name(session, source.name, str(data.get("project", source.project)))
        if from_checkpoint is not None:
            origin = await _newest(session, source) if from_checkpoint == LATEST else from_checkpoint
            section = data.get("checkpoint") or {}
            if isinstance(section, dict):  # else the spec is refused below, by its finding
                data["checkpoint"] = {**section, "resume_from": origin}
        refuse_growth(source.spec, data, context.settings.max_spec_bytes, room_bytes=_LONGEST_ORIGIN_BYTES)
        return await insert(session, read_spec(data), caller=asked.caller, now=context.clock(), cloned_from=source.id)

    return await answer_once(context, asked, ["clone", reference, overrides, from_checkpoint], change)


async def _free_name(session: AsyncSession, name: str, project: str) -> str:
    """The name with the smallest number from 2 on that no job of the project has or had."""
    base = name[:_LONGEST_BASE].rstrip("-._")
    first, count = 2, _NAMES_AT_ONCE
    while True:
        # Whole names, which an index finds; more at once from time to time, for who has very many.
        names = [f"{base}-{number}" for number in range(first, first + count)]
        taken = select(Job.name).where(unindexed(Job.project) == project, Job.name.in_(names))
        left = set(names) - set((await session.scalars(taken)).all())
        if left:
            return next(name for name in names if name in left)
        first, count = first + count, min(2 * count, _MOST_NAMES_AT_ONCE)


async def _newest(session: AsyncSession, source: Job) -> str:
    found = await session.scalar(newest_checkpoint(source.id))
    if found is None:
        raise ServiceError(ErrorKind.CONFLICT, f"{source.name} has no checkpoint; leave from_checkpoint out.")
    return found.id
