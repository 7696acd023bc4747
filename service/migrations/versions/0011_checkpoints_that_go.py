"""a checkpoint whose files are being deleted is marked"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("checkpoints", sa.Column("deletion_began_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("checkpoints", "deletion_began_at")
