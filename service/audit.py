"""What people changed, for admins to read."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from service.clock import to_rfc3339
from service.context import Context
from service.models import AuditEntry
from service.pages import cut, read_number
from service.people import storable


async def list_entries(
    context: Context, *, actor: str, action: str, job_id: str, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the audit trail, newest first; empty filters take all."""
    statement = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit + 1)
    for column, wanted in ((AuditEntry.actor, actor), (AuditEntry.action, action), (AuditEntry.job_id, job_id)):
        if wanted:
            statement = statement.where(column == storable(wanted))
    if cursor is not None:
        statement = statement.where(AuditEntry.id < read_number(cursor))
    async with context.database.read() as session:
        rows = (await session.scalars(statement)).all()
    page, next_cursor = cut(rows, limit, lambda entry: entry.id)
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
