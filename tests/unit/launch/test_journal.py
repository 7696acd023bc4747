from __future__ import annotations

import errno
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rubato.engine.coordinator import Emit
from rubato.launch import journal
from rubato.launch.journal import LineFile, LocalJournal
from rubato.launch.progress import ProgressPrinter
from rubato.wire.cluster import Observed, Outcome

SEEN = Observed("running", "training", 1, workers=1, joining=0, step=1, total_steps=5, restarts=0, scalings=0)


class Disk:
    """Takes so many bytes more, and the part of a write that it has room for, as disks do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._real = os.write
        monkeypatch.setattr(journal.os, "write", self._write)

    def _write(self, handle: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._real(handle, data[: self.room])
        self.room -= written
        return written


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_line_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, file = Disk(monkeypatch, room=25), LineFile(tmp_path / "a.jsonl")
    errors = [file.append(f"line {number:04}") for number in range(4)]  # of 10 bytes each
    assert [error is None for error in errors] == [True, True, False, True], "asked once, then waited for"
    assert (tmp_path / "a.jsonl").read_text() == "line 0000\nline 0001\n"
    assert file.waiting == 2
    disk.room = 10
    assert isinstance(file.catch_up(), OSError)
    assert (tmp_path / "a.jsonl").read_text() == "line 0000\nline 0001\nline 0002\n"
    disk.room = 10**6
    assert file.catch_up() is None
    assert file.append("line 0004") is None
    file.close()
    assert (tmp_path / "a.jsonl").read_text() == "".join(f"line {number:04}\n" for number in range(5))


def test_what_waits_is_bounded_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "KEPT_BYTES", 35)
    disk, file = Disk(monkeypatch, room=0), LineFile(tmp_path / "a.jsonl")
    for number in range(10):
        file.append(f"line {number:04}")
    assert (file.waiting, file.dropped) == (3, 7)
    disk.room = 10**6
    file.catch_up()
    file.close()
    assert (tmp_path / "a.jsonl").read_text() == "line 0007\nline 0008\nline 0009\n"


@pytest.fixture
def told() -> io.StringIO:
    return io.StringIO()


def local_journal(folder: Path, told: io.StringIO, clock: Any = None) -> LocalJournal:
    return LocalJournal(folder, ProgressPrinter(told), lambda event: None, lambda *_: None, clock or Clock())


def test_a_journal_says_once_that_it_waits_and_once_that_it_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    clock = Clock()
    one = local_journal(tmp_path, told, clock)
    disk = Disk(monkeypatch, room=0)
    for number in range(5):
        one.emit(Emit("some.kind", f"event {number}"))
        clock.now += 10
        one.observe(SEEN, ())
    assert told.getvalue().count("No space left on device") == 1
    disk.room = 10**6
    one.observe(SEEN, ())
    assert not (tmp_path / "events.jsonl").read_text(), "not asked more often than that"
    clock.now += 10
    one.observe(SEEN, ())
    assert re.search("5 lines that had waited for room in .* were written after all", told.getvalue())
    one.end(Outcome("cancelled"))
    one.close()
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line.get("message") for line in lines[:5]] == [f"event {number}" for number in range(5)]
    assert lines[5]["kind"] == "outcome"


def test_what_never_found_room_is_counted_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: io.StringIO
) -> None:
    one = local_journal(tmp_path, told)
    Disk(monkeypatch, room=0)
    one.emit(Emit("some.kind", "an event"))
    one.end(Outcome("cancelled"))
    one.close()
    assert "the last 2 lines of events.jsonl were never written" in told.getvalue()


def test_a_terminal_that_takes_nothing_ends_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        printer = ProgressPrinter(full)
        printer.tell("a line")
        printer.observe(SEEN)
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # it would try again when it is closed
