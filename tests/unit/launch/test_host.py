from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rubato.engine.coordinator import (
    CheckpointFound,
    CommitManifest,
    Coordinator,
    DropCheckpoints,
    Emit,
    ManifestCommitted,
    RowsStored,
    Terms,
    Wish,
)
from rubato.launch.host import Host
from rubato.launch.output import OutputLine
from rubato.wire import worker as wire
from rubato.wire.cluster import ActionAnswer, LogLine, MetricRow, Observed, Outcome, WorkerReport


class FakeFleet:
    """One worker that does what it is told, at once."""

    def __init__(self, post: Callable[[Any], None]) -> None:
        self.post = post
        self.done: list[tuple[str, Any]] = []

    def spawn(self, worker_id: str, incarnation: str, step: int) -> None:
        self.done.append(("spawn", incarnation))
        self.post(wire.Spawned(incarnation, 1, 2, "here"))
        self.post(OutputLine(incarnation, "now", "stdout", "hello"))
        self.post(wire.Hello(incarnation, "store"))
        self.post(wire.Standby(incarnation, "layout", "code", 2))

    def kill(self, incarnation: str, because: str, *, with_stacks: bool) -> None:
        self.done.append(("kill", because))
        self.post(wire.Exited(incarnation, None, "SIGKILL"))

    def send(self, incarnation: str, command: wire.Command) -> None:
        self.done.append(("send", command))
        match command:
            case wire.Prepare(record=record):
                self.post(wire.Entered(incarnation, record.number, 0))
                rows = tuple(MetricRow(step, "2026-01-01T00:00:00+00:00", 1, 1, {"loss": 1.0}) for step in (1, 2))
                self.post(wire.Committed(incarnation, record.number, 2, rows))
                file = ({"name": "s", "bytes": 1, "sha256": "0"},)
                self.post(wire.StripeWritten(incarnation, record.number, 2, "1-2", 0, 1, file))
                self.post(wire.Ended(incarnation, "finished", 2, "digest"))
            case wire.Release():
                self.post(wire.Exited(incarnation, 0, None))


class FakeJournal:
    """Remembers, in order."""

    def __init__(self, post: Callable[[Any], None]) -> None:
        self.post = post
        self.told: list[Any] = []
        self.num_rows = 0

    def emit(self, event: Emit) -> None:
        self.told.append(event.kind)

    def rows(self, rows: tuple[MetricRow, ...]) -> None:
        self.told.append([row.step for row in rows])
        self.num_rows += len(rows)
        self.post(RowsStored(self.num_rows))

    def log(self, line: LogLine) -> None:
        self.told.append((line.worker_id, line.rank, line.line))

    def observe(self, observed: Observed, workers: tuple[WorkerReport, ...]) -> None:
        self.seen = observed

    def answer(self, answer: ActionAnswer) -> None:
        self.told.append(answer)

    def end(self, outcome: Outcome) -> None:
        self.told.append(outcome.state)


class FakeArchive:
    """Has nothing, and takes everything."""

    def __init__(self, post: Callable[[Any], None]) -> None:
        self.post = post

    def find(self) -> None:
        self.post(CheckpointFound())

    def drop(self, order: DropCheckpoints) -> None:
        raise AssertionError("nothing diverged")

    def finish(self) -> None:
        self.post(Emit("checkpoint.deleted", "it was old"))

    def commit(self, order: CommitManifest) -> None:
        self.post(Emit("checkpoint.committed", "saved", order.step))
        self.post(ManifestCommitted(order.folder, order.step, order.generation))


def make_host() -> Host:
    return Host(Coordinator(Terms("job", 1, num_microbatches=4, checkpoint_every_s=None), Wish("run", 1)))


def test_an_attempt_is_led_from_start_to_end() -> None:
    host = make_host()
    fleet, journal = FakeFleet(host.post), FakeJournal(host.post)
    outcome = host.run(fleet, journal, FakeArchive(host.post))
    assert outcome is not None
    assert outcome.result is not None
    assert (outcome.result.step, outcome.result.digest) == (2, "digest")
    assert journal.told[0] == "worker.started"
    assert ("w1.1", None, "hello") in journal.told
    assert [1, 2] in journal.told
    assert "checkpoint.committed" in journal.told
    assert journal.told[-2:] == ["checkpoint.deleted", "succeeded"], "what was done last is told before the end"
    assert journal.seen.step == 2


def test_letting_go_touches_nothing() -> None:
    host = make_host()
    fleet, journal = FakeFleet(lambda event: None), FakeJournal(host.post)
    timer = threading.Timer(0.3, host.let_go)
    timer.start()
    assert host.run(fleet, journal, FakeArchive(host.post)) is None
    assert fleet.done == [("spawn", "1.1")]
    assert journal.told == []
