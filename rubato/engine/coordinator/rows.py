"""Metric rows on their way to storage, and the pauses read from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rubato.engine.coordinator import orders
from rubato.engine.coordinator.pauses import SETTLING_STEPS, PauseMeter
from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from rubato.wire.events import EventKind
from rubato.wire.units import format_pause

ACKNOWLEDGE_EVERY_S = 1.0
MAX_SAVED_ROWS = 10_000
"""In a checkpoint: some MB. More wait only where the service is away for long."""
MAX_WAITING = 10_000
"""Of the places up to which rows may be known to be stored; beyond that they lie further apart."""


class RowBook:
    """One row a committed step, each passed on once; workers keep theirs until it is stored."""

    def __init__(self, job: JobState, row_step: int) -> None:
        self._job = job
        self._step = row_step
        self.stored = row_step
        """Rows up to this step are on storage: workers may forget them."""
        self._begun = 0
        """The step of the checkpoint that was begun from."""
        self._told = 0
        self._waiting: deque[tuple[int, int]] = deque()
        """(how many rows were told, the last of them) of what is not known to be stored."""
        self._unstored: deque[MetricRow] = deque(maxlen=2 * MAX_SAVED_ROWS)
        self._acknowledged_at = 0.0
        self._recent: deque[MetricRow] = deque(maxlen=SETTLING_STEPS + 1)
        self._meter: PauseMeter | None = None
        self._redone = 0
        self._from_workers = 0

    def rewind(self, step: int) -> None:
        """The job goes back to where it stood before: steps after it come again."""
        self._step = min(self._step, step)
        self.stored = min(self.stored, step)
        while self._unstored and self._unstored[-1].step > step:
            self._unstored.pop()
        # Rows of later steps that are still to be stored are of a past that is left behind.
        self._waiting = deque((count, min(last, step)) for count, last in self._waiting)

    def begin(self, step: int) -> None:
        """The job goes on from a checkpoint of this step: of rows up to it no more are to come than are known now.

        None are, where another job has made it.
        """
        self._begun = step

    def take(self, rows: Sequence[MetricRow], now: float) -> None:
        """Pass on those that are new."""
        fresh = [row for row in rows if row.step > self._step]
        for row in fresh:
            self._step = row.step
            if self._meter is not None:
                self._meter.see(row, now)
            self._recent.append(row)
        if fresh:
            self._unstored += fresh
            self._told += len(fresh)
            self._waiting.append((self._told, self._step))
            if len(self._waiting) > MAX_WAITING:
                self._waiting = deque(reversed(list(self._waiting)[::-2]))
            self._job.put(orders.Rows(tuple(fresh)))

    @property
    def told_step(self) -> int:
        """Rows up to this step are known, or will never be."""
        return max(self._step, self._begun)

    @property
    def are_stored(self) -> bool:
        """Whether all that were passed on are on storage; until then only what the workers keep of them is safe."""
        return not self._waiting

    def on_stored(self, count: int) -> None:
        """The host has so many rows on storage."""
        while self._waiting and self._waiting[0][0] <= count:
            self.stored = self._waiting.popleft()[1]
        while self._unstored and self._unstored[0].step <= self.stored:
            self._unstored.popleft()

    def unstored(self, step: int) -> tuple[MetricRow, ...]:
        """Rows up to a step that may go with this controller and its workers, the newest of them: a checkpoint takes
        them along, for whoever begins from it computes none of them again.
        """
        found = [row for row in self._unstored if row.step <= step]
        return tuple(found[-MAX_SAVED_ROWS:])

    def acknowledge(self, now: float) -> None:
        """Tell the members, at most once a second, which rows they may forget."""
        if self.stored and now - self._acknowledged_at >= ACKNOWLEDGE_EVERY_S:
            self._acknowledged_at = now
            for worker in self._job.roster.of(self._job.current):
                self._job.send(worker.incarnation, wire.Acknowledge(self._job.terms.attempt, self.stored))

    def watch(self, record: wire.GenerationRecord, from_workers: int, redone: int) -> None:
        """A generation begins: measure the pause it cost."""
        earlier = list(self._recent) if record.cause != "start" else []
        self._meter = PauseMeter(record.number, record.world, earlier)
        self._redone, self._from_workers = redone, from_workers

    def settle(self, now: float, *, force: bool = False) -> None:
        """Tell of a new generation once its pause can be given (`force`: now or never)."""
        meter, record = self._meter, self._job.current
        if meter is None or record is None or not meter.rows or not (force or meter.is_ripe(now)):
            return
        self._meter = None
        paused = meter.paused_s()
        first = meter.rows[0].step
        what = record.cause.replace("_", " ")
        workers = "1 worker" if record.world == 1 else f"{record.world} workers"
        self._job.emit(
            EventKind.GENERATION_FORMED,
            f"generation {record.number} formed ({what}), {workers}, step {first}"
            + ("" if paused is None else f", paused {format_pause(paused)}"),
            step=first,
            cause=record.cause,
            workers=record.world,
            from_workers=self._from_workers,
            paused_seconds=None if paused is None else round(paused, 4),
            redone_microbatches=self._redone,
            members=[{"worker_id": one.worker_id, "rank": rank} for rank, one in enumerate(record.members)],
        )
