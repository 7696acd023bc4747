"""projects, users, memberships, tokens of users"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


@contextmanager
def _sessions_kept() -> Iterator[None]:
    """On SQLite a changed table is a copy, and dropping the old one deletes by cascade what refers to it."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        yield
        return
    rows = [dict(row) for row in connection.execute(sa.text("SELECT * FROM sessions")).mappings()]
    yield
    known = {row.id for row in connection.execute(sa.text("SELECT id FROM tokens"))}
    connection.execute(sa.text("DELETE FROM sessions"))
    columns = ("secret_hmac", "kind", "token_id", "created_at", "expires_at")
    insert = f"INSERT INTO sessions ({', '.join(columns)}) VALUES ({', '.join(f':{name}' for name in columns)})"
    for row in rows:
        if row["token_id"] in known:
            connection.execute(sa.text(insert), row)


def upgrade() -> None:
    projects = op.create_table(
        "projects",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_projects")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("is_admin", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
        sa.UniqueConstraint("name", name=op.f("uq_users_name")),
    )
    op.create_table(
        "memberships",
        sa.Column("user_id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["user_id"], ["users.id"], name=op.f("fk_memberships_user_id_users"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["project"], ["projects.name"], name=op.f("fk_memberships_project_projects"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("user_id", "project", name=op.f("pk_memberships")),
    )
    with _sessions_kept(), op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("user_id", sa.String(length=40), nullable=True))
        batch_op.create_foreign_key(
            batch_op.f("fk_tokens_user_id_users"), "users", ["user_id"], ["id"], ondelete="CASCADE"
        )
    op.create_index("ix_jobs_project_id", "jobs", ["project", "id"], unique=False)
    # Every job so far lies in it.
    now = sa.func.now() if op.get_bind().dialect.name == "postgresql" else sa.text("CURRENT_TIMESTAMP")
    op.execute(projects.insert().values(name="default", description="", created_at=now))


def downgrade() -> None:
    op.drop_index("ix_jobs_project_id", table_name="jobs")
    op.execute("DELETE FROM tokens WHERE user_id IS NOT NULL OR role = 'scraper'")
    with _sessions_kept(), op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_tokens_user_id_users"), type_="foreignkey")
        batch_op.drop_column("user_id")
    op.drop_table("memberships")
    op.drop_table("users")
    op.drop_table("projects")
