"""What simulated training processes, and the groups that they form, know."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jobs.shadow import Shadow
from rubato.engine.comm import Communicator
from rubato.engine.control import Control
from rubato.engine.entry import BEFORE_ALL, EntryPlan, Key
from rubato.engine.header import Decision, Header
from rubato.engine.rows import Rows
from rubato.errors import GenerationLost
from rubato.wire import worker as wire


@dataclass(frozen=True, eq=False)
class Result:
    """Of one exchange: all members that completed it hold the very same."""

    key: Key
    decision: Decision | None
    """None: of the exchange behind the last step."""


@dataclass(frozen=True)
class Completed:
    """The last exchange that a worker completed, as `rubato.engine.results` has it."""

    key: Key
    result: Result | None
    """None: it has not, or not any more, what a member that missed it would need."""


class GroupEnd(Communicator):
    """One member's end of a group: there, or buried."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(None, rank, world, lambda: False)
        self.is_buried = False

    def bury(self) -> None:
        """The others notice."""
        self.is_buried = True


@dataclass
class Group:
    """What the members of one generation have in common."""

    record: wire.GenerationRecord
    ends: dict[str, GroupEnd] = field(default_factory=dict)
    """Of those who have formed it."""
    entering: set[str] = field(default_factory=set)
    plan: EntryPlan | None = None
    """Set once all members were there together: from then on each of them gets in."""
    missed: Completed | None = None
    """For those who are behind at the entry."""
    switched_at: int | None = None
    """The step at which all switch to it, once one has."""
    last: Completed = Completed(BEFORE_ALL, None)
    """At the switch."""
    handled: int = 0
    lineage: Result | None = None
    rows: tuple[dict[str, object], ...] = ()
    """Not known to be stored at the switch: joiners are told of them."""
    open_row: dict[str, object] | None = None
    """Of the last step of all, which joiners have taken, too, where that is the switch."""
    arrived: dict[Key, dict[str, Header]] = field(default_factory=dict)
    decided: dict[Key, Result] = field(default_factory=dict)


class SteppedControl(Control):
    """The real one without threads: groups are formed when the schedule has it so."""

    def __init__(self, start: wire.Start, hear: Callable[[wire.Message], None]) -> None:
        super().__init__(start)
        self.forming: dict[int, wire.GenerationRecord] = {}
        self._hear = hear
        self._outcome: Communicator | GenerationLost | None = None
        self._former = lambda record, rank, is_over: self._conclude()

    def _write(self, *messages: wire.Message) -> None:
        for message in messages:
            self._hear(message)

    def _begin_forming(self, record: wire.GenerationRecord, rank: int) -> None:
        self.forming[record.number] = record

    def is_over(self, record: wire.GenerationRecord) -> bool:
        """Whether waits of its group end."""
        return self._is_over(record)

    def end_forming(self, record: wire.GenerationRecord, outcome: Communicator | GenerationLost) -> None:
        """The group stands, or does not."""
        rank = record.rank_of(self.start.incarnation)
        assert rank is not None
        self._outcome = outcome
        del self.forming[record.number]
        self._form(record, rank)

    def _conclude(self) -> Communicator | None:
        assert self._outcome is not None
        if isinstance(self._outcome, GenerationLost):
            raise self._outcome
        return self._outcome

    @property
    def lost_step(self) -> int:
        """The checkpoint of this step is to be saved again."""
        return self._lost_step


@dataclass
class Feeder:
    """Brings the joiners of a generation up to date, in the background."""

    record: wire.GenerationRecord
    is_told: bool = False
    has_failed: bool = False


class Worker:
    """One training process with its supervisor."""

    def __init__(self, incarnation: str, attempt: int, clock: Callable[[], float]) -> None:
        self.incarnation = incarnation
        self._clock = clock
        self.attempt = attempt
        """That the supervisor follows; the process hears of a newer one by its commands."""
        self.led_by = attempt
        """The newest that has asked it what is new."""
        self.alive = self.placed = self.gone = False
        self.has_left = False
        """It ended by itself, its part being over."""
        self.is_stray = False
        """Made by a superseded controller after its successor had looked, or ended by that: nothing of it counts."""
        self.inbox: deque[wire.Command] = deque()
        self.outbox: deque[wire.Message] = deque()
        self.on_snapshot: list[Callable[[wire.Snapshot], None]] = []
        """Controllers wait for it."""
        self.spawned: wire.Spawned | None = None
        self.stripes_at = 0.0
        self.shadow = Shadow(incarnation)
        """What the supervisor knows of the process."""
        self.control = SteppedControl(wire.Start(attempt, "job", f"w{incarnation}", incarnation, {}, "", ""), self.say)
        self.said = 0
        """0: nothing, 1: Hello, 2: Standby."""
        self.entering: wire.GenerationRecord | None = None
        self.following: wire.GenerationRecord | None = None
        """It joins: the members bring it up to date."""
        self.feeder: Feeder | None = None
        self.end: GroupEnd | None = None
        """Of the group that it trains, enters or joins in."""
        self.waiting = False
        self.told = 0
        self.has_state = False
        self.step = 0
        self.completed = Completed(BEFORE_ALL, None)
        self.result: Result | None = None
        """Of the step that it is to commit."""
        self.lineage: Result | None = None
        """The last one that went into its state; None: a fresh state."""
        self.is_intact = True
        """The program has not changed the last result."""
        self.held: frozenset[int] | None = None
        """Microbatches of the present step that it has computed."""
        self.owners_of_step: tuple[int, tuple[int, ...]] | None = None
        self.reduced = 0
        """Steps, in the present generation."""
        self.handled = 0
        self.ending = ""
        """It has stopped, or finished, and says so in each generation until it is released."""
        self.stripe: wire.StripeWritten | None = None
        self.saved: Result | None = None
        """The lineage of that."""
        self.saved_row: dict[str, object] | None = None
        """The row that was open then."""
        self.unwritten: deque[Callable[[], None]] = deque()
        """Parts that hang on their way to storage."""
        self.has_copies = False
        """Of what it saved last, its own part and that of the rank before."""
        self.has_changed = False
        """Behind the last step its user code has changed the state."""
        self.hangs_since: float | None = None
        """Its main thread stands still in its own code; what runs beside that goes on."""
        self.waits_since: float | None = None
        """It had nothing to do from then on, as its last sign of life told."""
        self.rows = Rows(self.control)

    def __str__(self) -> str:
        told = ("said", "attempt", "step", "waiting", "told", "has_state", "completed", "held", "ending", "inbox")
        place = f"in {self.record.number}" if self.record else "out"
        facts = ", ".join(f"{name}={getattr(self, name)}" for name in told)
        return f"{self.incarnation} {place} formed={self.control.formed} ready={self.control.ready} {facts}"

    @property
    def record(self) -> wire.GenerationRecord | None:
        """The generation that it trains in."""
        return self.control.record

    @property
    def ended(self) -> wire.Ended | None:
        """What it said of its end, if it waits for its release."""
        return self.control.ended

    @property
    def is_sealed(self) -> bool:
        """It went on behind the last step: all members hold its checkpoint."""
        return self.completed.key[1] > 0

    @property
    def serves(self) -> bool:
        """Whether a member that missed the last exchange can have its result from this one."""
        return self.completed.result is not None and (self.is_sealed or self.is_intact)

    def say(self, message: wire.Message) -> None:
        """To its supervisor, which keeps it until a controller takes it."""
        if isinstance(message, wire.StripeWritten | wire.StripeFailed):
            self.stripes_at = self._clock()
        self.outbox.append(message)
        self.shadow.on_message(message)
        if isinstance(message, wire.Snapshot):
            self._compare(message)
            waiting, self.on_snapshot = self.on_snapshot, []
            for answer in waiting:
                answer(message)

    def tell(self, command: wire.Command) -> None:
        """Its supervisor passes something on."""
        self.inbox.append(command)
        self.shadow.on_command(command)

    def _compare(self, own: wire.Snapshot) -> None:
        """Where nothing is on its way the supervisor knows what the process says of itself."""
        known = self.shadow.snapshot()
        if self.inbox or not self.said:
            return
        # A joiner knows its rows from the members, and who has not the lowest rank does not tell its own.
        assert replace(known, rows=own.rows, step=own.step) == own
        # A step is committed before the main thread says that it goes on, and the last one when the program has ended.
        assert own.record is None or own.broken is not None or abs(known.step - own.step) <= 1
