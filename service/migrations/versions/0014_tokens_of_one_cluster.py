"""a cluster's token may be bound to its cluster"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

tokens = sa.table("tokens", sa.column("cluster_id", sa.String), sa.column("revoked_at", sa.DateTime(timezone=True)))
rollups = sa.table(
    "metric_rollups",
    sa.column("job_id", sa.String),
    sa.column("level", sa.BigInteger),
    sa.column("bucket", sa.BigInteger),
    sa.column("extremes", sa.JSON().with_variant(JSONB(), "postgresql")),
)


def upgrade() -> None:
    op.add_column("tokens", sa.Column("cluster_id", sa.String(length=63), nullable=True))


def downgrade() -> None:
    # Before, every such token was good for all clusters, which these were not meant for.
    bound = tokens.c.cluster_id.is_not(None) & tokens.c.revoked_at.is_(None)
    op.execute(tokens.update().where(bound).values(revoked_at=datetime.now(UTC)))
    op.drop_column("tokens", "cluster_id")
    for job_id in op.get_bind().scalars(sa.select(rollups.c.job_id).distinct()).all():
        _leave_sums_out(op.get_bind(), job_id)


def _leave_sums_out(connection: sa.Connection, job_id: str) -> None:
    """Of each bucket keep the least and the greatest: the release before reads no third part."""
    of_job = sa.select(rollups.c.level, rollups.c.bucket, rollups.c.extremes).where(rollups.c.job_id == job_id)
    rows: list[dict[str, Any]] = [
        {"of_level": level, "of_bucket": bucket, "extremes": {name: parts[:2] for name, parts in extremes.items()}}
        for level, bucket, extremes in connection.execute(of_job)
        if any(len(parts) > 2 for parts in extremes.values())
    ]
    if rows:
        is_it = (rollups.c.level == sa.bindparam("of_level")) & (rollups.c.bucket == sa.bindparam("of_bucket"))
        connection.execute(sa.update(rollups).where(rollups.c.job_id == job_id, is_it), rows)
