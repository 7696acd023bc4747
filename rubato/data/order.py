"""The sample order: which rows each microbatch of each step holds, as a pure function of the step.

An epoch is one keyed permutation of all samples. Step s of it covers the positions [s*B, (s+1)*B), B the global batch;
the last step of an epoch, the tail, covers what is left. Nothing is remembered from step to step, so that a worker that
joins, restarts or inherits a microbatch needs only the number of the step.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rubato.errors import CheckpointError

ORDER = "feistel-8"
"""Names the permutation in checkpoints: going on under another one would read samples twice and leave others out."""
_ROUNDS = 8
"""Fewer leave orders of a handful of samples visibly uneven; these cost 3 microseconds a sample."""
_WORD = (1 << 64) - 1


@dataclass(frozen=True)
class BatchPlan:
    """How a job's samples fall into steps and microbatches.

    Raises:
        ValueError: a count that leaves nothing to train on.
    """

    num_samples: int
    """Rows of the dataset."""
    global_size: int
    """Samples in one step, whatever the worker count."""
    num_microbatches: int
    """V: the pieces that workers share out, fixed for the job."""
    seed: int
    """The job's seed."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "global_size", "num_microbatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def steps_per_epoch(self) -> int:
        """Steps that cover every sample once; the last one may be smaller."""
        return -(-self.num_samples // self.global_size)

    @property
    def nominal(self) -> int:
        """Samples of a full microbatch; the weight of a microbatch is its size over this."""
        return -(-self.global_size // self.num_microbatches)

    def epoch_of(self, step: int) -> int:
        """The epoch of a step, both counted from 0."""
        return step // self.steps_per_epoch

    def batch_size(self, step: int) -> int:
        """Samples in the step: `global_size`, fewer in the tail."""
        return min(self.global_size, self.num_samples - self._start(step))

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples in each of the V microbatches.

        n samples go to the first ceil(n / nominal) microbatches, in sizes that differ by at most one; the rest are 0.
        A tail in as few microbatches as the nominal size allows keeps BatchNorm's statistics from tiny batches.
        """
        size = self.batch_size(step)
        filled = -(-size // self.nominal)
        base, larger = divmod(size, filled)
        return (base + 1,) * larger + (base,) * (filled - larger) + (0,) * (self.num_microbatches - filled)

    def samples(self, step: int, v: int, count: int = 1) -> list[int]:
        """Sample ids of microbatch `v` of the step and of the `count - 1` after it, a fresh list; empty where they are.

        Raises:
            IndexError: one of them is not in 0..num_microbatches-1.
        """
        if not 0 <= v <= v + count - 1 < self.num_microbatches:
            raise IndexError(f"microbatches {v}..{v + count - 1} are not all in 0..{self.num_microbatches - 1}")
        sizes = self.sizes(step)
        first = self._start(step) + sum(sizes[:v])
        order = Permutation(self.num_samples, self.seed, self.epoch_of(step))
        return [order[position] for position in range(first, first + sum(sizes[v : v + count]))]

    def parts(self, step: int, microbatches: range) -> Iterator[range]:
        """What is read at a time of microbatches that are computed in one pass: ranges for `Source.read`."""
        if self.part_size(step, microbatches):
            yield microbatches

    def part_size(self, step: int, part: range) -> int:
        """Samples of one of these."""
        return sum(self.sizes(step)[part.start : part.stop])

    def _start(self, step: int) -> int:
        """Position of the step's first sample in its epoch."""
        if step < 0:
            raise ValueError(f"a step is counted from 0, got {step}")
        return step % self.steps_per_epoch * self.global_size


@dataclass(frozen=True)
class RoundPlan(BatchPlan):
    """One whose microbatches are read in pieces, each for an update of its own.

    Raises:  ValueError: the pieces of a full step are not of one size.
    """

    updates: int = 1
    """Pieces of a full microbatch; those of the tail have fewer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.updates < 1 or self.global_size % (self.num_microbatches * self.updates):
            raise ValueError(f"{self.global_size} samples are not {self.num_microbatches} times {self.updates} pieces")

    @functools.cached_property
    def pieces(self) -> BatchPlan:
        """The plan that they are read by: piece h of microbatch v is its microbatch v * updates + h."""
        return BatchPlan(self.num_samples, self.global_size, self.num_microbatches * self.updates, self.seed)

    def sizes(self, step: int) -> tuple[int, ...]:
        """Samples in each of the V microbatches."""
        of_pieces, count = _sizes_of(self.pieces, step), self.updates
        return tuple(sum(of_pieces[v * count : (v + 1) * count]) for v in range(self.num_microbatches))

    def samples(self, step: int, v: int, count: int = 1) -> list[int]:
        """See `BatchPlan`."""
        return self.pieces.samples(step, v * self.updates, count * self.updates)

    def parts(self, step: int, microbatches: range) -> Iterator[range]:
        """Ranges of pieces, one for each update; several microbatches make theirs together."""
        begin, count = microbatches.start * self.updates, len(microbatches)
        for at in range(self.updates):
            part = range(begin + at * count, begin + (at + 1) * count)
            if self.part_size(step, part):
                yield part

    def part_size(self, step: int, part: range) -> int:
        """See `BatchPlan`."""
        return sum(_sizes_of(self.pieces, step)[part.start : part.stop])


@functools.lru_cache(maxsize=4)  # of the present step and the next: as many numbers as there are pieces
def _sizes_of(plan: BatchPlan, step: int) -> tuple[int, ...]:
    return plan.sizes(step)


@dataclass(frozen=True)
class Permutation:
    """A keyed permutation of 0..size-1 in constant memory: a Feistel network with cycle walking.

    Positions are pairs (x, y) of a rectangle a x b, a = ceil(sqrt(size)), b = ceil(size / a). Each round adds a
    keyed hash of one coordinate to the other, modulo its side. That can be undone, so the rounds permute the rectangle.
    It has fewer than a cells more than there are samples; whoever lands on one of these walks on.

    Source:  Black and Rogaway 2002, "Ciphers with arbitrary finite domains", doi:10.1007/3-540-45760-7_9.
    """

    size: int
    """Samples, >= 1."""
    seed: int
    """The job's seed."""
    epoch: int
    """Each epoch has an order of its own."""

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, position: int) -> int:
        """The sample at a position.

        Raises:  IndexError: `position` is not in 0..size-1.
        """
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is not in 0..{self.size - 1}")
        width = math.isqrt(self.size - 1) + 1
        height = -(-self.size // width)
        keys = _round_keys(self.seed, self.epoch)
        while True:
            y, x = divmod(position, width)
            for key_x, key_y in keys:
                x = (x + _mix(y ^ key_x)) % width
                y = (y + _mix(x ^ key_y)) % height
            position = y * width + x
            if position < self.size:
                return position


@functools.lru_cache(maxsize=4)  # a step touches one epoch, a step at the border and its recovery two
def _round_keys(seed: int, epoch: int) -> tuple[tuple[int, int], ...]:
    """Keys of 64 bits: two for each pair of rounds."""
    words = memoryview(hashlib.shake_128(f"order:{seed}:{epoch}".encode()).digest(8 * _ROUNDS))
    keys = [int.from_bytes(words[at : at + 8], "little") for at in range(0, len(words), 8)]
    return tuple(zip(keys[::2], keys[1::2], strict=True))


def _mix(word: int) -> int:
    """Hash 64 bits: two multiplications by odd constants (of SplitMix64 and of Pelle Evensen's rrmxmx)."""
    word = word * 0x9E3779B97F4A7C15 & _WORD
    word = (word ^ word >> 32) * 0xD6E8FEB86659FD93 & _WORD
    return word ^ word >> 32


def check_order(versions: Mapping[str, str], checkpoint: str) -> None:
    """Refuse to go on from a checkpoint whose samples came in another order.

    Args:    versions: those of the manifest.  checkpoint: its name.
    Raises:  CheckpointError: the orders differ.
    """
    theirs = versions.get("order", "torch.randperm")
    if theirs != ORDER:
        raise CheckpointError(
            f"checkpoint {checkpoint} was written by a Rubato that orders the samples by {theirs}, this one does by "
            f"{ORDER}: the rest of the epoch would repeat some samples and leave out others. Go on with the Rubato "
            "that wrote it, or load its weights in the program and begin a new job"
        )
