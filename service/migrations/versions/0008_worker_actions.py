"""actions on single workers, and nodes that take no work"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("desired_actions", JSON, server_default="[]", nullable=False))
    op.add_column("jobs", sa.Column("last_action", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("avoid_nodes", JSON, server_default="[]", nullable=False))
    op.add_column("clusters", sa.Column("node_marks", JSON, server_default="{}", nullable=False))
    op.create_table(
        "worker_actions",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("worker_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("node_id", sa.String(length=64), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_worker_actions_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_worker_actions")),
    )
    op.create_index("ix_worker_actions_job_id_worker_id", "worker_actions", ["job_id", "worker_id"])


def downgrade() -> None:
    op.drop_index("ix_worker_actions_job_id_worker_id", table_name="worker_actions")
    op.drop_table("worker_actions")
    op.drop_column("clusters", "node_marks")
    op.drop_column("jobs", "avoid_nodes")
    op.drop_column("jobs", "last_action")
    op.drop_column("jobs", "desired_actions")
