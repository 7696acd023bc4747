from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from alone import AloneRun
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rubato.data import ShardedStream
from rubato.data.stream import Position, StreamPlan, StreamSource
from rubato.errors import ModelError
from rubato.wire.events import EventKind

pytestmark = pytest.mark.usefixtures("generators")


class Shards:
    """Numbers that say where they come from; counts what was opened."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.opened: list[tuple[int, int]] = []
        self.open_now = 0

    def read(self, shard: int, offset: int) -> Iterator[tuple[int, int, float]]:
        self.opened.append((shard, offset))
        self.open_now += 1
        try:
            for index in range(offset, self.lengths[shard]):
                yield shard, index, random.random()
        finally:
            self.open_now -= 1

    def source(self, batch: int = 6, streams: int = 3, seed: int = 1, **more: Any) -> StreamSource:
        stream = ShardedStream(range(len(self.lengths)), self.read, **more)
        return StreamSource(stream, list, StreamPlan.of(batch, streams, seed))


def step_of(source: StreamSource, order: list[int] | None = None) -> list[Any]:
    """All microbatches of one step, and on to the next."""
    count = source.plan.num_microbatches
    batches = {v: source.read(0, v) for v in order or range(count)}
    source.move_to([source.end_of(v) for v in range(count)])
    return [batches[v] for v in range(count)]


lengths = st.lists(st.integers(0, 9), min_size=3, max_size=12).filter(lambda some: sum(some) > 0 and some.count(0) < 2)


@given(lengths, st.integers(3, 9), st.integers(0, 99), st.data())
def test_who_reads_on_from_any_position_reads_the_same(
    lengths: list[int], batch: int, seed: int, data: st.DataObject
) -> None:
    whole = Shards(lengths).source(batch, 3, seed)
    expected = [step_of(whole) for _ in range(8)]
    at = data.draw(st.integers(0, 7))
    first, heir = (Shards(lengths).source(batch, 3, seed) for _ in range(2))
    assert [step_of(first, [2, 0, 1]) for _ in range(at)] == expected[:at]
    first.read(at, 1)  # of a step that is not done
    heir.load_state_dict(first.state_dict())
    assert [step_of(heir) for _ in range(8 - at)] == expected[at:]


@given(lengths, st.integers(0, 99))
def test_a_round_reads_every_shard_once_from_its_beginning_to_its_end(lengths: list[int], seed: int) -> None:
    source = Shards(lengths).source(3, 3, seed)
    seen: Counter[tuple[int, int]] = Counter()
    for v in range(3):
        while True:
            before = source.positions[v]
            [(shard, index, _)] = source.read(0, v)
            end = source.end_of(v)
            if end.round > 0:
                break
            seen[shard, index] += 1
            source.positions[v] = end
            assert end.offset == index + 1
            assert end.turn >= before.turn
    assert seen == Counter({(shard, index): 1 for shard, length in enumerate(lengths) for index in range(length)})


@given(st.integers(1, 12), st.integers(1, 20), st.integers(0, 99))
def test_no_shard_is_left_out_where_some_microbatches_are_always_empty(streams: int, batch: int, seed: int) -> None:
    """A batch of 5 fills three microbatches of four: all shards are dealt to these."""
    source = Shards([batch] * 12).source(batch, streams, seed)
    sizes = source.plan.sizes(0)
    seen: Counter[tuple[int, int]] = Counter()
    while min(position.round for position, size in zip(source.positions, sizes, strict=True) if size) == 0:
        before = source.positions
        for v, rows in enumerate(step_of(source)):
            assert len(rows) == sizes[v]
            if before[v].round == 0:
                seen.update((shard, index) for shard, index, _ in rows)
    assert set(seen) >= {(shard, index) for shard in range(12) for index in range(batch)}


def test_streams_stay_open_while_they_are_read_and_are_closed_when_others_read_them() -> None:
    shards = Shards([50] * 6)
    source = shards.source()
    for _ in range(5):
        step_of(source)
    assert [offset for _, offset in shards.opened] == [0, 0, 0]
    assert shards.open_now == 3
    source.read(0, 1)
    ends = [source.end_of(1)._replace(offset=12)] * 3
    source.move_to([ends[0], source.end_of(1), ends[0]])
    assert shards.open_now == 1
    source.close()
    assert shards.open_now == 0


def test_a_retried_step_begins_where_it_began() -> None:
    shards = Shards([50] * 3)
    source = shards.source(6, 3)
    first = source.read(0, 0)
    assert source.read(0, 0) == first
    assert [offset for _, offset in shards.opened] == [0, 0]


def test_a_stream_that_cannot_seek_says_that_samples_come_again() -> None:
    told: list[tuple[EventKind, str]] = []
    source = Shards([50] * 3).source(6, 3, is_exact=False)
    source.tell = lambda kind, text: told.append((kind, text))
    step_of(source)
    assert not told
    source.load_state_dict(source.state_dict())
    step_of(source)
    assert [kind for kind, _ in told] == [EventKind.STREAM_REOPENED] * 3
    assert "opened anew after 2 samples" in told[0][1]
    assert "at least once" in told[0][1]


class Blocks:
    """A shard that can be read from the beginnings of its blocks only; tells what was read of it."""

    def __init__(self, length: int, block: int) -> None:
        self.length, self.block = length, block
        self.read: list[int] = []

    def open(self, shard: int, offset: int) -> Iterator[int]:
        for index in range(offset - offset % self.block, self.length):
            self.read.append(index)
            yield index

    def source(self, batch: int) -> StreamSource:
        stream = ShardedStream(range(1), self.open, is_exact=False)
        return StreamSource(stream, list, StreamPlan.of(batch, 1, 0))


def read_step(source: StreamSource) -> list[int]:
    """What is read in one step by a run of a single microbatch."""
    (samples,) = step_of(source)
    return samples  # type: ignore[no-any-return]


def test_a_source_of_blocks_leaves_nothing_out_when_it_is_opened_a_second_time() -> None:
    blocks = Blocks(100, 20)
    source = blocks.source(10)
    first = [sample for _ in range(5) for sample in read_step(source)]
    assert first == list(range(50))
    for _ in range(2):
        source.load_state_dict(source.state_dict())
        assert read_step(source) == list(range(40, 50))
    assert read_step(source) == list(range(50, 60))


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 60), st.lists(st.sampled_from(["", "anew", "twice"])))
def test_a_source_of_blocks_gives_each_sample_at_least_once(
    block: int, batch: int, length: int, before_step: list[str]
) -> None:
    """Steps before which the stream is opened anew, or which are tried twice, of which only the second try counts."""
    source = Blocks(length, block).source(batch)
    counted: list[int] = []
    for what in itertools.chain(before_step, itertools.repeat("")):
        if what == "anew":
            source.load_state_dict(source.state_dict())
        elif what == "twice":
            source.read(0, 0)
        counted += read_step(source)
        if source.positions[0].round > 0:
            break
    assert set(counted) == set(range(length))


def test_mistakes() -> None:
    with pytest.raises(ModelError, match="has no shards"):
        ShardedStream([], Shards([]).read)
    with pytest.raises(ModelError, match="has 2 shards, and each of the 3 microbatches reads its own"):
        Shards([5, 5]).source()
    with pytest.raises(ModelError, match="shards that microbatch 0 read are empty"):
        Shards([0, 0, 0]).source().read(0, 0)
    with pytest.raises(ModelError, match="positions are of 3 shards, the stream has 4"):
        Shards([1] * 4).source().load_state_dict(Shards([1] * 3).source().state_dict())


def test_an_error_names_the_shard_and_the_sample() -> None:
    def read(shard: str, offset: int) -> Iterator[int]:
        yield from range(offset, 3)
        raise OSError("disk gone")

    source = StreamSource(ShardedStream(["a.tar"], read), None, StreamPlan.of(2, 1, 0))
    step_of(source)
    for _ in range(2):  # also when it is tried again
        with pytest.raises(OSError, match="disk gone") as caught:
            source.read(1, 0)
        assert caught.value.__notes__ == ["while reading sample 3 of shard 'a.tar'"]


def read_rows(shard: int, offset: int) -> Iterator[torch.Tensor]:
    yield from itertools.islice((torch.full((1,), float(shard)) for _ in range(10)), offset, None)


def run_of(**more: Any) -> tuple[AloneRun, Any]:
    run = AloneRun()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=ShardedStream(range(5), read_rows), **more)
    return run, model


def test_a_run_over_a_stream() -> None:
    run, model = run_of()
    for step in run.steps(steps=7):
        assert step.epoch == 0
        for x in step:
            assert x.shape == (2, 1)
            step.backward(model(x).square().mean())
    assert [row.values["samples"] for row in run.rows] == [8.0] * 6  # the last waits for `finish`
    positions = run.session.state.registered["rubato.stream"].positions
    assert positions == [Position(0, 1, 4)] * 1 + [Position(1, 0, 4)] * 3


def test_a_run_over_a_stream_needs_a_number_of_steps() -> None:
    run, _ = run_of()
    with pytest.raises(ModelError, match=r"no end and no epochs: say run.steps\(steps=...\)"):
        next(run.steps(epochs=2))
    with pytest.raises(ModelError, match="prefetch reads datasets that are read by index"):
        run_of(prefetch=1)
