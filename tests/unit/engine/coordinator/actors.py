"""What simulated training processes, and the groups that they form, know."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow


@dataclass(frozen=True)
class Decision:
    """What all members of a step decided from the same headers."""

    step: int
    switch_to: int
    leaving: str
    request: int


@dataclass
class Group:
    """What the members of one generation have in common."""

    record: wire.GenerationRecord
    formed: set[str] = field(default_factory=set)
    entering: set[str] = field(default_factory=set)
    entry_step: int | None = None
    """Set once all members were there together: from then on each of them gets in."""
    entry_completed: Decision | None = None
    rows: list[MetricRow] = field(default_factory=list)
    """Not known to be stored at the entry: joiners are told of them."""
    is_sealed: bool = False
    """All members have saved the state of the last step."""
    arrived: dict[int, set[str]] = field(default_factory=dict)
    decided: dict[int, Decision] = field(default_factory=dict)


@dataclass
class Worker:
    """One training process with its supervisor."""

    incarnation: str
    attempt: int
    alive: bool = False
    placed: bool = False
    gone: bool = False
    inbox: deque[wire.Command] = field(default_factory=deque)
    outbox: deque[wire.Message] = field(default_factory=deque)
    said: int = 0
    """0: nothing, 1: Hello, 2: Standby."""
    highest: int = 0
    revoked: int = 0
    formed: dict[int, wire.GenerationRecord] = field(default_factory=dict)
    forming: dict[int, wire.GenerationRecord] = field(default_factory=dict)
    record: wire.GenerationRecord | None = None
    entering: wire.GenerationRecord | None = None
    following: wire.GenerationRecord | None = None
    """It joins: the members bring it up to date."""
    fed: set[int] = field(default_factory=set)
    """Generations whose joiners it has brought up to date, or given up."""
    waiting: bool = False
    told: int = 0
    has_state: bool = False
    step: int = 0
    completed: Decision | None = None
    """Of the last reduction this worker holds."""
    ready: int = 0
    leaving: str = ""
    request: int = 0
    handled: int = 0
    released: bool = False
    hello: wire.Hello | None = None
    standby: wire.Standby | None = None
    broken: wire.Broken | None = None
    ended: wire.Ended | None = None
    stripe: wire.StripeWritten | None = None
    has_copies: bool = False
    """Of what it saved last, its own part and that of the rank before."""
    inherited: list[wire.StripeWritten] = field(default_factory=list)
    """Parts of dead neighbours."""
    is_sealed: bool = False
    """It went on behind the last step."""
    has_changed: bool = False
    """And its user code has changed the state since."""
    lost_step: int = -1
    saved_step: int = -1
    hangs_since: float | None = None
    """Its main thread stands still in its own code; what runs beside that goes on."""
    waits_since: float | None = None
    """It had nothing to do from then on, as its last sign of life told."""
    rows: list[MetricRow] = field(default_factory=list)
    rows_told_in: int = 0

    def say(self, message: wire.Message) -> None:
        self.outbox.append(message)
