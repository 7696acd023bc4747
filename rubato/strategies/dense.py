"""The whole sum, in a pattern of one's choice, or with momentum."""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Compressor, Correcting, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives
from rubato.strategies.sizes import Pattern, elements_sent
from rubato.strategies.sums import sum_over


class Dense(Compressor):
    """Nothing is left out.

    Args:    pattern, servers: of the sum, see `sums`.
    """

    def __init__(self, layout: Layout, pattern: Pattern = "direct", servers: int = 1) -> None:
        super().__init__(layout)
        self._pattern, self._servers = pattern, servers

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, state: State, step: int
    ) -> tuple[torch.Tensor, State]:
        """See `Compressor`: in one go."""
        return sum_over(comm, vector_L, self._pattern, self._servers), {}

    def sent_bytes(self, rank: int, world: int, element_bytes: int, step: int = 0) -> int:
        """See `Compressor`."""
        return element_bytes * elements_sent(self._pattern, rank, world, self.layout.length, self._servers)


class Gathering(Correcting):
    """Nothing is left out, and momentum is gathered all the same: how a method that carries it begins."""

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        after = self.gather(part_D, state)
        total = sum_over(comm, after["residual"])
        return total, {**after, "residual": torch.zeros_like(total)}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        return element_bytes * elements_sent("direct", rank, world, self.layout.numel)
