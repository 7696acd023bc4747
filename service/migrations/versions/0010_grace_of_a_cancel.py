"""a cancel may say how long the workers may take"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("desired_grace_s", sa.Float(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "desired_grace_s")
