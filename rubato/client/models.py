"""What the service answers, as frozen dataclasses; `raw` keeps the reply itself, for fields newer than this client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from rubato.errors import ApiError, SpecError
from rubato.wire.codec import from_json
from rubato.wire.status import FINAL

T = TypeVar("T")
Row: TypeAlias = dict[str, Any]
"""A reply as it is."""
Rows: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class Worker:
    """One worker of a job."""

    worker_id: str
    rank: int | None = None
    """Position in the present generation; None while it joins or leaves."""
    pid: int | None = None
    """Of the training process."""
    supervisor_pid: int | None = None
    node: str = ""
    state: str = ""
    phase: str = ""
    step: int | None = None
    incarnation: str = ""
    microbatches: int | None = None
    """Its share of the last step."""
    microbatch_seconds: float | None = None
    """Forward and backward of one of them: its pace."""
    device: str = ""
    """On what it computes: `cpu`, or the name of a GPU."""
    memory_bytes: int | None = None
    """Resident memory of the training process."""
    silent_seconds: float | None = None
    """Since its last sign of life, when that was reported."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Event:
    """One fact of a job's log; positions grow by one."""

    position: int
    time: str
    kind: str
    """An `EventKind`, or a newer one."""
    message: str
    step: int | None = None
    generation: int | None = None
    attempt: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class MetricPoint:
    """One committed step."""

    position: int
    step: int
    time: str
    values: dict[str, float | None] = field(default_factory=dict)
    """None where the number was not finite."""
    generation: int | None = None
    workers: int | None = None
    attempt: int | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class LogLine:
    """One line that a training process, or its supervisor, wrote."""

    id: str
    time: str
    stream: str
    line: str
    worker_id: str = ""
    rank: int | None = None
    attempt: int | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Checkpoint:
    """One restorable state on storage."""

    id: str
    attempt: int
    step: int
    checkpoint_id: str = ""
    bytes: int | None = None
    created_at: str | None = None
    job_id: str = ""
    pinned: bool | None = None
    """Kept whatever the retention says; None: the service cannot reach the storage."""
    metrics: dict[str, Any] | None = None
    files: tuple[dict[str, Any], ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Attempt:
    """One life of a job's controller."""

    attempt: int
    node_id: str = ""
    pid: int | None = None
    granted_at: str | None = None
    last_report_at: str | None = None
    ended_at: str | None = None
    outcome: str | None = None
    """How it ended: succeeded, failed, paused, cancelled, requeue, superseded, abandoned."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Node:
    """One node of a cluster."""

    node_id: str
    address: str = ""
    hostname: str = ""
    cpu: float = 0
    cpu_used: float = 0
    gpu: float = 0
    gpu_used: float = 0


@dataclass(frozen=True)
class Cluster:
    """One Ray cluster, as its agent reported it."""

    id: str
    status: str
    last_seen: str | None = None
    slots_total: float = 0
    slots_used: float = 0
    nodes: tuple[Node, ...] = ()
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Job:
    """One job: what is wanted, what was observed, and how it ended."""

    id: str
    name: str
    status: str
    """A `Status`."""
    message: str | None = None
    """Why it is where it is, in a sentence."""
    reason: str | None = None
    phase: str | None = None
    project: str = "default"
    labels: dict[str, str] = field(default_factory=dict)
    desired_workers: int = 0
    granted_workers: int = 0
    """What the scheduler gives it of those."""
    scheduling: str = ""
    """The scheduler's sentence: why it waits, or why it has so many workers."""
    workers: int = 0
    """Training now."""
    joining: int = 0
    min_workers: int = 1
    max_workers: int = 1
    step: int = 0
    total_steps: int | None = None
    metrics: dict[str, float | None] | None = None
    """The newest row."""
    attempt: int = 0
    generation: int = 0
    restarts: int = 0
    scalings: int = 0
    created_at: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    updated_at: str | None = None
    result: dict[str, Any] | None = None
    """`step` and `digest` of a job that succeeded."""
    failure: dict[str, Any] | None = None
    """Why it failed; in lists without `traceback` and `last_output`."""
    queue: dict[str, Any] | None = None
    log_bytes: int = 0
    log_lines_dropped: int = 0
    """Beyond what the service stores of one job."""
    metric_rows_dropped: int = 0
    dropped: tuple[str, ...] = ()
    """Of `logs`, `metrics` and `events` what the service's retention has removed."""
    spec: dict[str, Any] | None = field(default=None, repr=False)
    scaling_restarts: bool = False
    """Another number of workers restarts the job from its newest checkpoint."""
    etag: str | None = None
    """Names what people may change of the job as it was read; `Client.update` takes it as `if_match`."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def is_final(self) -> bool:
        """Whether the status will never change again."""
        return self.status in FINAL


@dataclass(frozen=True)
class Explanation:
    """Why a job waits, or why it has so many workers."""

    job_id: str
    name: str
    status: str
    because: str
    """The scheduler's sentence."""
    reason: str | None = None
    position: int | None = None
    """In the queue, 1 for the first; None: it does not wait."""
    priority: int = 50
    autoscale: str = "off"
    min_workers: int = 1
    max_workers: int = 1
    desired_workers: int = 0
    granted_workers: int = 0
    granted_standby: int = 0
    workers: int = 0
    queued_at: str | None = None
    placed_at: str | None = None
    granted_at: str | None = None
    deadline_at: str | None = None
    pause_seconds: float | None = None
    rates: dict[str, float] = field(default_factory=dict)
    """Samples a second by number of workers, as measured."""
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Standing:
    """A job in the queue, or one that holds slots."""

    job_id: str
    name: str
    status: str
    because: str
    priority: int = 50
    min_workers: int = 1
    desired_workers: int = 0
    position: int | None = None
    """In the queue; None: it holds slots."""
    granted_workers: int = 0
    granted_standby: int = 0
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class JobUpdate:
    """One message of a job's live stream: an event, or the job as it stands after a change, or neither: it is quiet."""

    event: Event | None = None
    job: Job | None = None


def decode(kind: type[T], data: Any) -> T:
    """Build a model from a reply; unknown keys are ignored, because a newer service may send more.

    Raises:
        ApiError: the reply has not the shape that this client knows.
    """
    try:
        if isinstance(data, dict) and "raw" in kind.__dataclass_fields__:  # type: ignore[attr-defined]
            return from_json(kind, {**data, "raw": data})
        return from_json(kind, data)
    except SpecError as error:
        raise ApiError(
            f"the service's reply is not a {kind.__name__.lower()} as this client knows it ({error}); "
            "client and service may be of different releases: compare `rubato --version` with GET /api/v1/version"
        ) from error
