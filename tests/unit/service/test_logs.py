from __future__ import annotations

import fcntl
import json
import os
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.wire.cluster import LogLine
from service.clock import to_rfc3339
from service.logs import MAX_LINE_CHARS, LogFilter, LogPosition, LogStore, _encode

ALL = LogFilter()
START = LogPosition()


NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def line(text: str, rank: int | None = 0, time: datetime = NOON) -> LogLine:
    return LogLine(worker_id="w1", rank=rank, time=to_rfc3339(time), stream="stdout", line=text)


def texts(items: list[dict[str, object]]) -> list[object]:
    return [item["line"] for item in items]


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path, segment_bytes=2_000)


def write(store: LogStore, count: int, at: LogPosition = START, width: int = 100) -> LogPosition:
    for index in range(count):
        at = store.append("job", at, 1, [line(f"{index}:{'x' * width}", rank=index % 3)])
    return at


def test_lines_are_read_over_segments_from_any_id(store: LogStore) -> None:
    end = write(store, 50)
    assert end.segment >= 2
    items, where = store.read("job", START, end, 1_000, ALL)
    assert [text.split(":")[0] for text in texts(items)] == [str(index) for index in range(50)]
    assert where == end
    for earlier, later in pairwise(items):
        again, _ = store.read("job", LogPosition.parse(earlier["id"]), end, 1, ALL)
        assert again == [later]


def test_a_tail_is_the_end_of_the_whole(store: LogStore) -> None:
    end = write(store, 50)
    everything, _ = store.read("job", START, end, 1_000, ALL)
    for count in (0, 1, 7, 49, 50, 99):
        assert store.tail("job", end, count, ALL)[0] == (everything[-count:] if count else [])
    wanted = LogFilter(ranks=frozenset({1}))
    assert store.tail("job", end, 3, wanted)[0] == [item for item in everything if item["rank"] == 1][-3:]


def test_what_is_searched_for_is_what_is_read(store: LogStore) -> None:
    end = store.append("job", START, 1, [line("step \x1b[1m120\x1b[0m  loss 0.3"), line("step 12")])
    for text, found in (("Step 120", 1), ("step 12", 2), ("[1m", 0)):
        assert len(store.read("job", START, end, 10, LogFilter(text=text))[0]) == found


def test_pages_backwards_join_to_the_whole(store: LogStore) -> None:
    end = write(store, 50)
    for count, ranks in ((1, ()), (7, ()), (60, ()), (4, (1,))):
        wanted = LogFilter(ranks=frozenset(ranks))
        everything, _ = store.read("job", START, end, 1_000, wanted)
        joined: list[dict[str, object]] = []
        before: LogPosition | None = end
        while before is not None:
            page, before = store.tail("job", before, count, wanted)
            joined = [*page, *joined]
        assert joined == everything


def test_lines_longer_than_a_block_survive(tmp_path: Path) -> None:
    store = LogStore(tmp_path, segment_bytes=10_000_000)
    at = START
    for index in range(12):
        at = store.append("job", at, 1, [line(str(index) * 60_000), line("short")])
    found = store.tail("job", at, 24, ALL)[0]
    assert [text[:5] for text in texts(found)] == [part for i in range(12) for part in ((str(i) * 5)[:5], "short")]
    assert found == store.read("job", START, at, 100, ALL)[0]


def test_what_was_not_committed_is_not_seen_and_is_overwritten(store: LogStore) -> None:
    committed = store.append("job", START, 1, [line("kept")])
    store.append("job", committed, 1, [line("never acknowledged, and rather long")])
    assert texts(store.read("job", START, committed, 10, ALL)[0]) == ["kept"]
    assert texts(store.tail("job", committed, 10, ALL)[0]) == ["kept"]
    end = store.append("job", committed, 1, [line("again")])
    assert texts(store.read("job", START, end, 10, ALL)[0]) == ["kept", "again"]


def test_a_file_damaged_from_outside_costs_only_itself(store: LogStore, tmp_path: Path) -> None:
    at = store.append("job", START, 1, [line("one"), line("two")])
    path = tmp_path / "job" / "00000000.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    end = store.append("job", at, 1, [line("three")])
    assert end.segment == 1
    assert texts(store.read("job", START, end, 10, ALL)[0]) == ["one", "three"]
    assert texts(store.tail("job", end, 10, ALL)[0]) == ["one", "three"]
    path.unlink()
    assert texts(store.read("job", START, end, 10, ALL)[0]) == ["three"]


def test_overlong_lines_are_cut_and_say_so(store: LogStore) -> None:
    end = store.append("job", START, 1, [line("x" * (MAX_LINE_CHARS + 7))])
    found = str(texts(store.tail("job", end, 1, ALL)[0])[0])
    assert found.endswith("... (7 more characters cut)")
    assert len(found) < MAX_LINE_CHARS + 100


@pytest.mark.parametrize("text", ["", "1", ":", "1:", "-1:2", "1:2:3", "a:b", "../x", "1:" + "9" * 60, "²:1"])
def test_positions_are_read_strictly(text: str) -> None:
    with pytest.raises(ValueError, match="no log position"):
        LogPosition.parse(text)


@given(
    st.lists(
        st.tuples(st.lists(st.text(max_size=80), max_size=4), st.sampled_from(["commit", "crash", "restart"])),
        max_size=25,
    )
)
def test_crashes_at_any_place_lose_and_double_nothing(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[list[str], str]]
) -> None:
    """A batch counts when its position was committed; a crash before that leaves bytes that must not count."""
    store = LogStore(tmp_path_factory.mktemp("logs"), segment_bytes=300)
    committed = START
    expected: list[str] = []
    for batch, then in batches:
        end = store.append("job", committed, 1, [line(text) for text in batch])
        if then == "commit":
            committed = end
            expected += batch
        elif then == "restart":
            store.cut_tail("job", committed)
    assert texts(store.read("job", START, committed, 1_000, ALL)[0]) == expected
    assert texts(store.tail("job", committed, 1_000, ALL)[0]) == expected


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
        (LogFilter(text="HELLO"), True),
        (LogFilter(text="bye"), False),
        (LogFilter(attempt=1), True),
        (LogFilter(attempt=2), False),
        (LogFilter(ranks=frozenset({0, 5})), True),
        (LogFilter(ranks=frozenset({5})), False),
        (LogFilter(since=NOON), True),
        (LogFilter(since=NOON + timedelta(microseconds=1)), False),
    ],
)
def test_filters(store: LogStore, wanted: LogFilter, takes: bool) -> None:
    end = store.append("job", START, 1, [line("hello world")])
    assert bool(store.tail("job", end, 1, wanted)[0]) is takes


@pytest.mark.parametrize("width", [10, 3_000, 60_000])
@given(
    gaps_s=st.lists(st.sampled_from([-50.0, 0.0, 0.001, 5.0, 90.0]), min_size=1, max_size=60),
    asked_s=st.floats(-200, 2_000),
)
def test_a_time_is_found_without_losing_a_line_of_it(
    tmp_path_factory: pytest.TempPathFactory, width: int, gaps_s: list[float], asked_s: float
) -> None:
    """Lines of some workers, each up to a minute late, in blocks of many lines, a few, and less than one."""
    store = LogStore(tmp_path_factory.mktemp("logs"), segment_bytes=1_000_000)
    newest_s, lines, times = 0.0, [], []
    for index, gap_s in enumerate(gaps_s):
        newest_s = max(newest_s, newest_s + gap_s)
        moment = NOON + timedelta(seconds=newest_s + min(0.0, gap_s))
        lines.append(line(f"{index}:".ljust(width, "x"), time=moment))
        times.append(moment)
    end = START
    for one in lines:
        end = store.append("job", end, 1, [one])
    since = NOON + timedelta(seconds=asked_s)
    found, _ = store.read("job", store.find("job", end, since), end, 1_000, LogFilter(since=since))
    assert [str(item["line"]).split(":")[0] for item in found] == [
        str(index) for index, moment in enumerate(times) if moment >= since
    ]


def test_a_time_is_found_near_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six megabytes at most two blocks and a minute are read over, and none where a segment is gone."""
    store = LogStore(tmp_path, segment_bytes=2_000_000)
    end = START
    for first in range(0, 6_000, 500):
        lines = [line(f"{i}:{'x' * 1_000}", time=NOON + timedelta(seconds=i)) for i in range(first, first + 500)]
        end = store.append("job", end, 1, lines)
    assert end.segment >= 2
    for asked in (300, 1_999, 2_500, 5_900):
        begin = store.find("job", end, NOON + timedelta(seconds=asked))
        before = store.read("job", begin, end, 1, ALL)[0][0]
        assert asked - 60 - 600 < int(str(before["line"]).split(":")[0]) <= asked - 60 or begin == START
    assert store.find("job", end, NOON + timedelta(days=1)).segment == end.segment
    monkeypatch.setattr("service.logs.MAX_SCAN_BYTES", 1_000_000)
    since = NOON + timedelta(seconds=5_990)
    items, _ = store.read("job", store.find("job", end, since), end, 100, LogFilter(since=since))
    assert len(items) == 10
    (tmp_path / "job" / "00000000.jsonl").unlink()
    assert store.read("job", store.find("job", end, since), end, 100, LogFilter(since=since))[0] == items


@pytest.mark.parametrize("time", ["yesterday", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_cannot_be_read_hides_no_line(store: LogStore, time: str) -> None:
    end = store.append("job", START, 1, [LogLine("w1", 0, time, "stdout", "odd"), line("even")])
    wanted = LogFilter(since=NOON)
    assert texts(store.read("job", store.find("job", end, NOON), end, 10, wanted)[0]) == ["odd", "even"]


def test_what_comes_too_late_writes_nothing_any_more(tmp_path: Path) -> None:
    """It stood still before the file was open: meanwhile the batch came again, and another one."""
    store = LogStore(tmp_path, 10_000)
    end = store.append("job", START, 1, [line("one")])
    end = store.append("job", end, 1, [line("two")])
    with pytest.raises(TimeoutError, match="too late"):
        store.append("job", START, 1, [line("one")], time.monotonic())
    assert [item["line"] for item in store.tail("job", end, 10, LogFilter())[0]] == ["one", "two"]


def test_a_log_is_held_by_one_until_all_its_descriptors_are_closed(tmp_path: Path) -> None:
    first, second = LogStore(tmp_path, 10_000), LogStore(tmp_path, 10_000)
    held = first.hold("job")
    for store in (first, second):
        with pytest.raises(BlockingIOError):
            store.hold("job")
    os.close(second.hold("another"))
    copy = os.dup(held)
    os.close(held)
    with pytest.raises(BlockingIOError):
        second.hold("job")
    os.close(copy)
    os.close(second.hold("job"))


def test_a_replica_of_the_release_before_locks_the_file_itself(store: LogStore, tmp_path: Path) -> None:
    end = store.append("job", START, 1, [line("one")])
    path = tmp_path / "job" / "00000000.jsonl"
    before = path.read_bytes()
    with path.open("r+b") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            store.append("job", end, 1, [line("two")])
    assert path.read_bytes() == before
    end = store.append("job", end, 1, [line("two")])
    assert texts(store.read("job", START, end, 10, ALL)[0]) == ["one", "two"]


def test_while_lines_are_written_a_replica_of_the_release_before_is_kept_off(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[bool] = []

    def sync(_: int) -> None:
        with (tmp_path / "job" / "00000000.jsonl").open("r+b") as theirs:
            try:
                fcntl.flock(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(True)

    monkeypatch.setattr("service.logs.os.fdatasync", sync)
    store.append("job", START, 1, [line("one")])
    assert refused == [True]


def test_the_names_of_a_first_segment_are_synced_also_after_a_crash_before_that(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose name never reached the disk is gone after a power cut, with lines that were acknowledged."""
    synced: list[str] = []

    def note(folder: Path) -> None:
        synced.append(folder.name)

    def die(_: Path) -> None:
        raise SystemExit

    monkeypatch.setattr("service.logs._sync_folder", die)
    with pytest.raises(SystemExit):
        store.append("job", START, 1, [line("one")])
    monkeypatch.setattr("service.logs._sync_folder", note)
    end = store.append("job", START, 1, [line("one")])
    assert synced == ["job", tmp_path.name]
    store.append("job", end, 1, [line("two")])
    assert len(synced) == 2, "once a segment"


def test_a_log_is_removed_with_its_lock(store: LogStore, tmp_path: Path) -> None:
    write(store, 50)
    os.close(store.hold("job"))
    segments = len(list((tmp_path / "job").glob("*.jsonl")))
    assert [store.remove("job", segments) for _ in range(3)] == [segments, 0, 0]
    assert not (tmp_path / "job").exists()


@given(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.integers(0, 9))
def test_a_line_is_written_as_json_would_be(text: str, rank: int | None) -> None:
    written = _encode([line(text, rank)], 3)
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    fields = {"t": "2026-01-31T12:00:00.000000Z", "w": "w1", "r": rank, "a": 3, "s": "stdout", "l": text}
    assert json.loads(written) == fields


def test_a_position_far_behind_the_end_reads_nothing(tmp_path: Path) -> None:
    store = LogStore(tmp_path, 1000)
    end = store.append("job_a", LogPosition(), 1, [LogLine("w1", 0, "2026-01-31T12:00:00.000000Z", "stdout", "a line")])
    far = LogPosition(0, 99999999999999999999)
    assert store.read("job_a", far, end, 10, LogFilter()) == ([], far)


@pytest.mark.parametrize("offset", [10_000, 2**63 - 1, 2**63, 10**30])
def test_a_position_far_behind_the_end_of_a_segment_goes_on_with_the_next_one(store: LogStore, offset: int) -> None:
    end = write(store, 50)
    assert store.read("job", LogPosition(0, offset), end, 1_000, ALL) == store.read(
        "job", LogPosition(1, 0), end, 1_000, ALL
    )


def test_a_read_that_finds_nothing_stops_and_says_where_to_go_on(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.logs.MAX_SCAN_BYTES", 1_000)
    end = write(store, 50)
    here, reads, found = START, 0, []
    while here < end:
        items, there = store.read("job", here, end, 1_000, LogFilter(text="49:"))
        assert there > here
        here, reads, found = there, reads + 1, found + items
    assert reads > 5
    assert [text.split(":")[0] for text in texts(found)] == ["49"]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Of which a line of 300 letters fills more than a fourth."""
    monkeypatch.setattr("service.logs.MAX_PAGE_BYTES", 1_200)
    return 1_200


def test_a_page_of_long_lines_has_fewer_of_them_and_says_where_to_go_on(store: LogStore, small_pages: int) -> None:
    end = write(store, 50, width=300)
    here, forward = START, []
    while here < end:
        items, here = store.read("job", here, end, 1_000, ALL)
        assert 0 < len(items) <= 4
        forward += items
    assert [text.split(":")[0] for text in texts(forward)] == [str(index) for index in range(50)]
    before: LogPosition | None = end
    backward: list[dict[str, object]] = []
    while before is not None:
        items, before = store.tail("job", before, 1_000, ALL)
        assert 0 < len(items) <= 4
        backward = [*items, *backward]
    assert backward == forward


def test_lines_that_nobody_wants_do_not_fill_a_page(store: LogStore, small_pages: int) -> None:
    end = write(store, 50, width=300)
    wanted = LogFilter(text="49:")
    assert len(store.read("job", START, end, 10, wanted)[0]) == 1
    assert len(store.tail("job", end, 10, LogFilter(text="0:"))[0]) == 4
    assert len(store.tail("job", end, 10, LogFilter(text="3:xxx"))[0]) == 4
    assert store.tail("job", end, 10, LogFilter(text="7:", ranks=frozenset({1})))[1] is None


def test_a_tail_begins_at_the_same_line_however_long_its_lines_are(store: LogStore, small_pages: int) -> None:
    end = write(store, 50, width=300)
    for count, wanted in ((1, ALL), (7, ALL), (50, ALL), (99, ALL), (5, LogFilter(ranks=frozenset({1})))):
        position, found = store.find_tail("job", end, count, wanted), []
        while position < end:
            items, position = store.read("job", position, end, 1_000, wanted)
            found += items
        numbers = [index for index in range(50) if not wanted.ranks or index % 3 in wanted.ranks]
        assert [int(text.split(":")[0]) for text in texts(found)] == numbers[-count:]
    assert store.find_tail("job", end, 0, ALL) == end


def test_a_tail_of_a_time_is_not_looked_for_long_before_it(store: LogStore) -> None:
    at = START
    for minute in range(50):
        at = store.append("job", at, 1, [line(f"{minute}:", time=NOON + timedelta(minutes=minute))])
    since = LogFilter(since=NOON + timedelta(minutes=47))
    items, earlier = store.tail("job", at, 10, since)
    assert (texts(items), earlier) == (["47:", "48:", "49:"], None)
    assert store.find_tail("job", at, 10, since) > START
