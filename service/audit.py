"""What people changed, for admins to read; what is older than the settings keep goes, the oldest first."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from service.clock import to_rfc3339
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.ids import is_id
from service.models import AuditEntry
from service.pages import cut, read_number
from service.people import storable

ACTIONS = frozenset(
    {
        *(
            str(kind)
            for kind in (
                EventKind.SUBMITTED,
                EventKind.UPDATED,
                EventKind.SCALE_REQUESTED,
                EventKind.PAUSE_REQUESTED,
                EventKind.RESUME_REQUESTED,
                EventKind.CANCEL_REQUESTED,
                EventKind.CHECKPOINT_REQUESTED,
                EventKind.DRAIN_REQUESTED,
                EventKind.KILL_REQUESTED,
                EventKind.CHECKPOINT_PINNED,
                EventKind.CHECKPOINT_UNPINNED,
                EventKind.CHECKPOINT_DELETED,
            )
        ),
        "job.deleted",
        "member.granted",
        "member.withdrawn",
        "node.marked",
        "package.stored",
        "project.created",
        "project.deleted",
        "project.updated",
        "secret.deleted",
        "secret.set",
        "token.created",
        "token.revoked",
        "user.created",
        "user.updated",
        "webhook.created",
        "webhook.deleted",
        "webhook.tested",
    }
)
"""What people do: events of jobs, and what has no event."""


async def list_entries(
    context: Context, *, actor: str, action: str, job_id: str, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the audit trail, newest first; empty filters take all.

    Raises:
        ServiceError: invalid_request (an unknown action, no id of a job, the cursor).
    """
    if action and action not in ACTIONS:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, f"There is no action {action!r}; there are {', '.join(sorted(ACTIONS))}."
        )
    if job_id and not is_id(job_id, "job"):
        raise ServiceError(
            ErrorKind.INVALID_REQUEST,
            f"job_id takes the id of a job, such as job_01jd..., got {job_id!r}; GET /api/v1/jobs/NAME tells the id of "
            "the newest job of a name, and `rubato audit --job NAME` looks it up.",
        )
    statement = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit + 1)
    for column, wanted in ((AuditEntry.actor, actor), (AuditEntry.action, action), (AuditEntry.job_id, job_id)):
        if wanted:
            statement = statement.where(column == storable(wanted))
    if cursor is not None:
        statement = statement.where(AuditEntry.id < read_number(cursor, "audit"))
    async with context.database.read() as session:
        rows = (await session.scalars(statement)).all()
    page, next_cursor = cut(rows, limit, lambda entry: entry.id, of="audit")
    items = [
        {
            "id": entry.id,
            "time": to_rfc3339(entry.time),
            "actor": entry.actor,
            "action": entry.action,
            "job_id": entry.job_id,
            "detail": entry.detail,
        }
        for entry in page
    ]
    return items, next_cursor


async def forget_entries(session: AsyncSession, before: datetime, limit: int) -> int:
    """Remove those of the first `limit` entries that were written before then; gives how many went.

    By their ids, which grow with time but for a clock that jumped: nothing else of it is read, nor needs an index.
    """
    first = select(AuditEntry.id).order_by(AuditEntry.id).limit(limit)
    gone = delete(AuditEntry).where(AuditEntry.id.in_(first), AuditEntry.time < before)
    done = await session.execute(gone.execution_options(synchronize_session=False))
    return max(0, int(done.rowcount))  # type: ignore[attr-defined]
