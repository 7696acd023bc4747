"""What goes into the coordinator from its host, and what comes out: plain data, no effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rubato.engine.coordinator.hangs import HangPolicy
from rubato.wire.cluster import ActionAnswer, Distrust, MetricRow, Outcome, RunWish, WorkerAction
from rubato.wire.spec import JobSpec
from rubato.wire.worker import Command

_MAX_EXPONENT = 64
"""A wait that grew so often is beyond any maximum; a power without end would be out of the range of floats."""


@dataclass(frozen=True)
class Terms:
    """What is fixed for a job (and an attempt at it)."""

    job_id: str
    attempt: int
    num_microbatches: int
    min_workers: int = 1
    max_workers: int = 8
    standby_workers: int = 0
    """Kept warm besides those that train."""
    max_restarts: int = 5
    backoff_initial_s: float = 1.0
    backoff_factor: float = 2.0
    backoff_max_s: float = 300.0
    stop_grace_s: float = 30.0
    checkpoint_every_s: float | None = 30.0
    """None: no checkpoints by time."""
    adapts_interval: bool = False
    """Whether that is only where the interval begins, until more is known."""
    longest_interval_s: float = 600.0
    """Where it adapts: the longest that is chosen."""
    no_retry_exit_codes: tuple[int, ...] = ()
    hangs: HangPolicy = HangPolicy()  # noqa: RUF009  (frozen)
    reproducible: bool = True
    """Whether the result must be the same bits, whoever computes."""
    rolls_back: bool = False
    """Whether what a lost worker takes along sends all back to the newest checkpoint."""
    alike_for: str = ""
    """What needs workers that compute alike, whatever the bits are; empty: nothing does."""

    def backoff_s(self, times: int) -> float:
        """Seconds before what failed so many times is tried again, as `restart.backoff` says."""
        return min(self.backoff_initial_s * self.backoff_factor ** min(times - 1, _MAX_EXPONENT), self.backoff_max_s)

    @classmethod
    def of(cls, job_id: str, attempt: int, spec: JobSpec) -> Terms:
        """From a job spec."""
        timeout, every = spec.limits.hang_timeout, spec.checkpoint.every
        every_s = min(30.0, spec.checkpoint.max_interval) if every == "auto" else every
        goes_by_time = spec.checkpoint.every_steps is None
        return cls(
            job_id=job_id,
            attempt=attempt,
            num_microbatches=spec.num_microbatches,
            min_workers=spec.workers.min,
            max_workers=spec.workers.upper,
            standby_workers=spec.workers.standby,
            max_restarts=spec.restart.max_restarts,
            backoff_initial_s=spec.restart.backoff.initial,
            backoff_factor=spec.restart.backoff.factor,
            backoff_max_s=spec.restart.backoff.max,
            stop_grace_s=spec.limits.stop_grace,
            checkpoint_every_s=every_s if goes_by_time else None,
            adapts_interval=goes_by_time and every == "auto",
            longest_interval_s=spec.checkpoint.max_interval,
            no_retry_exit_codes=spec.restart.no_retry_on_exit_codes,
            hangs=HangPolicy() if timeout == "auto" else HangPolicy.fixed(timeout),
            reproducible=spec.reproducible,
            rolls_back=spec.aggregation.compression.on_loss == "rollback",
            alike_for=spec.aggregation.name if spec.aggregation.needs_alike else "",
        )


# --- in: from the host, besides the messages of workers ---------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """What the user wants now."""

    run: RunWish
    workers: int
    checkpoint_request: int = 0
    force: bool = False
    standby: int | None = None
    """Spare workers that may be kept warm; None: as many as the terms say."""
    actions: tuple[WorkerAction, ...] = ()
    """Wanted of single workers, and not answered yet."""
    grace_s: float | None = None
    """With stop: how long workers may take, instead of what the terms say."""


@dataclass(frozen=True)
class CheckpointFound:
    """Answer to `FindCheckpoint`: the newest that verifies, or none (folder empty)."""

    folder: str = ""
    step: int = 0
    corrupt: tuple[tuple[str, str], ...] = ()
    """The names of newer ones that failed their check, each with the cause: told loudly."""
    rows: tuple[MetricRow, ...] = ()
    """Of this job, up to that step, which were not known to be stored when it was committed."""
    unusable: str = ""
    """Why nothing of what lies there can be begun from, and what to do; empty: it can, or there is nothing."""


@dataclass(frozen=True)
class ManifestCommitted:
    """Answer to `CommitManifest`."""

    folder: str
    step: int
    generation: int
    error: str = ""


@dataclass(frozen=True)
class StorageTaken:
    """Checkpoints are saved by another run now: this one may neither save nor delete any there."""

    message: str


@dataclass(frozen=True)
class RowsStored:
    """So many metric rows are stored for good, of all that this attempt has told; they are stored in order."""

    count: int


# --- out: commands to the host ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spawn:
    """Start a worker. The host answers with `Spawned`, or `Exited` where it cannot."""

    worker_id: str
    incarnation: str
    step: int
    """Where the job stands now."""


@dataclass(frozen=True)
class Kill:
    """End a worker with SIGKILL, confirmed by `Exited`."""

    incarnation: str
    because: str
    with_stacks: bool = False
    """Have it write the stacks of its threads before: it hangs, and somebody will want to know where."""


@dataclass(frozen=True)
class Send:
    """Pass a command to a training process."""

    incarnation: str
    command: Command


@dataclass(frozen=True)
class FindCheckpoint:
    """Look for the newest checkpoint that verifies."""


@dataclass(frozen=True)
class CommitManifest:
    """All stripes are written: write the manifest; what it makes superfluous is cleared away after the answer."""

    folder: str
    step: int
    generation: int
    files: tuple[dict[str, Any], ...]
    terms: dict[str, Any]
    rows: tuple[MetricRow, ...] = ()
    """Up to its step, those that are not known to be stored."""


@dataclass(frozen=True)
class DropCheckpoints:
    """Checkpoints that may hold a state that is wrong: none of them may be found any more."""

    which: Distrust
    because: str


@dataclass(frozen=True)
class Emit:
    """A fact for the event log."""

    kind: str
    message: str
    step: int | None = None
    generation: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """Metric rows, in order of their steps; answered by `RowsStored` some time."""

    rows: tuple[MetricRow, ...]


@dataclass(frozen=True)
class Answer:
    """What came of an action on a worker."""

    answer: ActionAnswer


@dataclass(frozen=True)
class End:
    """The attempt is over and no worker is left."""

    outcome: Outcome


Order = Spawn | Kill | Send | FindCheckpoint | CommitManifest | DropCheckpoints | Emit | Rows | Answer | End
