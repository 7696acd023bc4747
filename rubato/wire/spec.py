"""The job spec: what a user submits, as one frozen tree of dataclasses.

Every field is documented under its name. Unknown keys are refused. Values are checked in `__post_init__`, so a spec
that exists is a valid one; `parse_spec` reports every finding at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rubato.errors import check_rules
from rubato.wire.aggregation import AggregationSpec, aggregation_rules
from rubato.wire.batch import ROOMY, BatchSpec, LrScalingSpec, lr_scaling_rules, resolve_num_microbatches
from rubato.wire.codec import from_json, to_json
from rubato.wire.local_updates import LocalUpdatesSpec, local_updates_rules
from rubato.wire.parallelism import ParallelismSpec
from rubato.wire.ray_train import ray_train_rules
from rubato.wire.units import parse_duration_s, parse_size_bytes

Autoscale = Literal["off", "capacity", "goodput"]
NonFinite = Literal["deliver", "skip", "fail"]
Device = Literal["auto", "cpu", "cuda"]
Backend = Literal["rubato", "ray_train"]
StatusName = Literal[
    "queued", "starting", "running", "recovering", "pausing", "paused", "stopping", "succeeded", "failed", "cancelled"
]
"""As `rubato.wire.status.Status` has them."""

MAX_WORKERS = 4096
MIN_SHARE, MAX_SHARE = 0.0001, 100_000
"""CPU slots or GPUs of one worker, where it takes any: Ray counts in ten-thousandths."""
MAX_MEMORY = 2**50
MAX_STEPS = 1_000_000_000_000
MAX_COUNT = 1_000_000
"""Of checkpoints kept, and of restarts."""
MAX_FACTOR = 1_000.0
MAX_EXIT_CODES = 256
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
_ENTRYPOINT = re.compile(r"[A-Za-z0-9_./-]+(:[A-Za-z_][A-Za-z0-9_]*)?")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOWER_MAX = "give a lower workers.max (8, or workers.initial if that is more, where it is not given)"
MAX_SECRETS = 64
MAX_SECRET_NAME = 128
MAX_NOTIFICATIONS = 20
MAX_LABELS, MAX_LABEL_KEY, MAX_LABEL_VALUE = 64, 64, 256
"""Each line of a list has all of a job's labels. Lengths in characters."""


def is_name(text: str) -> bool:
    """Whether a job, project or user may be called so."""
    return bool(_NAME.fullmatch(text))


def is_secret_name(text: str) -> bool:
    """Whether a secret may be called so: it becomes an environment variable."""
    return len(text) <= MAX_SECRET_NAME and bool(_ENV_NAME.fullmatch(text))


def _is_env_value(text: str) -> bool:
    """Whether a process can be given it. Bytes that are no UTF-8 may be in it as Python reads them from its own."""
    try:
        return b"\0" not in text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False


def _at_most(value: float, limit: float, path: str) -> tuple[bool, str, str]:
    return (value <= limit, path, f"must be at most {limit}, got {value}")


def _share(value: float, path: str) -> tuple[bool, str, str]:
    is_one = value <= 0 or MIN_SHARE <= value <= MAX_SHARE  # below 0 another rule speaks
    return (is_one, path, f"must be 0 or lie in {MIN_SHARE}..{MAX_SHARE}, got {value}")


def _label_rules(labels: dict[str, str]) -> Iterator[tuple[bool, str, str]]:
    advice = "put what is not filtered by into config"
    yield (len(labels) <= MAX_LABELS, "labels", f"at most {MAX_LABELS} are allowed, got {len(labels)}; {advice}")
    for key, value in labels.items():
        said = f"must have at most {MAX_LABEL_KEY} characters, got {len(key)}; {advice}"
        yield (len(key) <= MAX_LABEL_KEY, "labels", f"the key {key[:MAX_LABEL_KEY]!r}... {said}")
        said = f"must have at most {MAX_LABEL_VALUE} characters, got {len(value)}; {advice}"
        yield (len(value) <= MAX_LABEL_VALUE, f"labels.{key[:MAX_LABEL_KEY]}", said)


def _duration(default: float | None) -> Any:
    return field(default=default, metadata={"parse": parse_duration_s})


@dataclass(frozen=True)
class WorkersSpec:
    """How many workers."""

    initial: int = 1
    """Workers wanted at the start."""
    min: int = 1
    """The job never trains with fewer; it queues until so many slots are free."""
    max: int | None = None
    """The job is never given more; default: 8, or `initial` where that is more."""
    standby: int = 0
    """Workers kept warm besides those that train, as far as slots are free: a lost one is replaced at once."""
    autoscale: Autoscale = "off"
    """`off`: only the user changes the count. `capacity`: free slots are used up to `max`, and given back to a job that
    waits. `goodput`: the same, while another worker brings at least half of what the first ones do, as measured."""

    def __post_init__(self) -> None:
        if self.max is None:
            object.__setattr__(self, "max", max(8, self.initial, self.min))
        assert self.max is not None
        check_rules(
            (self.min >= 1, "min", f"must be at least 1, got {self.min}"),
            (self.max <= MAX_WORKERS, "max", f"must be at most {MAX_WORKERS}, got {self.max}"),
            (
                0 <= self.standby <= MAX_WORKERS,
                "standby",
                f"must lie in 0..{MAX_WORKERS} (one or two replace most losses at once), got {self.standby}",
            ),
            (self.min <= self.max, "max", f"must be at least workers.min ({self.min}), got {self.max}"),
            (
                self.min <= self.initial <= self.max,
                "initial",
                f"must lie in workers.min..workers.max ({self.min}..{self.max}), got {self.initial}"
                + (", which it is where it is not given" if self.initial == 1 else ""),
            ),
        )

    @property
    def upper(self) -> int:
        """`max`, resolved."""
        assert self.max is not None
        return self.max


@dataclass(frozen=True)
class ResourcesSpec:
    """What one worker takes."""

    cpu: float = 1
    """CPU slots a worker takes: 0, or 0.0001 to 100,000."""
    gpu: float = 0
    """GPUs a worker takes: 0, or 0.0001 to 100,000."""
    memory: int | None = field(default=None, metadata={"parse": parse_size_bytes})
    """Bytes of memory a worker takes, at most 2**50; `2GiB` is understood."""
    accelerator_type: str | None = None
    """A Ray accelerator type such as `H100`; null: any."""

    def __post_init__(self) -> None:
        check_rules(
            (self.cpu >= 0, "cpu", f"must not be negative, got {self.cpu}"),
            (self.gpu >= 0, "gpu", f"must not be negative, got {self.gpu}"),
            _share(self.cpu, "cpu"),
            _share(self.gpu, "gpu"),
            (self.memory is None or self.memory >= 0, "memory", f"must not be negative, got {self.memory}"),
            _at_most(self.memory or 0, MAX_MEMORY, "memory"),
            (self.cpu + self.gpu > 0, "cpu", "a worker needs at least one CPU or GPU"),
        )


@dataclass(frozen=True)
class KeepBestSpec:
    """Which checkpoints count as best."""

    metric: str = "loss"
    """The metric to compare."""
    mode: Literal["min", "max"] = "min"
    """Whether less or more is better."""
    keep: int = 1
    """How many to keep, 1 to a million."""

    def __post_init__(self) -> None:
        check_rules(
            (self.keep >= 1, "keep", f"must be at least 1, got {self.keep}"),
            _at_most(self.keep, MAX_COUNT, "keep"),
            (bool(self.metric), "metric", "is empty"),
        )


@dataclass(frozen=True)
class CheckpointSpec:
    """When to save, what to keep."""

    every: float | Literal["auto"] = field(
        default=30.0, metadata={"parse": lambda value: value if value == "auto" else parse_duration_s(value)}
    )
    """Time between checkpoints; `auto`: from the measured stall and losses of all workers, up to `max_interval`."""
    max_interval: float = _duration(600.0)
    """With `every: auto`: seconds between checkpoints at most; four times what writing one takes, if that is more."""
    every_steps: int | None = None
    """Instead: a checkpoint every so many steps, at most 10**12."""
    keep_last: int = 3
    """The newest so many are kept, 1 to a million."""
    keep_best: KeepBestSpec | None = None
    """Also keep the best by a metric."""
    resume_from: str | None = None
    """Id of a checkpoint to start from."""

    def __post_init__(self) -> None:
        check_rules(
            (self.every == "auto" or self.every > 0, "every", f"must be more than 0, got {self.every}"),
            (self.max_interval > 0, "max_interval", f"must be more than 0, got {self.max_interval}"),
            (self.every_steps is None or self.every_steps >= 1, "every_steps", "must be at least 1, or null"),
            _at_most(self.every_steps or 1, MAX_STEPS, "every_steps"),
            _at_most(self.keep_last, MAX_COUNT, "keep_last"),
            (self.keep_last >= 1, "keep_last", f"must be at least 1, got {self.keep_last}"),
        )


@dataclass(frozen=True)
class BackoffSpec:
    """How long to wait before a restart: initial, initial * factor, ... up to max."""

    initial: float = _duration(5.0)
    """Seconds before the first restart."""
    factor: float = 2.0
    """Each wait is so many times the one before: 1 to 1000."""
    max: float = _duration(300.0)
    """Seconds, at most."""

    def __post_init__(self) -> None:
        check_rules((1 <= self.factor <= MAX_FACTOR, "factor", f"must lie in 1..{MAX_FACTOR:g}, got {self.factor}"))


@dataclass(frozen=True)
class RestartSpec:
    """What happens after all workers were lost."""

    max_restarts: int = 5
    """Restarts after a loss of all workers before the job fails, at most a million; a start whose workers are killed,
    and a step whose workers cannot reach each other, are tried as often and a little more."""
    backoff: BackoffSpec = BackoffSpec()
    """Waits between restarts."""
    no_retry_on_exit_codes: tuple[int, ...] = ()
    """Exit codes of a training process that fail the job at once: -255 to 255, below 0 the signal that ended it."""

    def __post_init__(self) -> None:
        codes = self.no_retry_on_exit_codes
        check_rules(
            (self.max_restarts >= 0, "max_restarts", f"must not be negative, got {self.max_restarts}"),
            _at_most(self.max_restarts, MAX_COUNT, "max_restarts"),
            (all(-255 <= code <= 255 for code in codes), "no_retry_on_exit_codes", "must lie in -255..255"),
            (len(codes) <= MAX_EXIT_CODES, "no_retry_on_exit_codes", f"must be at most {MAX_EXIT_CODES} codes"),
        )


LEAST_HANG_TIMEOUT_S = 3.0
"""Below, a worker that is well could be fenced because of two signs of life that came late."""


@dataclass(frozen=True)
class LimitsSpec:
    """How long things may take."""

    max_duration: float | None = _duration(None)
    """Seconds the job may hold slots, pauses and time in the queue not counted; then it is cancelled."""
    stop_grace: float = _duration(30.0)
    """Seconds between asking workers to leave and killing them."""
    hang_timeout: float | Literal["auto"] = field(
        default="auto", metadata={"parse": lambda value: value if value == "auto" else parse_duration_s(value)}
    )
    """Seconds without progress before a worker is ended and replaced, at least 3; `auto`: learned from the run, at
    least 20 for a microbatch, 60 for code between two steps, and 600 for what was not measured yet; for that, seconds
    given here count if more."""
    queue_timeout: float | None = _duration(None)
    """Seconds the job may wait for slots; null: for ever."""

    def __post_init__(self) -> None:
        least, timeout = LEAST_HANG_TIMEOUT_S, self.hang_timeout
        because = f"must be at least {least:g}s, got {timeout}: workers say once a second that they live"
        check_rules((timeout == "auto" or timeout >= least, "hang_timeout", because))


@dataclass(frozen=True)
class SchedulingSpec:
    """Which job goes first."""

    priority: int = 50
    """0 to 100, more is sooner; a queued job gains a point a minute."""
    preemptible: bool = True
    """Whether the job may be paused, with a checkpoint, for a more important one; it comes back by itself."""

    def __post_init__(self) -> None:
        check_rules((0 <= self.priority <= 100, "priority", f"must lie in 0..100, got {self.priority}"))


@dataclass(frozen=True)
class NotificationSpec:
    """Who is told when the job comes to which status."""

    on: tuple[StatusName, ...]
    """Statuses that are told when the job comes to them."""
    webhook: str
    """Name of a webhook of the project (`rubato webhook add`)."""

    def __post_init__(self) -> None:
        check_rules((len(self.on) > 0, "on", "name at least one status, such as [succeeded, failed]"))


@dataclass(frozen=True)
class JobSpec:
    """A job, as its user describes it."""

    name: str
    """Unique among a project's non-final jobs: lower-case letters, digits, `.`, `_`, `-`."""
    project: str = "default"
    """The project the job belongs to."""
    labels: dict[str, str] = field(default_factory=dict)
    """Free key-value marks to filter by: at most 64, keys of up to 64 characters, values of up to 256."""
    backend: Backend = "rubato"
    """`ray_train`: the entrypoint is a train function for Ray Train's TorchTrainer; see `docs/how-to/ray-train.md`."""
    entrypoint: str | None = None
    """`train.py:train` or `package.module:train`: file or module, then the function (default `train`)."""
    recipe: str | None = None
    """Instead of an entrypoint: a program that ships with Rubato, such as `image-classifier`."""
    working_dir: str | None = None
    """The folder that `rubato submit` packs, relative to the spec file; without it the file's own folder, where the
    entrypoint is a file (`train.py`). The service itself takes `package` only."""
    package: str | None = None
    """SHA-256 of the packed working folder: `rubato submit` sets it, and `Client.upload_folder` returns it."""
    config: dict[str, Any] = field(default_factory=dict)
    """Handed to the function as `run.config`; with `backend: ray_train` as its `config`."""
    workers: WorkersSpec = WorkersSpec()
    """How many workers, and between which bounds."""
    resources_per_worker: ResourcesSpec = ResourcesSpec()
    """What one worker takes of a node."""
    batch: BatchSpec = field(default_factory=BatchSpec)
    """The global batch and how it is cut."""
    lr_scaling: LrScalingSpec = field(default_factory=LrScalingSpec)
    """What another global batch does to the learning rate."""
    seed: int = 0
    """Of the sample order and of every random number."""
    reproducible: bool = True
    """Bit-identical weights whatever the worker count. `false`: faster; see `docs/how-to/write-a-job.md`."""
    on_non_finite: NonFinite = "deliver"
    """What to do with a gradient that is not finite: deliver it as it is, skip the step's, or fail the job. A prepared
    GradScaler skips such steps itself, with either of the first two."""
    device: Device = "auto"
    """`auto`: CUDA where a worker has a GPU, else CPU."""
    parallelism: ParallelismSpec = field(default_factory=ParallelismSpec)
    """How the model is laid over the workers."""
    aggregation: AggregationSpec = field(default_factory=AggregationSpec)
    """How gradients are exchanged."""
    local_updates: LocalUpdatesSpec = field(default_factory=LocalUpdatesSpec)
    """Updates between two exchanges."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When to save and what to keep."""
    restart: RestartSpec = RestartSpec()
    """What to do when all workers are lost."""
    limits: LimitsSpec = LimitsSpec()
    """Time limits."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Order among jobs."""
    env: dict[str, str | None] = field(default_factory=dict)
    """Environment of the training processes; a null value must be given at submit (`--env NAME=value`)."""
    secrets: tuple[str, ...] = ()
    """Secrets of the project (`rubato secret set`) that training processes find in their environment by these names."""
    notifications: tuple[NotificationSpec, ...] = ()
    """Webhooks that are told of this job beyond what they are told of every job."""

    def __post_init__(self) -> None:
        sources = [source for source in (self.entrypoint, self.recipe) if source is not None]
        unset = sorted(name for name, value in self.env.items() if value is None)
        check_rules(
            (
                is_name(self.name),
                "name",
                f"{self.name!r:.70} must be 1 to 63 lower-case letters, digits, '.', '_' or '-', "
                "and begin and end with a letter or digit",
            ),
            (
                is_name(self.project),
                "project",
                f"{self.project!r:.70} must be 1 to 63 lower-case letters, digits, '.', '_' or '-', "
                "and begin and end with a letter or digit",
            ),
            *_label_rules(self.labels),
            (len(sources) == 1, "entrypoint", "give exactly one of entrypoint ('train.py:train') and recipe"),
            (
                self.entrypoint is None
                or (bool(_ENTRYPOINT.fullmatch(self.entrypoint)) and ".." not in self.entrypoint),
                "entrypoint",
                f"{self.entrypoint!r} is not of the form 'train.py:train' or 'package.module:train'",
            ),
            (
                self.package is None or bool(re.fullmatch(r"[0-9a-f]{64}", self.package)),
                "package",
                "must be the SHA-256 (64 hexadecimal digits) that PUT /api/v1/packages/{sha256} took",
            ),
            (0 <= self.seed < 2**63, "seed", f"must lie in 0..2**63-1, got {self.seed}"),
            (
                self.limits.max_duration is None or self.limits.max_duration > 0,
                "limits.max_duration",
                "must be more than 0",
            ),
            _at_most(len(self.secrets), MAX_SECRETS, "secrets"),
            (len(set(self.secrets)) == len(self.secrets), "secrets", "name each of them once"),
            (
                not set(self.secrets) & self.env.keys(),
                "secrets",
                f"{', '.join(sorted(set(self.secrets) & self.env.keys()))}: stands in env, too; choose one",
            ),
            _at_most(len(self.notifications), MAX_NOTIFICATIONS, "notifications"),
            (
                self.backend != "rubato"
                or self.batch.num_microbatches == "auto"
                or self.batch.num_microbatches >= self.workers.upper,
                "batch.num_microbatches",
                f"must be at least workers.max ({self.workers.upper}), else workers would have nothing to do; "
                f"got {self.batch.num_microbatches}; cut the batch finer, or {_LOWER_MAX}",
            ),
            (
                self.backend != "rubato" or self.batch.global_size >= self.workers.upper,
                "batch.global_size",
                f"must be at least workers.max ({self.workers.upper}), got {self.batch.global_size}; "
                f"take a larger batch, or {_LOWER_MAX}",
            ),
            (
                not unset,
                "env",
                f"{', '.join(unset)} must be given at submit: --env {unset[0] if unset else 'NAME'}=value",
            ),
            *(
                (bool(_ENV_NAME.fullmatch(name)), f"env.{name}", "is not a valid environment variable name")
                for name in self.env
            ),
            *(
                (value is None or _is_env_value(value), f"env.{name}", "holds a NUL or half a character; leave it out")
                for name, value in self.env.items()
            ),
            *(
                (is_secret_name(name), "secrets", f"{name[:80]!r} is not a valid environment variable name")
                for name in self.secrets
            ),
            *ray_train_rules(self),
            *aggregation_rules(self),
            *lr_scaling_rules(self),
            *local_updates_rules(self),
        )

    @property
    def num_microbatches(self) -> int:
        """V, resolved."""
        count = self.batch.num_microbatches
        if count != "auto":
            return count
        if self.local_updates.is_on:
            return self.workers.upper  # as many train by themselves as there may be workers
        smallest = ROOMY if self.reproducible else 1  # one pass goes over all of a worker's: small ones cost nothing
        return resolve_num_microbatches(self.batch.global_size, self.workers.min, self.workers.upper, smallest)

    @property
    def base_batch(self) -> int:
        """Samples of the batch that the learning rate was chosen for."""
        return self.lr_scaling.base_size or self.batch.global_size

    @property
    def wants_cuda(self) -> bool:
        """Whether training processes compute on a GPU."""
        return self.device == "cuda" or (self.device == "auto" and self.resources_per_worker.gpu > 0)


def parse_spec(data: Any, *, strict: bool = True) -> JobSpec:
    """Build a spec from JSON or YAML data; not strict: of one that a service took, which may be of a newer release.

    Raises:
        SpecError: with every finding, each naming its field and what to do.
    """
    return from_json(JobSpec, data, strict=strict)


def spec_to_json(spec: JobSpec) -> dict[str, Any]:
    """The spec as plain JSON types, with `num_microbatches` resolved so that the record names it."""
    if spec.backend != "rubato":
        return dict(to_json(spec))
    resolved = replace(spec, batch=replace(spec.batch, num_microbatches=spec.num_microbatches))
    return dict(to_json(resolved))
