"""The sample order: which rows each microbatch of each step holds, as a pure function of the step.

An epoch is one keyed permutation of all samples. Step s of it covers the positions [s*B, (s+1)*B), B the global batch;
the last step of an epoch, the tail, covers what is left. Nothing is remembered from step to step, so that a worker that
joins, restarts or inherits a microbatch needs only the number of the step.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass


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

    def samples(self, step: int, v: int) -> list[int]:
        """Sample ids of microbatch `v` of the step, a fresh list; empty where the microbatch is.

        Raises:
            IndexError: `v` is not in 0..num_microbatches-1.
        """
        if not 0 <= v < self.num_microbatches:
            raise IndexError(f"microbatch {v} is not in 0..{self.num_microbatches - 1}")
        sizes = self.sizes(step)
        first = self._start(step) + sum(sizes[:v])
        return list(permutation(self.num_samples, self.seed, self.epoch_of(step))[first : first + sizes[v]])

    def _start(self, step: int) -> int:
        """Position of the step's first sample in its epoch."""
        if step < 0:
            raise ValueError(f"a step is counted from 0, got {step}")
        return step % self.steps_per_epoch * self.global_size


@functools.lru_cache(maxsize=2)  # a step touches one epoch, a step at the border and its recovery two
def permutation(num_samples: int, seed: int, epoch: int) -> Sequence[int]:
    """The order of the samples in an epoch: a read-only view of 8 bytes a sample.

    Drawn from a generator of its own, so that it neither sees nor moves the global one.
    """
    import torch  # the plan itself is arithmetic: a controller without torch may ask for sizes

    key = hashlib.blake2b(f"order:{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))
    order = torch.randperm(num_samples, generator=generator, dtype=torch.int64)
    return memoryview(order.numpy().tobytes()).cast("q")
