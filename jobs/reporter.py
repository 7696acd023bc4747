"""Facts on their way to the service: a journal in memory, sent as numbered batches until each is acknowledged."""

from __future__ import annotations

import random
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from jobs.service_link import Fenced, NotWanted, Refused, Unreachable, encode
from rubato.engine.coordinator import Emit, RowsStored
from rubato.errors import RubatoError
from rubato.launch.host import Post
from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import (
    ActionAnswer,
    EventReport,
    LogLine,
    MetricRow,
    Observed,
    Outcome,
    Report,
    ReportReply,
    WorkerReport,
)
from rubato.wire.units import utc_timestamp

MIN_INTERVAL_S = 1.0
MAX_INTERVAL_S = 5.0
RETRY_FIRST_S = 0.2
RETRY_MAX_S = 3.0
MAX_EVENTS = 500
MAX_ROWS = 1000
MAX_LOG_LINES = 2000
MAX_PART_BYTES = 1_500_000
"""Of each of these in one batch: all together are well below the largest body that the service takes, 8 MiB."""
MAX_ANSWERS = 16
"""Each may hold the stacks of a process: 64 KiB."""
MAX_SPOOLED_LINES = 50_000
"""Log lines kept while the service is away; the oldest go first. Events are all kept."""
MAX_SPOOLED_ROWS = 100_000
"""Metric rows kept meanwhile, some 100 MB: beyond that every second one goes, so that curves keep their shape."""

MAX_OUTPUT_BYTES = 256_000
"""Of the last output that tells why a job failed."""
TOO_LARGE, NOT_TAKEN = 413, 422
"""Refusals that are about the batch; others (a token, a host name) are about how the service was set up."""

T = TypeVar("T")


class ReportLink(Protocol):
    """The one call that is needed of `ServiceLink`."""

    def report(self, job_id: str, report: Report) -> ReportReply:
        """Hand in a batch."""


@dataclass
class _Spool:
    """What is not sent yet, in order."""

    events: deque[EventReport] = field(default_factory=deque)
    rows: deque[tuple[int, MetricRow]] = field(default_factory=deque)
    """Each with its number."""
    num_rows: int = 0
    """That were noted so far."""
    logs: deque[LogLine] = field(default_factory=deque)
    answers: deque[ActionAnswer] = field(default_factory=deque)
    lost_lines: int = 0
    lost_rows: int = 0
    stride: int = 1
    """Of the rows those are kept whose number it divides, and the newest."""

    def add_row(self, row: MetricRow) -> None:
        """Where they become too many each second one goes, of those to come, too: they are equally far apart."""
        self.num_rows += 1
        if not self.rows:
            self.stride = 1
        elif self.rows[-1][0] % self.stride:
            self.rows.pop()
            self.lost_rows += 1
        self.rows.append((self.num_rows, row))
        if len(self.rows) > MAX_SPOOLED_ROWS:
            self.stride *= 2
            kept = deque(one for one in self.rows if one[0] % self.stride == 0 or one[0] == self.num_rows)
            self.lost_rows += len(self.rows) - len(kept)
            self.rows = kept

    @property
    def is_empty(self) -> bool:
        return not (self.events or self.rows or self.logs or self.answers)


class Reporter:
    """A `Journal` that the service reads. Its methods only note; a thread does the sending."""

    def __init__(
        self,
        link: ReportLink,
        job_id: str,
        attempt: int,
        post: Post,
        on_fenced: Callable[[], None],
        crash: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._job_id = job_id
        self._attempt = attempt
        self._post = post
        self._on_fenced = on_fenced
        self._crash = crash
        self._clock = clock
        self._changed = threading.Condition()
        self._spool = _Spool()
        self._observed: Observed | None = None
        self._workers: tuple[WorkerReport, ...] = ()
        self._outcome: Outcome | None = None
        self._is_dirty = False
        self._is_closed = False
        self._seq = 0
        self._batch = 0
        self._sending: tuple[int, ...] = ()
        """The numbers of the rows in the present batch."""
        self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    # --- Journal --------------------------------------------------------------------------------

    def emit(self, event: Emit) -> None:
        """Note an event; it gets its number here."""
        with self._changed:
            self._note(event.kind, event.message, event.step, event.generation, event.data)

    def rows(self, rows: tuple[MetricRow, ...]) -> None:
        """Note metric rows."""
        with self._changed:
            for row in rows:
                self._spool.add_row(row)
            self._touch()

    def log(self, line: LogLine) -> None:
        """Note a line of output."""
        with self._changed:
            if len(self._spool.logs) >= MAX_SPOOLED_LINES:
                self._spool.logs.popleft()
                self._spool.lost_lines += 1
            self._spool.logs.append(line)
            self._touch()

    def observe(self, observed: Observed, workers: tuple[WorkerReport, ...]) -> None:
        """Take in how the job stands."""
        with self._changed:
            if observed != self._observed or _placement(workers) != _placement(self._workers):
                self._touch()
            self._observed, self._workers = observed, workers

    def answer(self, answer: ActionAnswer) -> None:
        """Note what came of an action."""
        with self._changed:
            self._spool.answers.append(answer)
            self._touch()

    def end(self, outcome: Outcome) -> None:
        """The last word: goes with the last batch."""
        with self._changed:
            self._outcome = _with_short_output(outcome)
            self._workers = ()
            self._touch()

    # --- the end --------------------------------------------------------------------------------

    def wait_acknowledged(self) -> None:
        """Wait until the outcome is stored (or this attempt is fenced), however long the service is away."""
        self._thread.join()

    def close(self) -> None:
        """Stop sending; what is left is not sent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    # --- sending --------------------------------------------------------------------------------

    def _note(self, kind: str, message: str, step: int | None, generation: int | None, data: dict[str, Any]) -> None:
        self._seq += 1
        self._spool.events.append(EventReport(self._seq, utc_timestamp(), kind, message, step, generation, data))
        self._touch()

    def _touch(self) -> None:
        self._is_dirty = True
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._send()
        except BaseException:
            # Whoever waits for the outcome must not take the end of this thread for it.
            traceback.print_exc()
            self._crash()

    def _send(self) -> None:
        sent_at = self._clock() - MAX_INTERVAL_S
        while (report := self._next(sent_at)) is not None:
            sent_at = self._clock()
            delivered = self._deliver(report)
            if delivered is None or delivered.outcome is not None:
                return

    def _next(self, sent_at: float) -> Report | None:
        """The next batch, when it is time for one; None once closed."""
        with self._changed:
            while not self._is_closed:
                due_at = sent_at + (MIN_INTERVAL_S if self._is_dirty else MAX_INTERVAL_S)
                now = self._clock()
                # The end need not wait.
                if self._observed is not None and (now >= due_at or self._outcome is not None):
                    return self._build()
                self._changed.wait(max(0.01, due_at - now) if self._observed is not None else None)
        return None

    def _build(self) -> Report:
        """With the lock held."""
        spool = self._spool
        for count, what in ((spool.lost_lines, "lines"), (spool.lost_rows, "metric rows, evenly,")):
            if count:
                text = f"{count} {what} were dropped while the service was away"
                spool.logs.appendleft(LogLine("", None, utc_timestamp(), "system", text))
        spool.lost_lines = spool.lost_rows = 0
        events, logs = _take(spool.events, MAX_EVENTS), _take(spool.logs, MAX_LOG_LINES)
        rows = _take(spool.rows, MAX_ROWS)
        self._sending = tuple(number for number, _ in rows)
        answers = _take(spool.answers, MAX_ANSWERS)
        self._is_dirty = not spool.is_empty
        self._batch += 1
        assert self._observed is not None
        return Report(
            attempt=self._attempt,
            batch=self._batch,
            wire_version=WIRE_VERSION,
            observed=self._observed,
            workers=self._workers,
            events=events,
            metrics=tuple(row for _, row in rows),
            logs=logs,
            answers=answers,
            outcome=self._outcome if spool.is_empty else None,
        )

    def _deliver(self, report: Report) -> Report | None:
        """Send a batch, unchanged, until it is acknowledged. None: this attempt is fenced, or all is closed."""
        pause_s = RETRY_FIRST_S
        while not self._is_closed:
            try:
                self._link.report(self._job_id, report)
            except (Fenced, NotWanted) as error:
                print(f"reporter: {error}", file=sys.stderr)
                self._on_fenced()
                return None
            except Unreachable:
                self._pause(pause_s * random.uniform(0.8, 1.2))
                pause_s = min(RETRY_MAX_S, pause_s * 2)
            except Refused as error:
                if error.status == TOO_LARGE and _count(report) > 1:
                    report = self._halve(report)
                    continue
                if error.status in (TOO_LARGE, NOT_TAKEN):
                    report = self._without_what_was_refused(report, error)
                else:
                    print(f"reporter: batch {report.batch} waits ({error.status}): {error}", file=sys.stderr)
                self._pause(pause_s)
                pause_s = min(RETRY_MAX_S, pause_s * 2)
            except RubatoError as error:  # a reply that does not hold: as if there were none
                print(f"reporter: {error}", file=sys.stderr)
                self._pause(RETRY_MAX_S)
            else:
                if self._sending:
                    # Also rows that were refused: nobody will ever take them, and the end of the job waits for this.
                    self._post(RowsStored(self._sending[-1]))
                return report
        return None

    def _halve(self, report: Report) -> Report:
        """The first half of what a batch holds, under its number; the rest goes back to where it was taken from."""
        spool, left = self._spool, _count(report) // 2
        kept: list[tuple[Any, ...]] = []
        with self._changed:
            numbered = tuple(zip(self._sending, report.metrics, strict=True))
            held: tuple[tuple[Any, ...], ...] = (report.events, numbered, report.logs, report.answers)
            places: tuple[deque[Any], ...] = (spool.events, spool.rows, spool.logs, spool.answers)
            for items, place in zip(held, places, strict=True):
                kept.append(items[:left])
                place.extendleft(reversed(items[left:]))
                left -= len(kept[-1])
            self._touch()
        events, rows, logs, answers = kept
        self._sending = tuple(number for number, _ in rows)
        metrics = tuple(row for _, row in rows)
        return replace(report, events=events, metrics=metrics, logs=logs, answers=answers, outcome=None)

    def _without_what_was_refused(self, report: Report, error: Refused) -> Report:
        """A batch that will never be taken must not stop all that come after it: its content is given up, loudly.

        An outcome is told again; without what may be wrong with it, where it was alone.
        """
        print(f"reporter: batch {report.batch} was refused ({error.status}): {error}", file=sys.stderr)
        with self._changed:
            if report.outcome is not None:
                # Where there is more in the batch, that may be at fault: then it is told again as it is.
                self._outcome = report.outcome if _count(report) else _without_details(report.outcome)
            if _count(report):
                text = f"a batch was refused by the service and given up: {str(error)[:1000]}"
                self._note("report.refused", text, None, None, {})
        return replace(report, events=(), metrics=(), logs=(), answers=(), outcome=None)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, seconds)


def _take(items: deque[T], count: int) -> tuple[T, ...]:
    """The first ones that fit into a batch; one always does."""
    taken: list[T] = []
    size = 0
    while items and len(taken) < count:
        size += len(encode(items[0])) + 2
        if taken and size > MAX_PART_BYTES:
            break
        taken.append(items.popleft())
    return tuple(taken)


def _count(report: Report) -> int:
    return sum(map(len, (report.events, report.metrics, report.logs, report.answers)))


def _with_short_output(outcome: Outcome) -> Outcome:
    """With no more of the last output than a batch can carry; the end of it."""
    if outcome.failure is None:
        return outcome
    lines: deque[str] = deque()
    size = 0
    for line in reversed(outcome.failure.last_output):
        size += len(encode(line))
        if size > MAX_OUTPUT_BYTES:
            break
        lines.appendleft(line)
    return replace(outcome, failure=replace(outcome.failure, last_output=tuple(lines)))


def _without_details(outcome: Outcome) -> Outcome:
    if outcome.failure is None:
        return outcome
    message = outcome.failure.message[:1000]
    return replace(outcome, failure=replace(outcome.failure, message=message, traceback=None, last_output=()))


def _placement(workers: tuple[WorkerReport, ...]) -> list[tuple[Any, ...]]:
    """What of the workers is worth a report by itself: their steps and phases change all the time."""
    return [(one.incarnation, one.rank, one.pid, one.state) for one in workers]
