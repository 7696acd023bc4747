"""Shapes of requests and replies, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.access import ProjectRole

JsonObject = dict[str, Any]


class ProblemError(BaseModel):
    """One finding."""

    path: str
    message: str


class Problem(BaseModel):
    """An error, RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemError]
    request_id: str


class Queue(BaseModel):
    """Where a queued job stands, and why it waits."""

    position: int | None
    reason: str


class Result(BaseModel):
    """What a succeeded job ended with."""

    step: int
    digest: str


class JobItem(BaseModel):
    """A job, without its spec."""

    id: str
    name: str
    project: str
    labels: dict[str, str]
    status: str
    reason: str | None
    message: str
    phase: str | None
    desired_workers: int
    granted_workers: int
    scheduling: str
    workers: int
    joining: int
    min_workers: int
    max_workers: int
    step: int
    total_steps: int | None
    metrics: dict[str, float | None]
    attempt: int
    generation: int
    restarts: int
    scalings: int
    created_at: str
    started_at: str | None
    finished_at: str | None
    updated_at: str
    result: Result | None
    failure: JsonObject | None
    queue: Queue | None


class Job(JobItem):
    """A job."""

    spec: JsonObject
    spec_given: list[str]
    """Which of its fields differ from the defaults, such as `workers.initial`."""
    scaling_restarts: bool
    """Another number of workers restarts the job from its newest checkpoint (`backend: ray_train`)."""
    etag: str
    """Of what people may change; also in the header ETag."""
    log_bytes: int
    log_lines_dropped: int
    """Beyond what is stored of one job."""
    metric_rows_dropped: int
    dropped: list[str]
    """Of `logs`, `metrics` and `events` what the retention has removed."""


class DryRun(BaseModel):
    """A spec as it would be stored, with all defaults."""

    spec: JsonObject
    remarks: list[str]
    """What to know of it, in sentences."""


class ListedJob(JobItem):
    """A job of a list; its `failure` is without `traceback` and `last_output`, which only the job itself has."""

    loss_history: list[tuple[int, float]] | None = None
    """Where `history` is asked for: some steps, rising, and the loss there."""


class JobPage(BaseModel):
    """Jobs from the newest on."""

    items: list[ListedJob]
    next_cursor: str | None


class Event(BaseModel):
    """One fact of a job's log."""

    position: int
    time: str
    kind: str
    message: str
    step: int | None
    generation: int | None
    attempt: int | None
    data: JsonObject


class EventPage(BaseModel):
    """Events in order; go on with `after=next_position`."""

    items: list[Event]
    next_position: int


class MetricRow(BaseModel):
    """One committed step."""

    position: int
    step: int
    time: str
    generation: int
    workers: int
    attempt: int
    values: dict[str, float | None]


class MetricPage(BaseModel):
    """Rows in order of ingest; go on with `after=next_position`."""

    items: list[MetricRow]
    next_position: int


class ChartLine(BaseModel):
    """One metric: as many of each as of `x`, in order of steps."""

    x: list[float]
    y: list[float]
    steps: list[int]
    """Of each point, whatever `x` is."""
    times: list[float]
    """Seconds since 1970 of each point."""
    means: list[float]
    """Of each point, the mean of all values of its stretch."""
    weights: list[float]
    """Of each point in a mean over several: the points of a stretch share one."""


class Chart(BaseModel):
    """Metrics for a chart; each stretch of `bucket_steps` steps gives its least and its greatest value."""

    bucket_steps: int
    series: dict[str, ChartLine]
    position: int
    """Of the newest row: `after` of what comes behind it."""


class LogLine(BaseModel):
    """One line of a worker's output."""

    id: str
    time: str
    worker_id: str
    rank: int | None
    attempt: int
    stream: str
    line: str


class LogPage(BaseModel):
    """Lines, oldest first; go on with `after=next`, at once where there were more."""

    items: list[LogLine]
    next: str
    has_more: bool
    earlier: str | None
    """`before` of the page before; null: this one begins with the first line."""


class CodeFile(BaseModel):
    """A file of a job's code."""

    path: str
    bytes: int
    is_entrypoint: bool


class Code(BaseModel):
    """What a job runs."""

    source: Literal["package", "recipe", "none"]
    """`none`: the job named code that lies on the nodes, or its package is gone."""
    name: str
    """The SHA-256 of the package, or the name of the recipe."""
    entrypoint: str
    items: list[CodeFile]


class CodeText(BaseModel):
    """The text of a file."""

    path: str
    bytes: int
    text: str | None
    """Null where it is no text."""
    is_cut: bool
    """It is longer than what is shown."""


class Items(BaseModel):
    """A list."""

    items: list[JsonObject]


class Checkpoint(BaseModel):
    """A committed checkpoint."""

    id: str
    job_id: str
    checkpoint_id: str
    attempt: int
    step: int
    bytes: int
    created_at: str
    pinned: bool | None
    """Kept whatever the retention says; null: the storage does not answer."""
    metrics: JsonObject
    files: list[JsonObject]


class CheckpointPage(BaseModel):
    """A job's checkpoints, newest first."""

    items: list[Checkpoint]
    next_cursor: str | None


class Attempt(BaseModel):
    """One life of a job's controller."""

    attempt: int
    node_id: str
    pid: int
    granted_at: str
    last_report_at: str | None
    ended_at: str | None
    outcome: str | None


class AttemptPage(BaseModel):
    """Attempts in order."""

    items: list[Attempt]
    next_cursor: str | None


class GenerationPage(BaseModel):
    """Memberships in order, as their events told."""

    items: list[JsonObject]
    next_cursor: str | None


class ClusterOverview(BaseModel):
    """All clusters, and the first 200 of the queue."""

    clusters: list[JsonObject]
    queue: list[JsonObject]


class QueuedJob(BaseModel):
    """A job that waits."""

    position: int
    job_id: str
    name: str
    status: str
    priority: int
    min_workers: int
    desired_workers: int
    because: str
    queued_at: str


class PlacedJob(BaseModel):
    """A job that holds slots."""

    job_id: str
    name: str
    status: str
    priority: int
    min_workers: int
    max_workers: int
    autoscale: str
    desired_workers: int
    granted_workers: int
    granted_standby: int
    workers: int
    cluster_id: str | None
    placed_at: str | None
    because: str


class QueuePage(BaseModel):
    """The queue in its order, and who holds the slots."""

    items: list[QueuedJob]
    next_cursor: str | None
    running: list[PlacedJob]


class Explanation(BaseModel):
    """Why a job waits, or why it has so many workers."""

    job_id: str
    name: str
    status: str
    reason: str | None
    because: str
    position: int | None
    priority: int
    autoscale: str
    min_workers: int
    max_workers: int
    desired_workers: int
    granted_workers: int
    granted_standby: int
    workers: int
    queued_at: str
    placed_at: str | None
    granted_at: str | None
    deadline_at: str | None
    pause_seconds: float | None
    rates: dict[str, float]


class Request(BaseModel):
    """Root of small request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class ScaleRequest(Request):
    """How many workers are wanted."""

    workers: int = Field(strict=True, ge=0, le=2**31)


class PauseRequest(Request):
    """How to pause."""

    force: bool = Field(
        default=False, strict=True, description="Wait neither for a checkpoint nor for a cluster that is gone."
    )


class CancelRequest(Request):
    """How to end."""

    force: bool = Field(default=False, strict=True)
    grace_seconds: float | None = Field(
        default=None, ge=0, le=86_400, allow_inf_nan=False, description="Default: limits.stop_grace of the spec."
    )


class CloneRequest(Request):
    """What the new job has other than the old one."""

    overrides: JsonObject = Field(default={}, description="A merge patch of the spec: null takes a field away.")
    from_checkpoint: str | None = Field(
        default=None, max_length=64, description="Id of a checkpoint to begin from, or `latest`."
    )


class CheckpointRequest(Request):
    """What may be changed of a checkpoint."""

    pinned: bool = Field(strict=True)


class SessionRequest(Request):
    """A sign-in."""

    token: str = Field(max_length=200)


class Me(BaseModel):
    """Who is asking."""

    user: str
    role: str
    projects: dict[str, ProjectRole]
    """The role in each project; an admin has all."""


class LoginLink(BaseModel):
    """A link that signs a browser in, once."""

    url: str
    code: str


class Version(BaseModel):
    """What runs here."""

    version: str
    wire_version: int


class Health(BaseModel):
    """Alive."""

    status: str


class ReadinessCheck(BaseModel):
    """One thing that was looked at."""

    name: str
    ok: bool
    required: bool
    detail: str


class Readiness(BaseModel):
    """Whether requests can be taken: ok, degraded (they are, but something is wrong), failing."""

    status: str
    checks: list[ReadinessCheck]
