"""A method that begins gently: whole sums for the first steps, then more elements than later.

Gradients change fastest at first, and what is left out then is old by the time it travels.
Source: Lin et al. 2018, arXiv:1712.01887 (section 3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rubato.strategies.compressor import Compressor, State
from rubato.strategies.peers import Collectives


class Stages(Compressor):
    """Several methods, one after the other, over one state: that of the last one.

    Args:
        methods: in their order; all of the last one's layout.
        stage_of: which of them exchanges a step; equal on all workers.
    """

    def __init__(self, methods: Sequence[Compressor], stage_of: Callable[[int], int]) -> None:
        self._methods = list(methods)
        self._last = self._methods[-1]
        super().__init__(self._last.layout)
        self.own = self._last.own
        self._stage_of = stage_of

    def start(self, like: torch.Tensor) -> State:
        """See `Compressor`."""
        return self._last.start(like)

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, state: State, step: int
    ) -> tuple[torch.Tensor, State]:
        """See `Compressor`. What a method does not know of the state stays as it is."""
        total, after = self._method(step).exchange(comm, vector_L, state, step)
        return total, {**state, **after}

    def sent_bytes(self, rank: int, world: int, element_bytes: int, step: int = 0) -> int | None:
        """See `Compressor`."""
        return self._method(step).sent_bytes(rank, world, element_bytes, step)

    def adopt(self, settled: State, rank: int, world: int) -> State:
        """See `Compressor`."""
        return self._last.adopt(settled, rank, world)

    def _method(self, step: int) -> Compressor:
        return self._methods[self._stage_of(step)]
