"""The tables of jobs and of what they leave: attempts, events, metrics, checkpoints, packages."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    Index,
    Select,
    String,
    UniqueConstraint,
    false,
    literal_column,
    select,
    text,
)
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column, validates

from service.models.base import Base
from service.scheduling.view import ranked_at

_FINAL = ("'succeeded'", "'failed'", "'cancelled'")
NOT_FINAL = f"status NOT IN ({', '.join(_FINAL)})"
ENDED = f"status IN ({', '.join(_FINAL)})"
QUEUED = "status = 'queued'"
TIMED = "deadline_at IS NOT NULL"
POSITIONED = "queue_position IS NOT NULL"
PLACED = "placed_at IS NOT NULL"
DELETED = "deleted_at IS NOT NULL"
HISTORIES = ("logs", "metrics", "events")
"""What a job that has ended may lose by the retention."""


class Job(Base):
    """What a user submitted; wishes, facts and status never share a column."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project: Mapped[str] = mapped_column(String(63))
    name: Mapped[str] = mapped_column(String(63))
    labels: Mapped[dict[str, Any]]
    spec: Mapped[dict[str, Any]]
    priority: Mapped[int]
    min_workers: Mapped[int]
    max_workers: Mapped[int]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str | None] = mapped_column(String(64))
    message: Mapped[str] = mapped_column(default="")
    revision: Mapped[int] = mapped_column(default=1)
    """Grows with every change of the row that a watcher can see."""

    desired_run: Mapped[str] = mapped_column(String(8), default="run")
    desired_workers: Mapped[int]
    desired_version: Mapped[int] = mapped_column(default=1)
    desired_force: Mapped[bool] = mapped_column(default=False)
    desired_grace_s: Mapped[float | None]
    """Of a stop: how long its workers may take; unset: what the spec says."""
    checkpoint_request: Mapped[int] = mapped_column(default=0)
    desired_actions: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Actions on workers that are not answered yet, as the controller is told them: polls then read one row."""
    last_action: Mapped[int] = mapped_column(default=0, server_default="0")
    """The number of the newest one."""
    avoid_nodes: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Ids of nodes of its cluster that take no new workers."""

    observed_state: Mapped[str | None] = mapped_column(String(16))
    phase: Mapped[str | None] = mapped_column(String(32))
    workers: Mapped[int] = mapped_column(default=0)
    joining: Mapped[int] = mapped_column(default=0)
    generation: Mapped[int] = mapped_column(default=0)
    step: Mapped[int] = mapped_column(default=0)
    total_steps: Mapped[int | None]
    restarts: Mapped[int] = mapped_column(default=0)
    scalings: Mapped[int] = mapped_column(default=0)
    latest_metrics: Mapped[dict[str, Any]]
    result: Mapped[dict[str, Any] | None]
    failure: Mapped[dict[str, Any] | None]

    cluster_id: Mapped[str | None] = mapped_column(String(63))
    granted_workers: Mapped[int] = mapped_column(default=0)
    """What its controller is told: never more than the slots that the scheduler gave it."""
    granted_standby: Mapped[int] = mapped_column(default=0, server_default="0")
    """Spare workers besides."""
    granted_at: Mapped[datetime | None]
    """When the scheduler last changed the grant."""
    placed_at: Mapped[datetime | None]
    """Since when the job holds slots without a break; null while it holds none. It is asked for beside the status, so
    that the few jobs that hold slots are found by their index among very many that ended."""
    ran_seconds: Mapped[float] = mapped_column(default=0.0, server_default="0")
    """How long it held slots before `placed_at`: what `limits.max_duration` counts."""
    deadline_at: Mapped[datetime | None]
    """When the present state ends by the clock: `limits.queue_timeout` or `limits.max_duration`."""
    preempted_at: Mapped[datetime | None]
    """Since when the scheduler wants the job paused, whatever its user wants; it queues again once it has."""
    stop_reason: Mapped[str | None] = mapped_column(String(64))
    """Why the job is to stop."""
    wished_at: Mapped[datetime | None]
    """When a person last asked for another number of workers."""
    scheduling: Mapped[str] = mapped_column(default="", server_default="")
    """The scheduler's sentence: why the job waits, or why it has so many workers."""
    ranked_at: Mapped[datetime | None]
    """The order of the queue: `queued_at`, moved back by what the priority is worth (`AGEING`)."""
    pause_seconds: Mapped[float | None]
    """What a change of the membership cost lately, as measured."""
    rates: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Samples a second by number of workers, as measured: {"2": {"rate": 812.5, "steps": 40}}."""
    is_backfilled: Mapped[bool] = mapped_column(default=False, server_default=false())
    """It overtook others in the queue, and is paused as soon as the first of these can start."""
    queue_position: Mapped[int | None]
    """Among those that the last round looked at; null further back."""
    attempt: Mapped[int] = mapped_column(default=0)
    """The attempt last granted; strictly growing."""
    is_attempt_live: Mapped[bool] = mapped_column(default=False)
    """From the grant of `attempt` to its outcome."""
    lease_expires_at: Mapped[datetime | None]
    """Of `attempt`, while it is live."""

    last_pos: Mapped[int] = mapped_column(default=0)
    metric_pos: Mapped[int] = mapped_column(default=0)
    log_segment: Mapped[int] = mapped_column(default=0)
    log_offset: Mapped[int] = mapped_column(default=0)
    """Bytes of the segment that are committed; anything behind was never acknowledged."""

    log_bytes: Mapped[int] = mapped_column(default=0, server_default="0")
    """Of all lines that were stored."""
    log_lines_dropped: Mapped[int] = mapped_column(default=0, server_default="0")
    """Beyond the quota of a job."""
    metric_rows_dropped: Mapped[int] = mapped_column(default=0, server_default="0")

    deleted_at: Mapped[datetime | None]
    """Since when the job is not there for anybody; the sweep removes what it left, and this row last."""
    keeps_checkpoints: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Its checkpoints stay on the storage when it is deleted."""
    logs_dropped_at: Mapped[datetime | None]
    metrics_dropped_at: Mapped[datetime | None]
    events_dropped_at: Mapped[datetime | None]

    __table_args__ = (
        Index(
            "uq_jobs_project_name_not_final",
            "project",
            "name",
            unique=True,
            sqlite_where=text(NOT_FINAL),
            postgresql_where=text(NOT_FINAL),
        ),
        Index("ix_jobs_name_id", "name", "id"),
        Index("ix_jobs_project_id", "project", "id"),
        Index("ix_jobs_updated_at", "updated_at"),
        Index(
            "ix_jobs_status_not_final",
            "status",
            sqlite_where=text(NOT_FINAL),
            postgresql_where=text(NOT_FINAL),
        ),
        Index(
            "ix_jobs_queue",
            "ranked_at",
            "id",
            sqlite_where=text(QUEUED),
            postgresql_where=text(QUEUED),
        ),
        Index(
            "ix_jobs_deadline_at",
            "deadline_at",
            sqlite_where=text(TIMED),
            postgresql_where=text(TIMED),
        ),
        Index("ix_jobs_placed_id", "id", sqlite_where=text(PLACED), postgresql_where=text(PLACED)),
        # Of all that have ended only their number is asked for: it is counted in the index.
        Index("ix_jobs_ended", "status", "deleted_at", sqlite_where=text(ENDED), postgresql_where=text(ENDED)),
        Index(
            "ix_jobs_queue_position",
            "queue_position",
            sqlite_where=text(POSITIONED),
            postgresql_where=text(POSITIONED),
        ),
        Index("ix_jobs_deleted_at", "deleted_at", sqlite_where=text(DELETED), postgresql_where=text(DELETED)),
        *(
            Index(f"ix_jobs_{what}_kept", "finished_at", sqlite_where=text(kept), postgresql_where=text(kept))
            for what in HISTORIES
            for kept in (f"finished_at IS NOT NULL AND {what}_dropped_at IS NULL",)
        ),
    )

    @validates("priority", "queued_at")
    def _rank(self, name: str, value: Any) -> Any:
        """Keep the order of the queue true to what it follows from."""
        priority = value if name == "priority" else self.priority
        queued_at = value if name == "queued_at" else self.queued_at
        if priority is not None and queued_at is not None:
            self.ranked_at = ranked_at(priority, queued_at)
        return value


# With literals: a planner that sees parameters cannot know that a partial index serves.
IS_QUEUED: ColumnElement[bool] = Job.status == literal_column("'queued'")
IS_ENDED: ColumnElement[bool] = Job.status.in_([literal_column(status) for status in _FINAL])
IS_NOT_FINAL: ColumnElement[bool] = Job.status.not_in([literal_column(status) for status in _FINAL])


def unindexed(column: InstrumentedAttribute[str]) -> ColumnElement[str]:
    """The same text, for which no index is used.

    SQLite keeps no statistics of the table: where a project is asked for beside something rarer, it would look at all
    jobs of the project that there ever were.
    """
    return column + literal_column("''")


class Attempt(Base):
    """One life of a job's controller."""

    __tablename__ = "attempts"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    token_hmac: Mapped[str] = mapped_column(String(64), unique=True)
    node_id: Mapped[str]
    boot_id: Mapped[str]
    pid: Mapped[int]
    start_time: Mapped[int]
    granted_at: Mapped[datetime]
    last_report_at: Mapped[datetime | None]
    is_confirmed_gone: Mapped[bool] = mapped_column(default=False)
    """The cluster's agent saw that the process is dead."""
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None] = mapped_column(String(16))
    """succeeded, failed, paused, cancelled, requeue; `superseded` or `abandoned` where the controller never said."""
    last_batch: Mapped[int] = mapped_column(default=0)
    last_seq: Mapped[int] = mapped_column(default=0)
    workers: Mapped[list[Any]]
    """The workers as last reported."""


class WorkerActionRow(Base):
    """What somebody wanted done to one worker, and what came of it."""

    __tablename__ = "worker_actions"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    worker_id: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16))
    by: Mapped[str]
    node_id: Mapped[str | None] = mapped_column(String(64))
    """Of a drain: the node that is being drained, if that is why and no person wants it besides."""
    state: Mapped[str] = mapped_column(String(16), default="pending")
    """pending, withdrawn, or as it was answered."""
    message: Mapped[str] = mapped_column(default="")
    text: Mapped[str] = mapped_column(default="")
    """Of a stack; only of the worker's newest one."""
    asked_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]

    __table_args__ = (Index("ix_worker_actions_job_id_worker_id", "job_id", "worker_id"),)


class Event(Base):
    """One fact of a job's log; positions have no gaps."""

    __tablename__ = "events"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    time: Mapped[datetime]
    kind: Mapped[str] = mapped_column(String(64))
    message: Mapped[str]
    step: Mapped[int | None]
    generation: Mapped[int | None]
    attempt: Mapped[int | None]
    seq: Mapped[int | None]
    """The controller's number of the event; null for the service's own."""
    data: Mapped[dict[str, Any]]

    __table_args__ = (UniqueConstraint("job_id", "attempt", "seq"),)


class Metric(Base):
    """The row of one committed step; a step that was trained again has one row, the newest."""

    __tablename__ = "metrics"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int]
    """Order of ingest within the job; a tail by step would miss rows that were replaced."""
    time: Mapped[datetime]
    generation: Mapped[int]
    workers: Mapped[int]
    attempt: Mapped[int]
    values: Mapped[dict[str, Any]]

    __table_args__ = (UniqueConstraint("job_id", "position"),)


class MetricRollup(Base):
    """Least, greatest and summed values of a job's metrics over a bucket of steps; see `service.rollups`."""

    __tablename__ = "metric_rollups"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    bucket: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    extremes: Mapped[dict[str, Any]]


class Checkpoint(Base):
    """A committed checkpoint, as its event told."""

    __tablename__ = "checkpoints"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"))
    checkpoint_id: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int]
    step: Mapped[int]
    bytes: Mapped[int]
    created_at: Mapped[datetime]
    deletion_began_at: Mapped[datetime | None]
    """Its files may be going: no job begins from it any more. What cut a deletion short leaves it so."""
    deleted_at: Mapped[datetime | None]
    metrics: Mapped[dict[str, Any]]
    files: Mapped[list[Any]]

    __table_args__ = (UniqueConstraint("job_id", "checkpoint_id"),)


IS_STANDING: ColumnElement[bool] = Checkpoint.deleted_at.is_(None) & Checkpoint.deletion_began_at.is_(None)
"""Of a checkpoint that is neither deleted nor being deleted."""


def newest_checkpoint(job_id: str) -> Select[Checkpoint]:
    """The checkpoint that a job goes on from, where it has one that is not deleted."""
    newest = (Checkpoint.attempt.desc(), Checkpoint.step.desc())
    return select(Checkpoint).where(Checkpoint.job_id == job_id, IS_STANDING).order_by(*newest).limit(1)


class Package(Base):
    """A packed working folder, addressed by its content."""

    __tablename__ = "packages"

    sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    bytes: Mapped[int]
    num_files: Mapped[int]
    created_at: Mapped[datetime]
