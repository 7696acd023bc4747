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
from rubato.launch.lines import LineReader
from rubato.launch.progress import ProgressPrinter
from rubato.wire.cluster import LogLine, Observed, Outcome

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


def numbers(path: Path) -> list[tuple[int, int]]:
    return [(number, line["n"]) for number, line in LineReader(path).read()]


def test_a_file_that_is_full_takes_the_place_of_the_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    file, reader, followed = LineFile(path, most_bytes=60), LineReader(path), []
    for number in range(1, 31):
        file.append(json.dumps({"n": number}))
        followed += [(place, line["n"]) for place, line in reader.read()]
        assert path.stat().st_size <= 60
        kept = numbers(path)
        assert kept == [(one, one) for one in range(number - len(kept) + 1, number + 1)]
    file.close()
    assert followed == [(one, one) for one in range(1, 31)], "who follows misses none and sees none twice"
    assert 4 <= len(numbers(path)) < 12
    assert file.forgotten == 30 - len(numbers(path))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.jsonl", "a.jsonl.1"]


def test_who_reads_seldom_goes_on_with_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    file, reader = LineFile(path, most_bytes=60), LineReader(path)
    seen: list[int] = []
    for number in range(1, 201):
        file.append(json.dumps({"n": number}))
        if number % 37 == 0:
            new = [(place, line["n"]) for place, line in reader.read()]
            assert all(place == line for place, line in new)
            seen += [line for _, line in new]
            assert seen[-1] == number
    file.close()
    assert seen == sorted(set(seen))


def test_a_half_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    reader = LineReader(path)
    assert list(reader.read()) == []
    for text, expected in (('{"n"', []), (": 1}\n", [1]), ('{"n": 2}\n{"n', [2]), ('": 3}\n', [3])):
        with path.open("a") as file:
            file.write(text)
        assert [line["n"] for _, line in reader.read()] == expected


@pytest.mark.parametrize("room", [0, 5])
def test_no_room_for_a_new_file_is_as_none_for_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    path = tmp_path / "a.jsonl"
    disk, file = Disk(monkeypatch, room=10**6), LineFile(path, most_bytes=60)
    written = 0
    while len(list(tmp_path.iterdir())) == 1:
        written += 1
        assert file.append(json.dumps({"n": written})) is None
        disk.room = room if path.stat().st_size + 10 > 60 else 10**6
        if disk.room == room:
            break
    assert isinstance(file.append(json.dumps({"n": written + 1})), OSError)
    assert numbers(path) == [(one, one) for one in range(1, written + 1)]
    disk.room = 10**6
    assert file.catch_up() is None
    assert numbers(path) == [(one, one) for one in range(1, written + 2)]
    file.close()


@pytest.mark.parametrize("failing", ["a.jsonl", "a.jsonl.new"])
def test_a_file_that_could_not_be_renamed_is_put_aside_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path, rename, fails = tmp_path / "a.jsonl", Path.replace, True

    def fail(source: Path, target: Path) -> Path:
        if fails and source.name == failing:
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", fail)
    file, number = LineFile(path, most_bytes=60), 0
    while not file.waiting:
        number += 1
        file.append(json.dumps({"n": number}))
    assert isinstance(file.catch_up(), OSError), "it fails again"
    fails = False
    assert file.catch_up() is None
    assert numbers(path) == [(one, one) for one in range(1, number + 1)]
    file.close()


def test_output_is_bounded_and_what_was_dropped_is_told(
    tmp_path: Path, told: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LOG_BYTES", 4 * 2**20)
    book = local_journal(tmp_path, told)
    for number in range(1, 701):
        book.log(LogLine("w1.1", 0, "2026-01-01T00:00:00Z", "stdout", f"{number} " + "x" * 10_000))
    book.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("logs*")) <= 4 * 2**20
    lines = list(LineReader(tmp_path / "logs.jsonl").read())
    said = [(place, line["line"]) for place, line in lines if line["stream"] == "system"]
    assert said
    assert all(
        re.fullmatch(r"\d+ lines of output were dropped, the oldest: a run keeps the newest 4 MiB", text)
        for _, text in said
    )
    assert (
        sum(int(found) for found in re.findall(r"(\d+) lines of output were dropped", told.getvalue()))
        == lines[0][0] - 1
    )
    assert lines[-1][1]["line"].startswith("700 ")
