"""What a controller and its training processes say to each other, through the supervisor of each.

Messages go up, commands go down; both are JSON objects with a `type`. Every command carries the attempt of the
controller that gives it: a training process follows the highest it has heard and refuses anything lower. Every message
carries the incarnation of its sender. All of them are idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rubato.errors import ProtocolError
from rubato.wire.cluster import MetricRow
from rubato.wire.codec import from_json, to_json

Cause = Literal["start", "scale_up", "scale_down", "recovery", "restart", "replace", "rebalance"]


@dataclass(frozen=True)
class Member:
    """One worker of a generation; its place in `members` is its rank."""

    worker_id: str
    incarnation: str


@dataclass(frozen=True)
class Origin:
    """Where the state of a generation comes from."""

    kind: Literal["members", "fresh", "checkpoint"]
    folder: str = ""
    """With `checkpoint`: path or URI of the folder that holds the manifest."""


@dataclass(frozen=True)
class GenerationRecord:
    """One fixed membership. Immutable: any change of members, owners or store is another generation."""

    attempt: int
    number: int
    members: tuple[Member, ...]
    owners: tuple[int, ...]
    """The rank that computes each microbatch."""
    store: str
    """host:port of the TCPStore of a ready member."""
    origin: Origin
    cause: Cause
    follows: int
    """The generation whose members switch to this one; 0: none, all begin here."""
    joining: tuple[str, ...] = ()
    """Incarnations that get the state from the members of the generation it follows, while those train on."""

    @property
    def world(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def joiners(self) -> tuple[int, ...]:
        """Ranks of those that join."""
        return tuple(rank for rank, member in enumerate(self.members) if member.incarnation in self.joining)

    @property
    def holders(self) -> tuple[int, ...]:
        """Ranks of the others."""
        return tuple(rank for rank, member in enumerate(self.members) if member.incarnation not in self.joining)

    def rank_of(self, incarnation: str) -> int | None:
        """The rank of a worker in this generation; None where it is no member."""
        for rank, member in enumerate(self.members):
            if member.incarnation == incarnation:
                return rank
        return None


# --- commands: controller -> training process -------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """The first line a training process reads."""

    attempt: int
    job_id: str
    worker_id: str
    incarnation: str
    spec: dict[str, Any]
    host: str
    """Address under which this worker is reachable by the others."""
    storage: str
    """Path or URI of the job's checkpoints; one of step s is `{attempt of the generation}-{s}` beneath. Empty: none."""
    last_step: int = 0
    """Where the job stood when this worker was started: 0 also where nobody trained yet."""


@dataclass(frozen=True)
class Prepare:
    """Form this generation in the background; switch to it when every header says ready."""

    attempt: int
    record: GenerationRecord


@dataclass(frozen=True)
class Revoke:
    """Every generation up to this number is over. Answered by `Broken` as soon as the main thread is in the engine."""

    attempt: int
    through: int


@dataclass(frozen=True)
class Checkpoint:
    """Write a checkpoint at the next boundary that all headers agree on."""

    attempt: int
    request: int
    """Grows; the highest in the headers wins."""
    lost_step: int = -1
    """The checkpoint of this step was lost with those who were writing it. Who still stands there saves once more."""


@dataclass(frozen=True)
class WriteStripe:
    """Write a part of a checkpoint whose owner died; this worker keeps a copy of it. Answered by `StripeWritten`."""

    attempt: int
    generation: int
    folder: str
    index: int


@dataclass(frozen=True)
class ForgetStripes:
    """This checkpoint is whole: drop the copies that are kept of it."""

    attempt: int
    folder: str


@dataclass(frozen=True)
class Leave:
    """End training at the next common boundary: `pause` saves first, `stop` does not."""

    attempt: int
    how: Literal["pause", "stop"]


@dataclass(frozen=True)
class Release:
    """The controller has what it needs of a finished or paused worker: exit with code 0."""

    attempt: int


@dataclass(frozen=True)
class Acknowledge:
    """Rows up to this step are stored; forget them."""

    attempt: int
    step: int


@dataclass(frozen=True)
class Attach:
    """A new controller took over. Raise the attempt and answer with `Snapshot`; train on."""

    attempt: int


@dataclass(frozen=True)
class TellStacks:
    """Say where all threads are. Answered by `Stacks`, by the supervisor where the process itself cannot."""

    attempt: int
    number: int
    """Of the action that asks for them."""


Command = (
    Start
    | Prepare
    | Revoke
    | Checkpoint
    | WriteStripe
    | ForgetStripes
    | Leave
    | Release
    | Acknowledge
    | Attach
    | TellStacks
)


# --- messages: training process (or its supervisor) -> controller -----------------------------------------------------


@dataclass(frozen=True)
class Spawned:
    """By the supervisor: the training process exists."""

    incarnation: str
    pid: int
    supervisor_pid: int
    node: str
    """Name of its host."""
    node_id: str = ""
    """Of its Ray node; several may share a host."""


@dataclass(frozen=True)
class Hello:
    """Imports are done and the store is open."""

    incarnation: str
    store: str


@dataclass(frozen=True)
class Standby:
    """The user's program has entered `steps()` and is warm; it waits for a generation."""

    incarnation: str
    layout_digest: str
    """Of the names, shapes and types of the state: members must be equal."""
    code_digest: str
    """Of all modules of the user's program and the versions of Python and torch: members must be equal."""
    total_steps: int
    arithmetic: dict[str, str] = field(default_factory=dict)
    """On what, and how, it computes (`engine/arithmetic`); empty: of a release that did not say."""


@dataclass(frozen=True)
class Formed:
    """The group of this generation stands (or, from a leaver: I am ready to go)."""

    incarnation: str
    generation: int


@dataclass(frozen=True)
class FormFailed:
    """The group of this generation could not be built; the controller mints another."""

    incarnation: str
    generation: int
    cause: str


@dataclass(frozen=True)
class Entered:
    """This worker trains in the generation now; its state is that of the start of step `step` (0-based)."""

    incarnation: str
    generation: int
    step: int
    redone_microbatches: int = 0
    """Microbatches of the interrupted step that somebody has to compute again."""


@dataclass(frozen=True)
class Committed:
    """Steps done. Rows come from the lowest rank only."""

    incarnation: str
    generation: int
    step: int
    """Committed steps, counted from 1."""
    rows: tuple[MetricRow, ...] = ()
    pace: tuple[tuple[int, int], ...] = ()
    """Of the last step, by rank: nanoseconds spent, on so many microbatches. From the lowest rank only."""


@dataclass(frozen=True)
class Stopped:
    """The program stopped the steps (`run.stop`), as all members have agreed: there are no more than these."""

    incarnation: str
    step: int
    """Committed steps: all of the job."""


@dataclass(frozen=True)
class Beat:
    """By the supervisor, once a second: what the main thread does, and since when; read from the progress word."""

    incarnation: str
    generation: int
    step: int
    stage: str
    """One of `rubato.wire.progress.STAGES`."""
    stage_seconds: float
    microbatch: int | None = None
    silent_seconds: float = 0.0
    """Since the interpreter of the process last ran."""
    usual: dict[str, float] = field(default_factory=dict)
    """What each stage usually takes at most in this process, in seconds, as far as it is known."""
    memory_bytes: int | None = None
    """Resident memory of the training process; None: not known, or the supervisor is of an older release."""


@dataclass(frozen=True)
class Broken:
    """The main thread is in the engine and has left every generation up to `through`; it waits for the next one."""

    incarnation: str
    through: int
    has_state: bool
    step: int
    cause: str = ""
    serves: bool = True
    """Whether a member that is a step behind can have from it what it missed."""


@dataclass(frozen=True)
class StripeWritten:
    """This worker's part of a checkpoint is on storage."""

    incarnation: str
    generation: int
    step: int
    folder: str
    """Name of the checkpoint's folder, `{attempt}-{step}`."""
    index: int
    count: int
    files: tuple[dict[str, Any], ...]
    """name, bytes, sha256 of each."""
    terms: dict[str, Any] = field(default_factory=dict)
    """What the manifest says besides: code digest, versions, metrics."""
    members: tuple[str, ...] = ()
    """Incarnations by rank: who writes which part, and who keeps whose copy."""


@dataclass(frozen=True)
class StripeFailed:
    """This worker could not write its part."""

    incarnation: str
    folder: str
    step: int
    cause: str
    generation: int = 0


@dataclass(frozen=True)
class Left:
    """A planned leave is done; the process exits by itself."""

    incarnation: str
    generation: int
    step: int


@dataclass(frozen=True)
class Ended:
    """This worker stopped at a boundary all agreed on, and waits for `Release`."""

    incarnation: str
    how: Literal["finished", "paused", "stopped"]
    step: int
    digest: str = ""


@dataclass(frozen=True)
class UserFailed:
    """The user's code raised. The process exits with code 1 after this."""

    incarnation: str
    where: Literal["import", "setup", "step"]
    error: str
    traceback: str
    step: int | None = None
    microbatch: int | None = None
    exit_code: int | None = None
    """That the program gave to `sys.exit`."""


@dataclass(frozen=True)
class StateDiverged:
    """Digests of members that must be equal are not: who is not among a majority is out.

    That one says so and exits. Those who see it say so, too: they leave the group, and may cut it off before it knows.
    """

    incarnation: str
    generation: int
    step: int
    digests: tuple[str, ...]
    what: str
    """What they are of, in words."""
    agreed: int = 0
    """So many steps were committed when all members were last known to hold the same state."""
    of: tuple[str, ...] = ()
    """Who is out, by incarnation, where others say so; empty: this worker."""


@dataclass(frozen=True)
class Notice:
    """A fact for the event log, from the training process."""

    incarnation: str
    kind: str
    message: str
    step: int | None = None
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Answer to `Attach`: everything a controller must know to take over."""

    incarnation: str
    hello: Hello | None
    standby: Standby | None
    record: GenerationRecord | None
    """The generation it trains in; None: none yet."""
    pending: int
    """Highest generation number it has heard of."""
    broken: Broken | None
    ended: Ended | None
    step: int
    rows: tuple[MetricRow, ...] = ()
    """Not yet acknowledged."""
    saved_step: int = -1
    """Of the newest checkpoint that it was told is whole; -1: of none."""


@dataclass(frozen=True)
class Stacks:
    """Where the threads of a training process are."""

    incarnation: str
    number: int
    text: str
    """Empty: they could not be had."""
    cause: str = ""
    """Why not, or why it was the supervisor that had to find out."""


@dataclass(frozen=True)
class Exited:
    """By the supervisor: the training process is gone, its process group with it."""

    incarnation: str
    exit_code: int | None
    signal: str | None
    last_output: tuple[str, ...] = ()
    cause: str = ""
    is_withdrawn: bool = False
    """Its host took it back before it had a place, and would place another one elsewhere: no loss."""


Message = (
    Spawned
    | Hello
    | Standby
    | Formed
    | FormFailed
    | Entered
    | Committed
    | Stopped
    | Beat
    | Broken
    | StripeWritten
    | StripeFailed
    | Left
    | Ended
    | UserFailed
    | StateDiverged
    | Notice
    | Snapshot
    | Stacks
    | Exited
)

_TYPES: dict[str, Any] = {kind.__name__: kind for kind in (*Command.__args__, *Message.__args__)}


def encode(message: Command | Message) -> dict[str, Any]:
    """As a JSON object with a `type`."""
    return {"type": type(message).__name__, **to_json(message)}


def decode(data: dict[str, Any]) -> Any:
    """The dataclass of a JSON object with a `type`.

    Raises:
        ProtocolError: an unknown type.
        SpecError: a known type with fields of another kind.
    """
    kind = _TYPES.get(str(data.get("type")))
    if kind is None:
        raise ProtocolError(f"unknown message type {data.get('type')!r}")
    return from_json(kind, {key: value for key, value in data.items() if key != "type"})
