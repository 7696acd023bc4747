"""pending deliveries are found by webhook and time, tests before the others"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

PENDING = sa.text("status = 'pending'")
PENDING_TEST = sa.text("status = 'pending' AND kind = 'webhook.test'")


def upgrade() -> None:
    op.create_index(
        "ix_deliveries_pending",
        "deliveries",
        ["webhook_id", "next_at", "id"],
        unique=False,
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
    op.create_index(
        "ix_deliveries_pending_test",
        "deliveries",
        ["webhook_id"],
        unique=False,
        sqlite_where=PENDING_TEST,
        postgresql_where=PENDING_TEST,
    )
    op.drop_index("ix_deliveries_next_at", table_name="deliveries")


def downgrade() -> None:
    op.create_index(
        "ix_deliveries_next_at",
        "deliveries",
        ["next_at"],
        unique=False,
        sqlite_where=PENDING,
        postgresql_where=PENDING,
    )
    op.drop_index("ix_deliveries_pending_test", table_name="deliveries")
    op.drop_index("ix_deliveries_pending", table_name="deliveries")
