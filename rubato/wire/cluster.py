"""What a cluster says to the service over /cluster/v1, and what it hears.

Wishes go down as state (long polls), facts come up as a log (batches, kept and sent again until acknowledged). Every
report carries the attempt: the number only the service grants, strictly growing, that fences a superseded controller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

RunWish = Literal["run", "pause", "stop"]
ObservedState = Literal["starting", "running", "recovering", "stopping"]
OutcomeState = Literal["succeeded", "failed", "paused", "cancelled", "requeue"]
FailureClass = Literal["user", "infrastructure", "service"]
ActionState = Literal["done", "gone", "failed"]


# --- agent ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeReport:
    """One living node of the cluster."""

    node_id: str
    address: str
    cpu: float
    """CPU slots in all."""
    gpu: float = 0
    cpu_used: float = 0
    gpu_used: float = 0
    hostname: str = ""
    draining: bool = False
    """Ray lets it go (a preemption notice, a scale down of the cluster): nothing new is placed there."""
    drain_within_s: float | None = None
    """Then: seconds until it is taken away; None: nobody said."""
    memory: float | None = None
    """Bytes that workers may ask for in all; None: from an agent of an older release."""
    accelerators: tuple[str, ...] | None = None
    """Types that a worker may ask for; None: from an agent of an older release."""


@dataclass(frozen=True)
class ControllerSeen:
    """A controller actor the agent found."""

    job_id: str
    state: Literal["alive", "gone"]
    attempt: int = 0
    """With `gone`: the attempt whose process the agent has confirmed to be dead; 0 where it does not know."""


@dataclass(frozen=True)
class SyncRequest:
    """POST /cluster/v1/clusters/{cluster_id}/sync: the agent's view.

    Answered when something is to be done, or after `wait`.
    """

    agent_id: str
    """Of each agent process, or of a place that never keeps two. One agent acts for a cluster at a time, by a lease of
    15 s that each sync renews."""
    wire_version: int
    nodes: tuple[NodeReport, ...]
    controllers: tuple[ControllerSeen, ...] = ()
    after: int = 0
    """The version of the reply the agent has acted on."""
    wait: float = 10.0
    """Seconds to wait for a newer version."""


@dataclass(frozen=True)
class JobToRun:
    """A job that should have a controller. `ticket` is good only for acquiring its attempts."""

    job_id: str
    ticket: str


@dataclass(frozen=True)
class SyncReply:
    """What the agent is to make true."""

    version: int
    run: tuple[JobToRun, ...] = ()
    """Jobs that should have a controller; every other controller of ours is to be stopped, with its workers."""
    acting: bool = True
    """False: another agent holds the lease; look on and do nothing."""


# --- controller -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessIdentity:
    """A process that cannot be mistaken for another: pid and start time in a PID namespace on a boot of a node."""

    node_id: str
    boot_id: str
    """Of the kernel, and behind a slash the inode of the PID namespace, for containers of a host share the boot."""
    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""


@dataclass(frozen=True)
class AcquireRequest:
    """POST /cluster/v1/attempts/acquire with the job ticket as bearer token."""

    job_id: str
    wire_version: int
    process: ProcessIdentity
    gone: int = 0
    """The predecessor attempt whose process this controller saw to be gone (same boot, pid and start time); 0: none."""


@dataclass(frozen=True)
class WorkerAction:
    """What somebody wants done to one worker, once. Listed until it is answered; no longer listed: withdrawn."""

    number: int
    """1, 2, 3, ... within the job, never used twice."""
    kind: str
    """`drain`: leave at a boundary, replaced by another. `kill`: SIGKILL. `stack`: say where its threads are. One that
    a controller does not know it answers as failed."""
    worker_id: str
    by: str
    """Who wants it, for people."""
    within_s: float | None = None
    """Of a drain: seconds that are left until the worker is to be out, replaced or not; None: there is no hurry. One
    that is listed may come to have less time."""


@dataclass(frozen=True)
class ActionAnswer:
    """What came of an action; the service stops listing it."""

    number: int
    state: ActionState
    """`gone`: the worker had ended before, whatever ended it."""
    message: str
    """A sentence."""
    text: str = ""
    """Of a stack."""


@dataclass(frozen=True)
class Desired:
    """GET /cluster/v1/jobs/{job_id}/desired?after=VERSION&wait=25: what is wanted now, as far as slots were granted."""

    version: int
    run: RunWish
    """`pause` also where a more important job needs the slots."""
    workers: int
    """Granted: what the user wants, or less where slots are missing, or more where the job is autoscaled."""
    checkpoint_request: int = 0
    """Grows by one with every request for a checkpoint."""
    force: bool = False
    """With stop: do not wait for the grace."""
    grace_s: float | None = None
    """With stop: how long to wait instead of `limits.stop_grace`."""
    standby: int | None = None
    """Spare workers that are granted besides; None, from an older service: as many as the spec says."""
    actions: tuple[WorkerAction, ...] = ()
    """Not answered yet."""
    avoid_nodes: tuple[str, ...] = ()
    """Ids of nodes that get no new workers."""


@dataclass(frozen=True)
class Distrust:
    """Checkpoints that do not count: of later steps than this, by generations up to this one of this attempt.

    The states of those workers had differed since. However often it is obeyed, what was made afterwards stands.
    """

    after_step: int
    attempt: int
    generation: int

    def covers(self, attempt: int, generation: int, step: int) -> bool:
        """Whether a checkpoint of this step by this generation, which this attempt minted, does not count."""
        is_before = attempt < self.attempt or (attempt == self.attempt and generation <= self.generation)
        return is_before and step > self.after_step


@dataclass(frozen=True)
class Acquired:
    """The grant of an attempt (200). A 409 `lease_held` names the predecessor and when to try again instead."""

    attempt: int
    token: str
    """Bearer token of this attempt, for report, desired and packages."""
    job_name: str
    spec: dict[str, Any]
    storage: str
    """URI of the checkpoint root; all workers and the service see it. The job's folder is `{storage}/{job_id}`."""
    desired: Desired
    resume_step: int = 0
    """Step the job had last reached, for progress until the first report."""
    restarts: int = 0
    scalings: int = 0
    last_step: int = 0
    """Highest step whose metric row the service has."""
    distrusted: tuple[Distrust, ...] = ()
    """Told by the attempts before, which may have gone before they could delete them."""
    newest_checkpoint: str = ""
    """`{attempt}-{step}` of the newest that was told of and not deleted: a storage without any is not the job's."""


@dataclass(frozen=True)
class EventReport:
    """A fact for the job's event log."""

    seq: int
    """1, 2, 3, ... within the attempt; (job, attempt, seq) is unique."""
    time: str
    """RFC 3339, UTC."""
    kind: str
    message: str
    """A sentence in the past tense."""
    step: int | None = None
    generation: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricRow:
    """One committed step. The newest attempt wins; within an attempt the newest report."""

    step: int
    time: str
    generation: int
    workers: int
    values: dict[str, float]
    """Always `loss`, `samples`, `step_seconds`, `samples_per_second`, `epoch`; and what the user logged."""


LogStream = Literal["stdout", "stderr", "system"]


@dataclass(frozen=True)
class LogLine:
    """One line that a worker wrote, or (`system`) that was said about it."""

    worker_id: str
    rank: int | None
    time: str
    stream: LogStream
    line: str


@dataclass(frozen=True)
class WorkerReport:
    """One worker, as it is now."""

    worker_id: str
    """`w1`, `w2`, ...: never used twice in a job."""
    incarnation: str
    rank: int | None
    pid: int | None
    """Of the training process."""
    supervisor_pid: int | None
    node: str
    state: str
    """A `WorkerState`."""
    step: int | None = None
    phase: str = ""
    """What it does right now: a stage of `progress.STAGES`; empty: not told yet."""
    node_id: str = ""
    """Of its Ray node; empty from a controller of an older release, and without Ray."""
    microbatches: int | None = None
    """Its share of the last step; None: it does not train, or the controller is of an older release."""
    microbatch_seconds: float | None = None
    """Forward and backward of one of them, the median of the last steps: its pace against that of the others."""
    device: str = ""
    """On what it computes, `cpu` or the name of a GPU; empty: not told yet."""
    memory_bytes: int | None = None
    """Resident memory of its training process; None: not known."""
    silent_seconds: float | None = None
    """Since its last sign of life, when this report was made; None: from a controller of an older release."""


@dataclass(frozen=True)
class Failure:
    """Why a job failed, as far as it is known."""

    failure_class: FailureClass
    reason: str
    """One of `wire.reasons`, or of a newer peer."""
    message: str
    """What happened and what to do, in a sentence or two."""
    worker_id: str | None = None
    rank: int | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    step: int | None = None
    microbatch: int | None = None
    traceback: str | None = None
    last_output: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What a job that succeeded ended with."""

    step: int
    digest: str
    """SHA-256 over parameters, buffers and optimizer state in registration order; empty of a job that Ray Train has
    trained: nobody sees its state."""


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt. The service stores it, acknowledges it, and the controller exits."""

    state: OutcomeState
    result: Result | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Observed:
    """The controller's view of the job, the whole of it in every report (state, not deltas)."""

    state: ObservedState
    phase: str
    generation: int
    workers: int
    """Training now."""
    joining: int
    step: int
    """Committed steps."""
    total_steps: int | None
    restarts: int
    scalings: int
    reason: str = ""
    """A sentence: why it is not otherwise (waiting for 2 slots, backing off for 5 s, ...)."""


@dataclass(frozen=True)
class Report:
    """POST /cluster/v1/jobs/{job_id}/report: on change, at most one a second, at least one in 5 s.

    `batch` grows by one; a batch is sent again unchanged until it is acknowledged, and applied once. Everything in it
    is stored in one transaction with the cursor. Stale attempt: 409 `fenced`, and the controller exits.
    """

    attempt: int
    batch: int
    wire_version: int
    observed: Observed
    workers: tuple[WorkerReport, ...] = ()
    events: tuple[EventReport, ...] = ()
    metrics: tuple[MetricRow, ...] = ()
    logs: tuple[LogLine, ...] = ()
    answers: tuple[ActionAnswer, ...] = ()
    outcome: Outcome | None = None


@dataclass(frozen=True)
class ReportReply:
    """The answer to a report: what is stored, and may be forgotten."""

    ack: int
    """The batch that is stored."""
    time: str
    """The service's clock."""
