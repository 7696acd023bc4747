"""Streams: data that is read one after the other, in shards, and has no index.

Each microbatch v that has samples (all V, where the batch is large enough; else the first S) has a stream of its own:
in every round over the shards their keyed order is dealt out, and stream v reads those at positions v, v + S, v + 2S,
... Rounds follow one another without an end, so that all of these are always full, and each shard is read once a round.
Where all streams stand is one table of V positions, a part of the training state: equal on all workers, saved, given to
joiners. So whoever computes a microbatch, and after whatever, begins it at the same sample.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from rubato.data.fetch import Collate, collate_rows
from rubato.data.order import BatchPlan, Permutation
from rubato.data.randomness import seed_all
from rubato.errors import ModelError
from rubato.wire.events import EventKind

Open = Callable[[Any, int], Iterable[Any]]
Tell = Callable[[EventKind, str], None]


class ShardedStream:
    """Data in shards, each an iterable that is opened at an offset.

    def read(path, offset):
        with open(path) as lines:
            yield from map(json.loads, itertools.islice(lines, offset, None))

    run.prepare(..., dataset=rubato.data.ShardedStream(sorted(glob("data/*.jsonl")), read))

    Args:
        shards: what names each shard (paths, URLs, numbers), equal on all workers; at least one for each microbatch.
        open: called with a shard and the number of samples to leave out at its beginning; gives the samples from there
            on, in the same order whenever it is called. Where the format cannot seek, `itertools.islice` leaves out.
        is_exact: False where `open` may begin earlier than it was asked to, and cannot tell where. Samples then come
            again when a stream is opened anew (a worker was lost or joined, the job was resumed): each at least once,
            which the event log says, and the bits are not reproducible. Where it can tell, let `itertools.islice`
            leave out the difference instead: that is exact.
    Raises:
        ModelError: no shards.
    """

    def __init__(self, shards: Sequence[Any], open: Open, *, is_exact: bool = True) -> None:
        self.shards = list(shards)
        self.open = open
        self.is_exact = is_exact
        if not self.shards:
            raise ModelError("the stream has no shards; check the path or pattern that lists them")


@dataclass(frozen=True)
class StreamPlan(BatchPlan):
    """Every step is full, and there are no epochs."""

    @classmethod
    def of(cls, global_size: int, num_microbatches: int, seed: int) -> StreamPlan:
        """The plan of a job."""
        return cls(global_size, global_size, num_microbatches, seed)

    def epoch_of(self, step: int) -> int:
        """Always 0."""
        return 0

    @functools.cached_property
    def num_streams(self) -> int:
        """S: microbatches that have samples, the same ones in every step."""
        return sum(size > 0 for size in self.sizes(0))


class Position(NamedTuple):
    """Where a stream stands."""

    round: int = 0
    """Rounds over its shards that are over."""
    turn: int = 0
    """Shards of this round that are."""
    offset: int = 0
    """Samples read of the present shard; of one that is not exact, those that were surely read."""


@dataclass
class StreamSource:
    """A source (see `rubato.data.source`) that reads a sharded stream."""

    stream: ShardedStream
    collate: Collate | None
    plan: StreamPlan
    tell: Tell = lambda kind, text: None
    positions: list[Position] = field(default_factory=list, init=False)
    """Where each stream stands at the beginning of the present step."""

    def __post_init__(self) -> None:
        count, streams = len(self.stream.shards), self.plan.num_streams
        if count < streams:
            raise ModelError(
                f"the stream has {count} shards, and each of the {streams} microbatches reads its own: cut the data "
                "into more shards (a few times as many), or lower batch.num_microbatches"
            )
        self.positions = [Position()] * self.plan.num_microbatches
        self._readers: dict[int, _Reader] = {}
        self._ends: dict[int, Position] = {}

    def read(self, step: int, v: int, count: int = 1) -> Any:
        """See `Source`; `step` is the present one."""
        rows = [row for one in range(v, v + count) for row in self._take(one)]
        return collate_rows(rows, self.collate, f"stream {v}" + (f" to {v + count - 1}" if count > 1 else ""))

    def end_of(self, v: int) -> Position:
        """Where stream v stands after the present step; reads it where this worker has not."""
        if v not in self._ends:
            self._take(v)
        return self._ends[v]

    @property
    def known_ends(self) -> dict[int, Position]:
        """Those that this worker has read in the present step."""
        return dict(self._ends)

    def move_to(self, positions: Sequence[Position]) -> None:
        """The step is done: all streams stand elsewhere. Those that were not read here are closed."""
        for v in set(self._readers) - set(self._ends):
            self._readers.pop(v).close()
        self.positions = list(positions)
        self._ends.clear()

    def close(self) -> None:
        """Close what is open."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def state_dict(self) -> dict[str, Any]:
        """Where all streams stand."""
        return {"shards": len(self.stream.shards), "positions": torch.tensor(self.positions, dtype=torch.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over positions.

        Raises:  ModelError: of another number of shards.
        """
        if state["shards"] != len(self.stream.shards):
            raise ModelError(
                f"the saved positions are of {state['shards']} shards, the stream has {len(self.stream.shards)} now: "
                "go on with the same shards, or begin a new job"
            )
        self.close()
        self._ends.clear()
        self.positions = [Position(*row) for row in state["positions"].tolist()]

    def _take(self, v: int) -> list[Any]:
        start = self.positions[v]
        reader = self._readers.pop(v, None)
        # Read in the present step already: it stands behind that, which positions that are not exact do not show.
        if reader is None or v in self._ends or reader.position != start:
            if reader is not None:
                reader.close()
            reader = _Reader(self.stream, self.plan, v, start, self.tell)
        rows = [reader.next() for _ in range(self.plan.sizes(0)[v])]
        self._readers[v] = reader  # only now: what raised is not read on
        self._ends[v] = reader.position
        return rows


class _Reader:
    """One open stream."""

    def __init__(self, stream: ShardedStream, plan: StreamPlan, v: int, position: Position, tell: Tell) -> None:
        self._stream, self._plan, self._v, self._tell = stream, plan, v, tell
        self.position = position
        self._samples: Iterator[Any] | None = None
        self._asked = 0
        """Samples that the present shard was to be opened behind."""
        self._count = 0
        """Samples that have come of it since."""
        self._empty = 0

    def next(self) -> Any:
        """The next sample, drawn under the seed of its place."""
        while True:
            at = self.position
            shard = self._shard(at)
            if self._samples is None:
                self._asked, self._count = at.offset, 0
            number = self._asked + self._count
            seed_all(self._plan.seed, "stream", at.round, shard, number)
            try:
                if self._samples is None:
                    self._samples = self._open(shard, at.offset)
                sample = next(self._samples)
            except StopIteration:
                self._to_next_shard()
                continue
            except Exception as error:
                error.add_note(f"while reading sample {number} of shard {self._stream.shards[shard]!r}")
                raise
            self._empty = 0
            self._count += 1
            self.position = at._replace(offset=self._surely_read())
            return sample

    def close(self) -> None:
        """Let a generator end."""
        samples: Any = self._samples
        self._samples = None
        if hasattr(samples, "close"):
            with contextlib.suppress(Exception):
                samples.close()

    def _open(self, shard: int, offset: int) -> Iterator[Any]:
        if offset and not self._stream.is_exact:
            self._tell(
                EventKind.STREAM_REOPENED,
                f"shard {self._stream.shards[shard]!r} was opened anew after {offset} samples, and cannot be read from "
                "there: some of them come at least once more",
            )
        return iter(self._stream.open(self._stream.shards[shard], offset))

    def _surely_read(self) -> int:
        """Samples at the beginning of the shard that were all read.

        A source that is not exact has begun anywhere up to where it was asked to. What comes first is then counted as
        what was read before: to count it anew would leave out as much at the next opening.
        """
        return self._asked + self._count if self._stream.is_exact else max(self._asked, self._count)

    def _shard(self, at: Position) -> int:
        order = Permutation(len(self._stream.shards), self._plan.seed, at.round)
        return order[self._v + at.turn * self._plan.num_streams]

    def _to_next_shard(self) -> None:
        self.close()
        at = self.position
        turns = len(range(self._v, len(self._stream.shards), self._plan.num_streams))
        self._empty += at.offset == 0
        if self._empty > 2 * len(self._stream.shards):
            raise ModelError(f"the last {self._empty} shards that microbatch {self._v} read are empty")
        last = at.turn + 1 == turns
        self.position = Position(at.round + 1, 0, 0) if last else Position(at.round, at.turn + 1, 0)
