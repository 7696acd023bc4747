"""the jobs that hold slots are found by an index in the order of their ids; those that ended are counted by one"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

PLACED = sa.text("placed_at IS NOT NULL")
ENDED = sa.text("status IN ('succeeded', 'failed', 'cancelled')")


def upgrade() -> None:
    op.create_index("ix_jobs_placed_id", "jobs", ["id"], unique=False, sqlite_where=PLACED, postgresql_where=PLACED)
    op.create_index(
        "ix_jobs_ended", "jobs", ["status", "deleted_at"], unique=False, sqlite_where=ENDED, postgresql_where=ENDED
    )
    op.drop_index("ix_jobs_placed_at", table_name="jobs")


def downgrade() -> None:
    op.create_index(
        "ix_jobs_placed_at", "jobs", ["placed_at"], unique=False, sqlite_where=PLACED, postgresql_where=PLACED
    )
    op.drop_index("ix_jobs_ended", table_name="jobs")
    op.drop_index("ix_jobs_placed_id", table_name="jobs")
