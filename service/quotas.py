"""What a project may use: checked when jobs are submitted and changed, and shown beside what it uses.

How many slots its jobs hold at the same time is the scheduler's matter; see `service.scheduling.quota`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding, SpecError
from rubato.wire.spec import JobSpec
from service.errors import ErrorKind, ServiceError, invalid_spec
from service.models import IS_QUEUED, Job, Project, unindexed
from service.states import WITH_CONTROLLER

BOUNDED = frozenset({"scheduling.priority", "workers.min"})
"""Fields of a spec that a quota limits."""


async def find_for_submit(session: AsyncSession, name: str) -> Project | None:
    """A project that stays for the transaction: its deletion waits, and then finds what was added."""
    statement = select(Project).where(Project.name == name).with_for_update(read=True, key_share=True)
    return (await session.scalars(statement)).one_or_none()


def check_spec(project: Project, spec: JobSpec, fields: Collection[str] = BOUNDED) -> None:
    """Refuse what the project's jobs may not ask for.

    Raises:
        ServiceError: invalid_spec, with every finding.
    """
    bounds = (
        ("scheduling.priority", spec.scheduling.priority, project.max_priority),
        ("workers.min", spec.workers.min, project.max_slots),
    )
    findings = [
        Finding(path, f"may be {limit} at most by the quota of the project {project.name!r}, got {value}")
        for path, value, limit in bounds
        if path in fields and limit is not None and value > limit
    ]
    if findings:
        raise invalid_spec(SpecError(findings))


async def check_queue(session: AsyncSession, project: Project) -> None:
    """Refuse one job more in the queue than the project may have there.

    Raises:
        ServiceError: quota_exceeded.
    """
    if project.max_queued is None:
        return
    # Two submits at once must not both find the last place.
    locked = select(Project.name).where(Project.name == project.name).with_for_update(key_share=True)
    await session.execute(locked)
    queued = await _queued(session, project.name)
    if queued >= project.max_queued:
        raise ServiceError(
            ErrorKind.QUOTA_EXCEEDED,
            f"The project {project.name!r} has {queued} in the queue, and its quota is {project.max_queued}. Submit "
            "again when some of them have started, or ask an admin of the service for a larger quota.",
            extra={"queued": queued, "max_queued": project.max_queued},
        )


async def read_use(session: AsyncSession, project: str) -> dict[str, Any]:
    """What the project's jobs hold now."""
    granted = Job.granted_workers + Job.granted_standby
    held = Job.workers + Job.joining
    slots = select(func.sum(case((granted > held, granted), else_=held)))
    placed = slots.where(Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER), unindexed(Job.project) == project)
    return {"slots": int(await session.scalar(placed) or 0), "queued": await _queued(session, project)}


async def _queued(session: AsyncSession, project: str) -> int:
    return int(await session.scalar(select(func.count()).where(IS_QUEUED, unindexed(Job.project) == project)) or 0)
