"""The journal of a local run: facts as JSON lines in its folder, and for the eye.

A disk that is full, or fails, is no reason to end a training: lines wait in memory until they can be written. A file
never ends in half a line, whenever it is looked at after a write.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rubato.engine.coordinator import Emit, RowsStored
from rubato.launch.host import Post
from rubato.launch.progress import ProgressPrinter
from rubato.launch.records import OUTCOME
from rubato.wire.cluster import ActionAnswer, LogLine, MetricRow, Observed, Outcome, WorkerReport
from rubato.wire.codec import to_json
from rubato.wire.events import EventKind
from rubato.wire.units import utc_timestamp

KEPT_BYTES = 64 * 2**20
"""Of each file, in memory: a day of metric rows. The oldest lines go first, and how many is told."""
RETRY_S = 1.0
"""Between two looks whether there is room again."""


class LineFile:
    """A file of lines. Those that cannot be written now wait, in order, for the next call."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._end = os.fstat(self._handle).st_size
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.dropped = 0
        """Lines that were let go of, because too many waited."""

    @property
    def waiting(self) -> int:
        """Lines that are not in the file yet."""
        return len(self._waiting)

    def append(self, line: str) -> OSError | None:
        """Add a line, behind those that wait; why it waits now, where it has to."""
        self._waiting.append(line.encode() + b"\n")
        self._waiting_bytes += len(self._waiting[-1])
        while self._waiting_bytes > KEPT_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.dropped += 1
        return self.catch_up() if len(self._waiting) == 1 else None

    def catch_up(self) -> OSError | None:
        """Write what waits, as far as that is possible; why it is not, where something is left."""
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting_bytes -= len(self._waiting.popleft())
        except OSError as error:
            return error
        return None

    def _write(self, line: bytes) -> None:
        """One line, whole or not at all."""
        written = 0
        try:
            while written < len(line):  # a disk takes the part that it has room for, and only then says that it is full
                written += os.write(self._handle, line[written:])
        except OSError:
            if written:
                os.ftruncate(self._handle, self._end)
            raise
        self._end += written

    def close(self) -> None:
        """Nothing is written any more."""
        os.close(self._handle)


@dataclass
class LocalJournal:
    """The facts of one run, in the files of its folder.

    Args:
        folder: of the run.
        progress: shows them.
        post: takes word of rows that are stored.
        see: takes how the job stands.
        clock: in seconds.
    """

    folder: Path
    progress: ProgressPrinter
    post: Post
    see: Any
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._files = {name: LineFile(self.folder / f"{name}.jsonl") for name in ("events", "metrics", "logs")}
        self._num_rows = 0
        self.saved_step: int | None = None
        """Of the newest checkpoint that was saved."""
        self._retry_at = 0.0
        self._is_behind = False

    def emit(self, event: Emit) -> None:
        """Note an event."""
        if event.kind == EventKind.CHECKPOINT_COMMITTED:
            self.saved_step = event.step
        self._write("events", {"time": utc_timestamp(), **to_json(event)})
        self.progress.event(event.kind, event.message)

    def rows(self, rows: tuple[MetricRow, ...]) -> None:
        """Note metric rows; what this process keeps counts as stored: the workers need not."""
        for row in rows:
            self._write("metrics", to_json(row))
        self.progress.loss = rows[-1].values.get("loss")
        self._num_rows += len(rows)
        self.post(RowsStored(self._num_rows))

    def log(self, line: LogLine) -> None:
        """Note a line of output."""
        self._write("logs", to_json(line))
        self.progress.output(line)

    def answer(self, answer: ActionAnswer) -> None:
        """Nobody asks a local run for an action."""

    def observe(self, observed: Observed, workers: tuple[WorkerReport, ...]) -> None:
        """Show progress; and where lines wait, see from time to time whether there is room again."""
        self.see(observed, workers)
        self.progress.observe(observed)
        if self._is_behind and self.clock() >= self._retry_at:
            self._retry_at = self.clock() + RETRY_S
            self._catch_up()

    def end(self, outcome: Outcome) -> None:
        """Note the end."""
        self.progress.close()
        self._write("events", {"time": utc_timestamp(), "kind": OUTCOME, **to_json(outcome)})

    def close(self) -> None:
        """Close the files, after a last look whether there is room for what waits."""
        self.progress.close()
        if self._is_behind:
            self._catch_up()
        for file in self._files.values():
            if file.waiting:
                lost = file.waiting + file.dropped
                self.progress.tell(f"the last {lost} lines of {file.name} were never written")
            file.close()

    def _write(self, name: str, value: dict[str, Any]) -> None:
        error = self._files[name].append(json.dumps(value))
        if error is not None and not self._is_behind:
            self._is_behind = True
            self.progress.tell(
                f"{self.folder} takes nothing more ({error.strerror or error}): what is told is kept in memory until "
                "there is room. Training goes on"
            )

    def _catch_up(self) -> None:
        waited = sum(file.waiting for file in self._files.values())
        errors = [file.catch_up() for file in self._files.values()]
        if any(errors):
            return
        self._is_behind = False
        dropped = sum(file.dropped for file in self._files.values())
        for file in self._files.values():
            file.dropped = 0
        gone = f"; {dropped} older ones were dropped" if dropped else ""
        self.progress.tell(f"{waited} lines that had waited for room in {self.folder} were written after all{gone}")
