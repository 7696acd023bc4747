from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rubato.launch.output import MAX_LINE_BYTES, LineSplitter, OutputBudget


def split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [*lines, *splitter.flush()]


@given(text=st.binary(max_size=200).filter(lambda data: b"\r" not in data), cuts=st.lists(st.integers(0, 200)))
def test_how_the_bytes_arrive_makes_no_difference(text: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    expected = text.decode("utf-8", "replace").split("\n") if b"\n" not in text else None
    lines = split(*pieces)
    assert lines == split(text)
    if expected is not None and text:
        assert lines == expected


def test_an_unfinished_last_line_is_flushed() -> None:
    assert split(b"one\ntw", b"o") == ["one", "two"]


def test_invalid_utf8_is_replaced() -> None:
    assert split(b"caf\xe9\n") == ["caf\ufffd"]


def test_a_character_cut_between_two_reads_is_whole() -> None:
    assert split(b"caf\xc3", b"\xa9\n") == ["café"]


def test_a_huge_line_is_cut_and_says_so() -> None:
    lines = split(b"x" * 100_000, b"y" * 50_000 + b"\nnext\n")
    assert lines == ["x" * MAX_LINE_BYTES + f" ... ({150_000 - MAX_LINE_BYTES} bytes cut)", "next"]


def test_of_a_progress_bar_the_last_state_counts() -> None:
    assert split(b"1%\r", b"50%\r100%\n", b"windows\r\n") == ["100%", "windows"]


def test_a_storm_is_cut_off_in_stretches_and_counted() -> None:
    budget = OutputBudget(bytes_per_s=1000, burst_bytes=10_000)
    line = "x" * 36
    admitted = [budget.admits(line, 1.0) for _ in range(150)]
    assert admitted == [True] * 100 + [False] * 50
    assert not budget.admits(line, 1.5), "not a sieve: nothing passes until a tenth of the burst is there"
    assert budget.admits(line, 2.6)
    assert budget.take_dropped() == 51
    assert budget.take_dropped() == 0
