"""Log lines in append-only segment files; what counts as written stands in the database.

A batch is appended and synced, then the transaction that acknowledges it commits the new offset. After a crash in
between the file is longer than the offset says: the next append cuts it there, so nothing is doubled and nothing
acknowledged is lost. Readers never look behind the committed offset. Who appends when: see `service.log_writes`.
"""

from __future__ import annotations

import bisect
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from rubato.wire.cluster import LogLine
from rubato.wire.terminal import readable
from service.clock import parse_rfc3339

MAX_LINE_CHARS = 64 * 1024
"""A longer line is cut; its end says so."""
MAX_SCAN_BYTES = 64 * 1024 * 1024
"""A filtered tail gives up behind so much text, and a filtered read says where to go on."""
MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Of lines in one reply, of which there may be 10,000: it is made in one go, and all else waits meanwhile."""
DISORDER = timedelta(minutes=1)
"""So much may a line be older than one before it: workers report by themselves, and each has a clock of its own."""
LOCK = ".lock"
"""In each job's folder."""
_BLOCK_BYTES = 256 * 1024
_quoted = json.encoder.encode_basestring
"""A text as JSON, in C; not ASCII only."""


@dataclass(frozen=True, order=True)
class LogPosition:
    """A place between two lines: behind `offset` bytes of a segment."""

    segment: int = 0
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> LogPosition:
        """Read `SEGMENT:OFFSET`.

        Raises:
            ValueError: another form.
        """
        segment, separator, offset = text.partition(":")
        if not (separator and segment.isdecimal() and offset.isdecimal() and len(text) <= 40):
            raise ValueError(f"{text!r} is no log position; pass an `id` or `next` of a former reply, such as '0:1234'")
        return cls(int(segment), int(offset))


@dataclass(frozen=True)
class LogFilter:
    """Which lines are wanted; empty: all."""

    ranks: frozenset[int] = frozenset()
    attempt: int | None = None
    text: str = ""
    since: datetime | None = None

    def takes(self, item: dict[str, Any]) -> bool:
        """Whether a line is wanted."""
        return (
            (not self.ranks or item["rank"] in self.ranks)
            and (self.attempt is None or item["attempt"] == self.attempt)
            and (not self.text or self.text.lower() in readable(str(item["line"]), keep_colours=False).lower())
            and (self.since is None or not _is_before(item["time"], self.since))
        )

    def begins_after(self, item: dict[str, Any]) -> bool:
        """Whether no line before this one is wanted."""
        return self.since is not None and _is_before(item["time"], self.since - DISORDER)


class LogStore:
    """The segment files of all jobs, one folder a job. Job ids come from the database, never from a request."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes

    def hold(self, job_id: str) -> int:
        """Keep all others, also of other processes, from appending to a log, until the descriptor given is closed.

        Raises:
            BlockingIOError: somebody holds it.
        """
        folder = self._folder / job_id
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def append(
        self, job_id: str, at: LogPosition, attempt: int, lines: Sequence[LogLine], due: float = math.inf
    ) -> LogPosition:
        """Write lines behind the committed position and sync them; gives the position to commit.

        Whoever appends holds the log. `due`, on the monotonic clock: later nothing is written.

        Raises:
            BlockingIOError: a replica of the release before, which locks the file itself, writes it.
            TimeoutError: it is due.
        """
        if not lines:
            return at
        data = _encode(lines, attempt)
        at = self._rotate(job_id, at)
        path = self._path(job_id, at.segment)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.monotonic() > due:
                raise TimeoutError(f"an append to {path.name} of {job_id} came too late")
            os.ftruncate(descriptor, at.offset)
            with os.fdopen(os.dup(descriptor), "r+b") as stream:
                stream.seek(at.offset)
                stream.write(data)
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        if at.offset == 0:
            # Not only where the file is new: it may be left of a crash before this.
            for folder in (path.parent, self._folder):
                _sync_folder(folder)
        return LogPosition(at.segment, at.offset + len(data))

    def cut_tail(self, job_id: str, at: LogPosition) -> int:
        """Remove what was appended but never committed; gives the bytes removed."""
        removed = 0
        path = self._path(job_id, at.segment)
        if path.exists() and path.stat().st_size > at.offset:
            removed += path.stat().st_size - at.offset
            os.truncate(path, at.offset)
        later = self._path(job_id, at.segment + 1)
        if later.exists():
            removed += later.stat().st_size
            later.unlink()
        return removed

    def remove(self, job_id: str, limit: int) -> int:
        """Remove some of a job's segments, and with the last one its folder; gives how many, 0 where none was left."""
        folder = self._folder / job_id
        if not folder.is_dir():
            return 0
        segments = sorted(path for path in folder.iterdir() if path.name != LOCK)[:limit]
        for segment in segments:
            segment.unlink(missing_ok=True)
        if not segments:
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()
        return len(segments)

    def read(
        self, job_id: str, after: LogPosition, end: LogPosition, limit: int, wanted: LogFilter
    ) -> tuple[list[dict[str, Any]], LogPosition]:
        """Lines behind a position, up to the committed end; and where to go on.

        At most `limit` lines, and about `MAX_PAGE_BYTES` of them; at most `MAX_SCAN_BYTES` of text looked at: where few
        lines are wanted there may be none in it, and the position is then still before the end.
        """
        items: list[dict[str, Any]] = []
        scanned = taken = 0
        here = after
        if after >= end:  # nothing to read, and perhaps no place to seek to
            return items, after
        for segment in range(after.segment, end.segment + 1):
            start = after.offset if segment == after.segment else 0
            here = LogPosition(segment, start)
            for position, raw in self._lines(job_id, segment, start, end):
                here = position
                scanned += len(raw) + 1
                item = _decode(raw, position)
                if item is not None and wanted.takes(item):
                    items.append(item)
                    taken += len(raw)
                if len(items) >= limit or taken > MAX_PAGE_BYTES or scanned > MAX_SCAN_BYTES:
                    return items, here
        return items, max(here, end)

    def tail(
        self, job_id: str, end: LogPosition, count: int, wanted: LogFilter
    ) -> tuple[list[dict[str, Any]], LogPosition | None]:
        """The last lines before a position, oldest first; and before which one to go on, None at the beginning.

        About `MAX_PAGE_BYTES` of lines, and at most `MAX_SCAN_BYTES` of text looked at: there may be fewer lines than
        asked for, and more before them.
        """
        items: list[dict[str, Any]] = []
        if count <= 0:
            return items, end
        scanned = taken = 0
        for start, item, num_bytes in self._items_backward(job_id, end, wanted):
            scanned += num_bytes
            if item is not None:
                items.append(item)
                taken += num_bytes
            if len(items) >= count or taken > MAX_PAGE_BYTES or scanned > MAX_SCAN_BYTES:
                return items[::-1], None if start == LogPosition() else start
        return items[::-1], None

    def find_tail(self, job_id: str, end: LogPosition, count: int, wanted: LogFilter) -> LogPosition:
        """Where the lines of a tail begin, however many bytes they have: for who reads on from there."""
        begin, found, scanned = end, 0, 0
        if count <= 0:
            return end
        for start, item, num_bytes in self._items_backward(job_id, end, wanted):
            begin = start
            found += item is not None
            scanned += num_bytes
            if found >= count or scanned > MAX_SCAN_BYTES:
                break
        return begin

    def _items_backward(
        self, job_id: str, end: LogPosition, wanted: LogFilter
    ) -> Iterator[tuple[LogPosition, dict[str, Any] | None, int]]:
        """Where each line begins, itself if it is wanted, and its bytes; until nothing that is wanted lies before."""
        for segment in range(end.segment, -1, -1):
            for position, raw in self._lines_backward(job_id, segment, end):
                item = _decode(raw, position)
                if item is not None and wanted.begins_after(item):
                    return
                start = LogPosition(segment, max(0, position.offset - len(raw) - 1))
                yield start, item if item is not None and wanted.takes(item) else None, len(raw) + 1

    def find(self, job_id: str, end: LogPosition, since: datetime) -> LogPosition:
        """A position before all lines of that time and later, and not long before them.

        Lines stand about in the order of their times (`DISORDER`), so that few of them need to be looked at.
        """
        older_than = since - DISORDER
        segments = range(end.segment + 1)
        first_new = bisect.bisect_left(
            segments, True, key=lambda segment: not self._is_older(self._path(job_id, segment), 0, older_than)
        )
        if first_new == 0:
            return LogPosition()
        path = self._path(job_id, first_new - 1)
        blocks = range(_BLOCK_BYTES, path.stat().st_size, _BLOCK_BYTES)
        older = bisect.bisect_left(blocks, True, key=lambda offset: not self._is_older(path, offset, older_than))
        with path.open("rb") as stream:
            return LogPosition(first_new - 1, _line_start(stream, blocks[older - 1] if older else 0))

    def _is_older(self, path: Path, offset: int, than: datetime) -> bool:
        """Of the first line that begins at an offset or behind it; False, too, where there is none that can be read."""
        try:
            with path.open("rb") as stream:
                _line_start(stream, offset)
                item = _decode(stream.readline(), LogPosition())
        except FileNotFoundError:
            return False
        return item is not None and _is_before(item["time"], than)

    def _lines(self, job_id: str, segment: int, start: int, end: LogPosition) -> Iterator[tuple[LogPosition, bytes]]:
        path = self._path(job_id, segment)
        if not path.exists():
            return
        stop = end.offset if segment == end.segment else path.stat().st_size
        if start >= stop:  # a position behind the end is as the end, and perhaps no place to seek to
            return
        with path.open("rb") as stream:
            stream.seek(start)
            offset = start
            while offset < stop:
                raw = stream.readline()
                if not raw.endswith(b"\n"):
                    return
                offset += len(raw)
                yield LogPosition(segment, offset), raw[:-1]

    def _lines_backward(self, job_id: str, segment: int, end: LogPosition) -> Iterator[tuple[LogPosition, bytes]]:
        path = self._path(job_id, segment)
        if not path.exists():
            return
        stop = min(end.offset, path.stat().st_size) if segment == end.segment else path.stat().st_size
        rest = b""
        with path.open("rb") as stream:
            while stop > 0:
                start = max(0, stop - _BLOCK_BYTES)
                stream.seek(start)
                block = stream.read(stop - start) + rest
                lines = block.split(b"\n")
                # The first piece may have begun in the block before.
                rest = lines[0] if start > 0 else b""
                offset = start + len(block)
                for raw in reversed(lines[1:] if start > 0 else lines):
                    if raw:
                        # `offset` is where this line's text ends; its newline belongs to it where there is one.
                        yield LogPosition(segment, offset + 1), raw
                    offset -= len(raw) + 1
                stop = start

    def _rotate(self, job_id: str, at: LogPosition) -> LogPosition:
        path = self._path(job_id, at.segment)
        is_short = at.offset > 0 and (not path.exists() or path.stat().st_size < at.offset)
        # A file shorter than its committed offset was damaged from outside: go on in a fresh one.
        if at.offset >= self._segment_bytes or is_short:
            return LogPosition(at.segment + 1, 0)
        return at

    def _path(self, job_id: str, segment: int) -> Path:
        return self._folder / job_id / f"{segment:08d}.jsonl"


def _encode(lines: Sequence[LogLine], attempt: int) -> bytes:
    """One JSON object a line. Put together by hand: of thousands of lines each would cost an encoder otherwise."""
    return "".join(
        f'{{"t":{_quoted(line.time)},"w":{_quoted(line.worker_id)},"r":{"null" if line.rank is None else line.rank},'
        f'"a":{attempt},"s":{_quoted(line.stream)},"l":{_quoted(_cut(line.line))}}}\n'
        for line in lines
    ).encode()


def _cut(text: str) -> str:
    if len(text) <= MAX_LINE_CHARS:
        return text
    return f"{text[:MAX_LINE_CHARS]} ... ({len(text) - MAX_LINE_CHARS} more characters cut)"


def _decode(raw: bytes, position: LogPosition) -> dict[str, Any] | None:
    try:
        record = json.loads(raw)
        return {
            "id": str(position),
            "time": record["t"],
            "worker_id": record["w"],
            "rank": record["r"],
            "attempt": record["a"],
            "stream": record["s"],
            "line": record["l"],
        }
    except (ValueError, KeyError, TypeError):
        # A damaged line costs itself, not the whole log.
        return None


def _line_start(stream: BinaryIO, offset: int) -> int:
    """Where the first line begins at an offset or behind it; the stream stands there then."""
    stream.seek(max(0, offset - 1))
    if offset > 0:
        stream.readline()
    return stream.tell()


def _is_before(time: str, moment: datetime) -> bool:
    """False where the time cannot be read: rather a line too many than one too few."""
    try:
        return parse_rfc3339(time) < moment
    except ValueError:
        return False


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
