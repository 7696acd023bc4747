from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.wire import progress
from rubato.wire.progress import BUCKETS, ENOUGH, STAGES, ProgressWord, shared_memory, usual_s


def test_another_mapping_of_the_same_memory_sees_what_was_written() -> None:
    fd = shared_memory()
    writer, reader = ProgressWord(fd), ProgressWord(fd)
    os.close(fd)
    assert reader.read() is None
    writer.beat()
    writer.write("compute", 12, 3, 5)
    said = reader.read()
    assert said is not None
    assert (said.generation, said.step, said.stage, said.microbatch) == (3, 12, "compute", 5)
    assert said.usual == {}
    for word in (writer, reader):
        word.close()


def test_durations_of_stages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10**9
    monkeypatch.setattr("rubato.wire.progress.time.monotonic_ns", lambda: now)
    word = ProgressWord()
    word.beat()
    for _ in range(ENOUGH):
        word.write("compute", 1, 1, 0)
        now += 50_000_000
        word.write("exchange", 1, 1)
        now += 3_000_000_000
    said = word.read()
    assert said is not None
    assert set(said.usual) == {"compute"}, "the last exchange goes on"
    assert 0.05 <= said.usual["compute"] <= 0.1
    word.write("update", 1, 1)
    said = word.read()
    assert said is not None
    assert 3.0 <= said.usual["exchange"] <= 6.0


def test_a_process_that_was_stopped_in_the_middle_of_a_write_is_read_all_the_same() -> None:
    word = ProgressWord()
    word.beat()
    word.write("fetch", 4, 2, 1)
    word._words[progress._VERSION] += 1
    said = word.read()
    assert said is not None
    assert said.stage == "fetch"


@given(st.lists(st.integers(0, 50), min_size=BUCKETS, max_size=BUCKETS))
def test_nearly_all_durations_lie_below_the_usual_one(counts: list[int]) -> None:
    usual = usual_s(counts)
    if sum(counts) < ENOUGH:
        assert usual is None
        return
    assert usual is not None
    below = sum(count for bucket, count in enumerate(counts) if (1 << bucket) * 2**20 / 1e9 <= usual)
    assert below >= 0.99 * sum(counts)


def test_every_stage_has_a_name_of_its_own() -> None:
    assert len(set(STAGES)) == len(STAGES)
