"""What `rubato run` shows while it trains: events and output as lines, and one progress line on a terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TextIO

from rubato.wire.cluster import LogLine, Observed
from rubato.wire.terminal import readable

PLAIN_EVERY_S = 5.0
"""Without a terminal: a line of progress so often."""
REDRAW_EVERY_S = 0.1
QUIET_EVENTS = frozenset({"worker.started", "checkpoint.committed", "checkpoint.deleted"})
"""In events.jsonl, but not worth a line each on the terminal."""
_CLEAR = "\r\x1b[2K"


class ProgressPrinter:
    """Writes to standard error: standard output is for the result alone."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._drawn = ""
        self._next_at = 0.0
        self.loss: float | None = None
        """Of the last step."""

    def event(self, kind: str, message: str) -> None:
        """Tell an event."""
        if kind not in QUIET_EVENTS:
            self.tell(message)

    def tell(self, message: str) -> None:
        """A line of the run itself."""
        self._line(f"rubato: {message}")

    def output(self, line: LogLine) -> None:
        """Pass on what a worker wrote."""
        who = line.worker_id if line.rank is None else f"rank {line.rank}"
        self._line(f"[{who}] {line.line}")

    def observe(self, observed: Observed) -> None:
        """Show where training stands, where it is time to."""
        now = self._clock()
        if now < self._next_at:
            return
        self._next_at = now + (REDRAW_EVERY_S if self._is_terminal else PLAIN_EVERY_S)
        text = describe_progress(observed, self.loss)
        if text == self._drawn:
            return
        self._drawn = text
        self._put(f"{_CLEAR}{text}" if self._is_terminal else f"rubato: {text}\n")

    def close(self) -> None:
        """Take the progress line away."""
        if self._is_terminal and self._drawn:
            self._put(_CLEAR)

    def _line(self, text: str) -> None:
        text = readable(text, keep_colours=self._is_terminal)
        if self._is_terminal and self._drawn:
            self._put(f"{_CLEAR}{text}\n{self._drawn}")
        else:
            self._put(text + "\n")

    def _put(self, text: str) -> None:
        # It may be a file on a disk that is full, or a pipe that nobody reads: no reason to end a training.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def describe_progress(observed: Observed, loss: float | None) -> str:
    """`training, step 120 of 500, loss 0.3124, 4 workers (2 joining)`."""
    step = f"step {observed.step}" + (f" of {observed.total_steps}" if observed.total_steps else "")
    count = "1 worker" if observed.workers == 1 else f"{observed.workers} workers"
    parts = [observed.phase, step]
    if loss is not None:
        parts.append(f"loss {loss:.4f}")
    parts.append(count + (f" ({observed.joining} joining)" if observed.joining else ""))
    if observed.reason:
        parts.append(observed.reason)
    return ", ".join(parts)
