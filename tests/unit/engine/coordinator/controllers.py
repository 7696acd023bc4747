"""Controllers, and how one takes over from another, as `jobs.fleet`, `jobs.supervisor` and `jobs.controller` do it.

    granted    the service refuses from here on what older attempts report
    listed     it looks which workers there are; one that an older controller starts later nobody attaches to
    attached   worker by worker: the supervisor follows it from then on, and refuses older ones; the process describes
               itself when it comes to that command, or its supervisor does by what it knows (`jobs.shadow`) where that
               takes too long. Meanwhile all train on, may switch or break, and whoever is not attached yet tells the
               older controller and obeys it
    leads      with the snapshots that it has, however old each is; who has not answered is ended

An older controller may be dead, stopped at any moment and going on later, or alive: it hears of its successor by the
service, or by a worker that follows another one, and that may take long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from jobs.supervisor import FRESH_STRIPE_S, TOLD_BY_SNAPSHOT, Allegiance
from rubato.engine.coordinator import Coordinator
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.storage import SteppedArchive


class Fate(Enum):
    """What has become of a controller."""

    LIVES = "lives"
    STOPPED = "stopped"
    """It does nothing until it goes on, and knows of nothing then."""
    GONE = "gone"
    """Dead, or it has let go."""


@dataclass
class Reply:
    """What a supervisor answers to one that attaches."""

    snapshot: wire.Snapshot | None
    """None: its process is gone."""
    backlog: tuple[wire.Message, ...]
    """What no controller has taken yet and the snapshot does not say."""
    spawned: wire.Spawned | None
    last: wire.Message | None
    """Listen to what comes after it."""
    allegiance: Allegiance
    """Before."""

    def listen(self, worker: Worker) -> None:
        """What came before is answered."""
        if any(one is self.last for one in worker.outbox):
            while worker.outbox.popleft() is not self.last:
                pass


@dataclass(eq=False)
class Controller:
    """One attempt: its coordinator, its archive, and what is under way to it."""

    attempt: int
    coordinator: Coordinator
    archive: SteppedArchive
    answers: deque[object]
    """Of its archive."""
    fate: Fate = Fate.LIVES
    leads: bool = False
    calls: dict[str, Reply | None] | None = None
    """By worker that it attaches to: the answer. None: it has not looked yet which there are."""
    is_called: set[str] = field(default_factory=set)
    is_refused: bool = False
    """A worker follows a newer one."""
    is_cut_off: bool = False
    """The service does not answer it."""
    hears_at: float = 0.0
    """That it is superseded; not before."""
    spool: deque[tuple[MetricRow, ...]] = field(default_factory=deque)
    """Rows on their way to storage: they go with the controller."""
    num_rows: int = 0
    """That were told by it and are stored."""
    ticked_at: float = 0.0
    pace: float = 1.0
    """How likely it is, at each moment, that it can take its next step of the takeover."""

    def attach(self, worker: Worker, now: float) -> None:
        """The call is at the supervisor."""
        assert self.calls is not None
        self.is_called.add(worker.incarnation)
        if worker.attempt > self.attempt:
            self.is_refused = True
            return
        allegiance = Allegiance(worker.attempt, worker.led_by)
        worker.attempt = self.attempt
        if not worker.alive:
            self._answer(worker, None, now, allegiance)
            return
        worker.tell(wire.Attach(self.attempt))

        def answer(snapshot: wire.Snapshot) -> None:
            if self.calls is not None and self.calls[worker.incarnation] is None:
                self._answer(worker, snapshot, now, allegiance)

        if not worker.said:  # still importing: nothing to tell, and it answers later
            answer(worker.shadow.snapshot())
            return
        worker.on_snapshot.append(answer)

    def _answer(self, worker: Worker, snapshot: wire.Snapshot | None, now: float, allegiance: Allegiance) -> None:
        said = tuple(message for message in worker.outbox if not isinstance(message, TOLD_BY_SNAPSHOT))
        if snapshot is None:
            said = tuple(worker.outbox)
        elif now - worker.stripes_at < FRESH_STRIPE_S or worker.shadow.is_at_end:
            said = (*said, *worker.shadow.parts)
        assert self.calls is not None
        last = worker.outbox[-1] if worker.outbox else None
        self.calls[worker.incarnation] = Reply(snapshot, said, worker.spawned, last, allegiance)

    def unanswered(self) -> Iterator[str]:
        """Workers that it has no answer of."""
        return (incarnation for incarnation, reply in (self.calls or {}).items() if reply is None)


Act = Callable[[], None]
