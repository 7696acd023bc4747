"""deleted jobs, what the retention dropped, quotas, jobs that overtook others"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)
DELETED = sa.text("deleted_at IS NOT NULL")
HISTORIES = ("logs", "metrics", "events")

# Columns are added one by one: a batch would copy the table, and drop what refers to it on SQLite.
COLUMNS: tuple[tuple[str, str, Any, dict[str, Any]], ...] = (
    ("jobs", "deleted_at", MOMENT, {"nullable": True}),
    ("jobs", "keeps_checkpoints", sa.Boolean(), {"nullable": False, "server_default": sa.false()}),
    ("jobs", "logs_dropped_at", MOMENT, {"nullable": True}),
    ("jobs", "metrics_dropped_at", MOMENT, {"nullable": True}),
    ("jobs", "events_dropped_at", MOMENT, {"nullable": True}),
    ("jobs", "is_backfilled", sa.Boolean(), {"nullable": False, "server_default": sa.false()}),
    ("jobs", "log_bytes", sa.BigInteger(), {"nullable": False, "server_default": "0"}),
    ("jobs", "log_lines_dropped", sa.BigInteger(), {"nullable": False, "server_default": "0"}),
    ("jobs", "metric_rows_dropped", sa.BigInteger(), {"nullable": False, "server_default": "0"}),
    ("projects", "max_slots", sa.BigInteger(), {"nullable": True}),
    ("projects", "max_queued", sa.BigInteger(), {"nullable": True}),
    ("projects", "max_priority", sa.BigInteger(), {"nullable": True}),
)


def _kept(what: str) -> sa.TextClause:
    return sa.text(f"finished_at IS NOT NULL AND {what}_dropped_at IS NULL")


def upgrade() -> None:
    for table, name, kind, options in COLUMNS:
        op.add_column(table, sa.Column(name, kind, **options))
    op.create_index("ix_jobs_deleted_at", "jobs", ["deleted_at"], sqlite_where=DELETED, postgresql_where=DELETED)
    for what in HISTORIES:
        kept = _kept(what)
        op.create_index(f"ix_jobs_{what}_kept", "jobs", ["finished_at"], sqlite_where=kept, postgresql_where=kept)


def downgrade() -> None:
    # What was marked would come back half removed.
    op.execute("DELETE FROM jobs WHERE deleted_at IS NOT NULL")
    for what in HISTORIES:
        op.drop_index(f"ix_jobs_{what}_kept", "jobs")
    op.drop_index("ix_jobs_deleted_at", "jobs")
    for table, name, _, _ in reversed(COLUMNS):
        op.drop_column(table, name)
