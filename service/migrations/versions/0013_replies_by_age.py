"""stored replies are found by their age"""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_stored_replies_created_at", "stored_replies", ["created_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_stored_replies_created_at", table_name="stored_replies")
