"""grants, preemption, deadlines and the order of the queue"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")
QUEUED = sa.text("status = 'queued'")
TIMED = sa.text("deadline_at IS NOT NULL")
PLACED = sa.text("placed_at IS NOT NULL")
POSITIONED = sa.text("queue_position IS NOT NULL")
WITH_CONTROLLER = ("starting", "running", "recovering", "pausing", "stopping")
AGEING = timedelta(minutes=1)

# Columns are added one by one: a batch would copy the table, and drop what refers to it on SQLite.
COLUMNS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("granted_standby", sa.BigInteger(), {"nullable": False, "server_default": "0"}),
    ("granted_at", sa.DateTime(timezone=True), {"nullable": True}),
    ("placed_at", sa.DateTime(timezone=True), {"nullable": True}),
    ("ran_seconds", sa.Float(), {"nullable": False, "server_default": "0"}),
    ("deadline_at", sa.DateTime(timezone=True), {"nullable": True}),
    ("preempted_at", sa.DateTime(timezone=True), {"nullable": True}),
    ("stop_reason", sa.String(length=64), {"nullable": True}),
    ("wished_at", sa.DateTime(timezone=True), {"nullable": True}),
    ("scheduling", sa.Text(), {"nullable": False, "server_default": ""}),
    ("ranked_at", sa.DateTime(timezone=True), {"nullable": True}),
    ("pause_seconds", sa.Float(), {"nullable": True}),
    ("rates", JSON, {"nullable": False, "server_default": "{}"}),
)

jobs = sa.table(
    "jobs",
    sa.column("id", sa.String),
    sa.column("status", sa.String),
    sa.column("priority", sa.BigInteger),
    sa.column("spec", JSON),
    sa.column("desired_run", sa.String),
    sa.column("min_workers", sa.BigInteger),
    sa.column("desired_workers", sa.BigInteger),
    sa.column("granted_workers", sa.BigInteger),
    sa.column("granted_standby", sa.BigInteger),
    sa.column("workers", sa.BigInteger),
    sa.column("joining", sa.BigInteger),
    sa.column("message", sa.Text),
    sa.column("scheduling", sa.Text),
    sa.column("stop_reason", sa.String),
    sa.column("queued_at", sa.DateTime(timezone=True)),
    sa.column("started_at", sa.DateTime(timezone=True)),
    sa.column("placed_at", sa.DateTime(timezone=True)),
    sa.column("granted_at", sa.DateTime(timezone=True)),
    sa.column("deadline_at", sa.DateTime(timezone=True)),
    sa.column("ranked_at", sa.DateTime(timezone=True)),
)


def upgrade() -> None:
    for name, kind, options in COLUMNS:
        op.add_column("jobs", sa.Column(name, kind, **options))
    _fill_queued()
    _fill_placed()
    op.create_index("ix_jobs_queue", "jobs", ["ranked_at", "id"], sqlite_where=QUEUED, postgresql_where=QUEUED)
    op.create_index("ix_jobs_deadline_at", "jobs", ["deadline_at"], sqlite_where=TIMED, postgresql_where=TIMED)
    op.create_index("ix_jobs_placed_at", "jobs", ["placed_at"], sqlite_where=PLACED, postgresql_where=PLACED)
    op.create_index(
        "ix_jobs_queue_position", "jobs", ["queue_position"], sqlite_where=POSITIONED, postgresql_where=POSITIONED
    )


def downgrade() -> None:
    # Before, spare workers were part of one grant.
    total = jobs.c.granted_workers + jobs.c.granted_standby
    op.execute(jobs.update().where(jobs.c.status.in_(WITH_CONTROLLER)).values(granted_workers=total))
    op.drop_index("ix_jobs_queue_position", "jobs")
    op.drop_index("ix_jobs_placed_at", "jobs")
    op.drop_index("ix_jobs_deadline_at", "jobs")
    op.drop_index("ix_jobs_queue", "jobs")
    for name, _, _ in reversed(COLUMNS):
        op.drop_column("jobs", name)


def _fill_queued() -> None:
    """The order of the queue, and how long each may wait."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.select(jobs.c.id, jobs.c.priority, jobs.c.queued_at, jobs.c.spec, jobs.c.message).where(
            jobs.c.status == "queued"
        )
    ).all()
    for row in rows:
        timeout_s = (row.spec.get("limits") or {}).get("queue_timeout")
        values = {
            "ranked_at": row.queued_at - row.priority * AGEING,
            "deadline_at": None if timeout_s is None else row.queued_at + timedelta(seconds=timeout_s),
            "scheduling": row.message,
        }
        connection.execute(jobs.update().where(jobs.c.id == row.id).values(values))


def _fill_placed() -> None:
    """What controllers were told becomes what was granted: a job that runs goes on with the workers that it has."""
    connection = op.get_bind()
    rows = connection.execute(sa.select(jobs).where(jobs.c.status.in_(WITH_CONTROLLER))).all()
    for row in rows:
        placed_at = max(moment for moment in (row.started_at, row.queued_at) if moment is not None)
        present = row.workers + row.joining or row.granted_workers
        workers = max(row.min_workers, min(row.desired_workers, present))
        spares = (row.spec.get("workers") or {}).get("standby", 0)
        values = {
            "placed_at": placed_at,
            "granted_at": placed_at,
            "ranked_at": row.queued_at - row.priority * AGEING,
            "granted_workers": workers,
            "granted_standby": max(0, min(spares, row.granted_workers - workers)),
            "stop_reason": "cancelled_by_user" if row.desired_run == "stop" else None,
        }
        connection.execute(jobs.update().where(jobs.c.id == row.id).values(values))
