"""first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=63), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=True),
        sa.Column("detail", JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "clusters",
        sa.Column("id", sa.String(length=63), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("agent_lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("nodes", JSON, nullable=False),
        sa.Column("run_version", sa.BigInteger(), nullable=False),
        sa.Column("run_digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_clusters")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("project", sa.String(length=63), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("min_workers", sa.BigInteger(), nullable=False),
        sa.Column("max_workers", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("desired_run", sa.String(length=8), nullable=False),
        sa.Column("desired_workers", sa.BigInteger(), nullable=False),
        sa.Column("desired_version", sa.BigInteger(), nullable=False),
        sa.Column("desired_force", sa.Boolean(), nullable=False),
        sa.Column("checkpoint_request", sa.BigInteger(), nullable=False),
        sa.Column("observed_state", sa.String(length=16), nullable=True),
        sa.Column("phase", sa.String(length=32), nullable=True),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("joining", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("restarts", sa.BigInteger(), nullable=False),
        sa.Column("scalings", sa.BigInteger(), nullable=False),
        sa.Column("latest_metrics", JSON, nullable=False),
        sa.Column("result", JSON, nullable=True),
        sa.Column("failure", JSON, nullable=True),
        sa.Column("cluster_id", sa.String(length=63), nullable=True),
        sa.Column("granted_workers", sa.BigInteger(), nullable=False),
        sa.Column("queue_position", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("is_attempt_live", sa.Boolean(), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_pos", sa.BigInteger(), nullable=False),
        sa.Column("metric_pos", sa.BigInteger(), nullable=False),
        sa.Column("log_segment", sa.BigInteger(), nullable=False),
        sa.Column("log_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_name_id", ["name", "id"], unique=False)
        batch_op.create_index(
            "ix_jobs_status_not_final",
            ["status"],
            unique=False,
            sqlite_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
            postgresql_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
        )
        batch_op.create_index("ix_jobs_updated_at", ["updated_at"], unique=False)
        batch_op.create_index(
            "uq_jobs_project_name_not_final",
            ["project", "name"],
            unique=True,
            sqlite_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
            postgresql_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
        )

    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("holder", sa.String(length=63), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "packages",
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("num_files", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_packages")),
    )
    op.create_table(
        "stored_replies",
        sa.Column("actor", sa.String(length=63), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("body_sha256", sa.String(length=64), nullable=False),
        sa.Column("reply", JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name=op.f("pk_stored_replies")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("token_hmac", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("token_hmac", name=op.f("uq_tokens_token_hmac")),
    )
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("token_hmac", sa.String(length=64), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_report_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("is_confirmed_gone", sa.Boolean(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=True),
        sa.Column("last_batch", sa.BigInteger(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("workers", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_attempts_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_attempts")),
        sa.UniqueConstraint("token_hmac", name=op.f("uq_attempts_token_hmac")),
    )
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("checkpoint_id", sa.String(length=64), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("metrics", JSON, nullable=False),
        sa.Column("files", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_checkpoints_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_checkpoints")),
        sa.UniqueConstraint("job_id", "checkpoint_id", name=op.f("uq_checkpoints_job_id_checkpoint_id")),
    )
    op.create_table(
        "events",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("data", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_events_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "position", name=op.f("pk_events")),
        sa.UniqueConstraint("job_id", "attempt", "seq", name=op.f("uq_events_job_id_attempt_seq")),
    )
    op.create_table(
        "metrics",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("workers", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("values", JSON, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_metrics")),
        sa.UniqueConstraint("job_id", "position", name=op.f("uq_metrics_job_id_position")),
    )
    op.create_table(
        "sessions",
        sa.Column("secret_hmac", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=8), nullable=False),
        sa.Column("token_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_sessions_token_id_tokens"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("secret_hmac", name=op.f("pk_sessions")),
    )


def downgrade() -> None:
    op.drop_table("sessions")
    op.drop_table("metrics")
    op.drop_table("events")
    op.drop_table("checkpoints")
    op.drop_table("attempts")
    op.drop_table("tokens")
    op.drop_table("stored_replies")
    op.drop_table("packages")
    op.drop_table("leases")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_jobs_project_name_not_final",
            sqlite_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
            postgresql_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
        )
        batch_op.drop_index("ix_jobs_updated_at")
        batch_op.drop_index(
            "ix_jobs_status_not_final",
            sqlite_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
            postgresql_where=sa.text("status NOT IN ('succeeded', 'failed', 'cancelled')"),
        )
        batch_op.drop_index("ix_jobs_name_id")

    op.drop_table("jobs")
    op.drop_table("clusters")
    op.drop_table("audit")
