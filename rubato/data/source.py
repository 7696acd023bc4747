"""Where microbatches come from: a function of (step, microbatches), whoever calls it and however often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rubato.data.fetch import Collate, fetch
from rubato.data.order import BatchPlan


class Source(Protocol):
    """What a step reads its microbatches from."""

    def read(self, step: int, v: int, count: int = 1) -> Any:
        """Microbatch `v` of the step and the `count - 1` after it as one batch; moves the global generators.

        The batch is on the CPU, its tensors are fresh.

        Raises:  whatever the user's dataset raises.
        """
        ...


@dataclass(frozen=True)
class MapSource:
    """A dataset that is read by index."""

    dataset: Any
    collate: Collate | None
    plan: BatchPlan

    def read(self, step: int, v: int, count: int = 1) -> Any:
        """See `Source`."""
        ids = self.plan.samples(step, v, count)
        return fetch(self.dataset, ids, collate=self.collate, seed=self.plan.seed, epoch=self.plan.epoch_of(step))
