"""a cluster's token may be bound to its cluster"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

tokens = sa.table("tokens", sa.column("cluster_id", sa.String), sa.column("revoked_at", sa.DateTime(timezone=True)))


def upgrade() -> None:
    op.add_column("tokens", sa.Column("cluster_id", sa.String(length=63), nullable=True))


def downgrade() -> None:
    # Before, every such token was good for all clusters, which these were not meant for.
    bound = tokens.c.cluster_id.is_not(None) & tokens.c.revoked_at.is_(None)
    op.execute(tokens.update().where(bound).values(revoked_at=datetime.now(UTC)))
    op.drop_column("tokens", "cluster_id")
