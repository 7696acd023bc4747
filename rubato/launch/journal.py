"""The journal of a local run: facts as JSON lines in its folder, and for the eye.

A disk that is full, or fails, is no reason to end a training: lines wait in memory until they can be written. A file
never ends in half a line, whenever it is looked at after a write. Output is bounded: a program may print what it likes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rubato.engine.coordinator import Emit, RowsStored
from rubato.launch.host import Post
from rubato.launch.lines import FIRST, older
from rubato.launch.progress import ProgressPrinter
from rubato.launch.records import OUTCOME
from rubato.wire.cluster import ActionAnswer, LogLine, MetricRow, Observed, Outcome, WorkerReport
from rubato.wire.codec import to_json
from rubato.wire.events import EventKind
from rubato.wire.units import utc_timestamp

KEPT_BYTES = 64 * 2**20
"""Of each file, in memory: a day of metric rows. The oldest lines go first, and how many is told."""
LOG_BYTES = 256 * 2**20
"""Of output, in two files: when the newer one is full it takes the place of the older one."""
RETRY_S = 1.0
"""Between two looks whether there is room again."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class LineFile:
    """A file of lines. Those that cannot be written now wait, in order, for the next call.

    Args:    most_bytes: a file that would become larger is put aside, in place of the one before it; None: none is.
    """

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        self.name = path.name
        self._path = path
        self._most_bytes = most_bytes
        self._handle = os.open(path, _FLAGS, 0o644)
        self._end = os.fstat(self._handle).st_size
        self._firsts = [1, 1]
        """Number of the first line of all that is kept, and of the first one in this file."""
        self._next = 1
        """Number of the next line."""
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.dropped = 0
        """Lines that were let go of, because too many waited."""
        self.forgotten = 0
        """Lines that were written, and are gone with their file."""

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
        if self._most_bytes is not None and self._next > self._firsts[1] and self._end + len(line) > self._most_bytes:
            self._put_aside()
        written = 0
        try:
            while written < len(line):  # a disk takes the part that it has room for, and only then says that it is full
                written += os.write(self._handle, line[written:])
        except OSError:
            if written:
                os.ftruncate(self._handle, self._end)
            raise
        self._end += written
        self._next += 1

    def _put_aside(self) -> None:
        """Begin a new file, whose first line says which number its second one has. Nothing happens where that fails."""
        fresh = self._path.with_name(f"{self.name}.new")
        head = json.dumps({FIRST: self._next}).encode() + b"\n"
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()  # of a try that failed
        handle = os.open(fresh, _FLAGS, 0o644)
        try:
            if os.write(handle, head) < len(head):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with contextlib.suppress(FileNotFoundError):  # a try before failed behind this
                self._path.replace(older(self._path))
            fresh.replace(self._path)
        except OSError:
            os.close(handle)
            raise
        os.close(self._handle)
        self._handle, self._end = handle, len(head)
        self.forgotten += self._firsts[1] - self._firsts[0]
        self._firsts = [self._firsts[1], self._next]

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
        stand: what is told of it beside the outcome, for whoever asks after the end.
    """

    folder: Path
    progress: ProgressPrinter
    post: Post
    see: Any
    clock: Callable[[], float] = time.monotonic
    stand: Callable[[], dict[str, Any]] = dict

    def __post_init__(self) -> None:
        most = {"events": None, "metrics": None, "logs": LOG_BYTES // 2}
        self._files = {name: LineFile(self.folder / f"{name}.jsonl", size) for name, size in most.items()}
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
        file = self._files["logs"]
        if file.forgotten:
            gone, file.forgotten = file.forgotten, 0
            text = f"{gone} lines of output were dropped, the oldest: a run keeps the newest {LOG_BYTES >> 20} MiB"
            self._write("logs", to_json(replace(line, stream="system", line=text)))
            self.progress.tell(text)

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
        self._write("events", {"time": utc_timestamp(), "kind": OUTCOME, **self.stand(), **to_json(outcome)})

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
