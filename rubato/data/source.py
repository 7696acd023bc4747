"""Where microbatches come from: a function of (step, microbatch), whoever calls it and however often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rubato.data.fetch import Collate, fetch
from rubato.data.order import BatchPlan


class Source(Protocol):
    """What a step reads its microbatches from."""

    def read(self, step: int, v: int) -> Any:
        """Microbatch `v` of the step, on the CPU, its tensors fresh; moves the global generators.

        Raises:  whatever the user's dataset raises.
        """
        ...


@dataclass(frozen=True)
class MapSource:
    """A dataset that is read by index."""

    dataset: Any
    collate: Collate | None
    plan: BatchPlan

    def read(self, step: int, v: int) -> Any:
        """See `Source`."""
        ids = self.plan.samples(step, v)
        return fetch(self.dataset, ids, collate=self.collate, seed=self.plan.seed, epoch=self.plan.epoch_of(step))
