"""The loop that leads one attempt: feeds the coordinator, carries out its orders. Shared by `rubato run` and `jobs/`.

All decisions are taken in one thread. Everything that happens elsewhere (workers, storage, the user's wishes) is posted
into its queue; nothing in the loop waits for anything else.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any, Protocol

from rubato.engine.coordinator import (
    Answer,
    CommitManifest,
    Coordinator,
    DropCheckpoints,
    Emit,
    End,
    FindCheckpoint,
    Kill,
    Order,
    Rows,
    Send,
    Spawn,
    Wish,
)
from rubato.engine.coordinator.orders import CheckpointFound, ManifestCommitted, RowsStored, StorageTaken
from rubato.launch.output import OutputLine
from rubato.wire import worker as wire
from rubato.wire.cluster import ActionAnswer, LogLine, MetricRow, Observed, Outcome, WorkerReport

TICK_S = 0.1
"""How often deadlines are looked at; messages are handled as they come."""

HostEvent = wire.Message | OutputLine | Wish | CheckpointFound | ManifestCommitted | RowsStored | StorageTaken | Emit
"""What may be posted. An `Emit` comes from a helper and goes straight into the journal."""


class Fleet(Protocol):
    """Where workers live. None of its methods waits; what comes of them is posted to the host."""

    def spawn(self, worker_id: str, incarnation: str, step: int) -> None:
        """Start a worker of a job that stands at `step`: `Spawned` follows, or `Exited` where that fails."""

    def kill(self, incarnation: str, because: str, *, with_stacks: bool) -> None:
        """End a worker: `Exited` follows once it is gone for sure."""

    def send(self, incarnation: str, command: wire.Command) -> None:
        """Pass a command on."""


class Journal(Protocol):
    """Where facts go. None of its methods waits."""

    def emit(self, event: Emit) -> None:
        """Note an event."""

    def rows(self, rows: tuple[MetricRow, ...]) -> None:
        """Note metric rows; `RowsStored` is to be posted once they are stored for good."""

    def log(self, line: LogLine) -> None:
        """Note a line that a worker wrote."""

    def observe(self, observed: Observed, workers: tuple[WorkerReport, ...]) -> None:
        """Take in how the job stands now; called after every change and at every tick."""

    def answer(self, answer: ActionAnswer) -> None:
        """Tell what came of an action on a worker."""

    def end(self, outcome: Outcome) -> None:
        """The attempt is over; the last call."""


class Archive(Protocol):
    """Where checkpoints lie. Answers with `CheckpointFound` and `ManifestCommitted`, posted to the host."""

    def find(self) -> None:
        """Look for the newest checkpoint that verifies."""

    def commit(self, order: CommitManifest) -> None:
        """Make a checkpoint whole."""

    def drop(self, order: DropCheckpoints) -> None:
        """See to it that later checkpoints are not found any more; done before anything that is asked for after it."""

    def finish(self) -> None:
        """Nothing more will be asked for; in a few seconds, after the last event was posted, it returns."""


class Host:
    """Leads one attempt until it ends, or until it is told to let go."""

    def __init__(self, coordinator: Coordinator, clock: Callable[[], float] = time.monotonic) -> None:
        self._coordinator = coordinator
        self._clock = clock
        # SimpleQueue: `put` may be called from a signal handler that interrupts the loop itself.
        self._events: queue.SimpleQueue[HostEvent | None] = queue.SimpleQueue()
        self._has_let_go = False
        self._outcome: Outcome | None = None

    def post(self, event: HostEvent) -> None:
        """Hand in something that happened; from any thread."""
        self._events.put(event)

    def let_go(self) -> None:
        """Leave the loop without touching anything: another controller leads now."""
        self._has_let_go = True
        self._events.put(None)

    def adopt(self, snapshots: list[wire.Snapshot], placed: list[wire.Spawned]) -> list[Order]:
        """Take over a predecessor's workers; the orders to pass to `run`."""
        return self._coordinator.adopt(snapshots, placed, self._clock())

    def run(
        self, fleet: Fleet, journal: Journal, archive: Archive, orders: list[Order] | None = None
    ) -> Outcome | None:
        """Lead the attempt.

        Args:    orders: carried out first.
        Returns: how it ended; None after `let_go`.
        """
        hands = _Hands(fleet, journal, archive)
        self._outcome = hands.carry_out(orders or [])
        next_tick = self._clock()
        while self._outcome is None and not self._has_let_go:
            for event in self._take_all(next_tick - self._clock()):
                self._handle(event, hands)
            now = self._clock()
            if now >= next_tick and not self._is_done():
                next_tick = now + TICK_S
                self._note(hands.carry_out(self._coordinator.tick(now)))
            if not self._has_let_go:
                journal.observe(self._coordinator.observed(), self._coordinator.workers())
        if self._has_let_go:
            return None
        assert self._outcome is not None
        archive.finish()
        for event in self._take_all(0.0):
            if isinstance(event, Emit):
                journal.emit(event)
        journal.end(self._outcome)
        return self._outcome

    def _is_done(self) -> bool:
        return self._outcome is not None or self._has_let_go

    def _note(self, outcome: Outcome | None) -> None:
        self._outcome = self._outcome or outcome

    def _take_all(self, wait_s: float) -> list[HostEvent]:
        """What is in the queue now, after waiting for the first."""
        try:
            taken = [self._events.get(timeout=max(0.0, wait_s))]
        except queue.Empty:
            return []
        taken += [self._events.get() for _ in range(self._events.qsize())]
        return [event for event in taken if event is not None]

    def _handle(self, event: HostEvent, hands: _Hands) -> None:
        if self._is_done():
            return
        if isinstance(event, OutputLine):
            hands.log(event, *self._place_of(event.incarnation))
        elif isinstance(event, Emit):
            hands.emit(event)
        else:
            self._note(hands.carry_out(self._coordinator.handle(event, self._clock())))

    def _place_of(self, incarnation: str) -> tuple[str, int | None]:
        """Worker id and rank of a worker that said something."""
        worker = self._coordinator.job.roster.get(incarnation)
        if worker is None:
            return f"w{incarnation}", None
        return worker.worker_id, self._coordinator.job.rank_of(worker)


class _Hands:
    """Carries out orders."""

    def __init__(self, fleet: Fleet, journal: Journal, archive: Archive) -> None:
        self._fleet = fleet
        self._journal = journal
        self._archive = archive

    def emit(self, event: Emit) -> None:
        self._journal.emit(event)

    def log(self, line: OutputLine, worker_id: str, rank: int | None) -> None:
        self._journal.log(LogLine(worker_id, rank, line.time, line.stream, line.line))

    def carry_out(self, orders: list[Order]) -> Outcome | None:
        """Carry out orders; the outcome where one of them is the end."""
        outcome = None
        for order in orders:
            match order:
                case Spawn():
                    self._fleet.spawn(order.worker_id, order.incarnation, order.step)
                case Kill():
                    self._fleet.kill(order.incarnation, order.because, with_stacks=order.with_stacks)
                case Send():
                    self._fleet.send(order.incarnation, order.command)
                case FindCheckpoint():
                    self._archive.find()
                case CommitManifest():
                    self._archive.commit(order)
                case DropCheckpoints():
                    self._archive.drop(order)
                case Emit():
                    self._journal.emit(order)
                case Rows():
                    self._journal.rows(order.rows)
                case Answer():
                    self._journal.answer(order.answer)
                case End():
                    outcome = order.outcome
        return outcome


Post = Callable[[Any], None]
"""`Host.post`, as helpers see it."""
