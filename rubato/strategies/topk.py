"""Only the largest elements travel; what is left out is kept for the next steps.

Per step and worker, D elements of which k = density * D travel, tensor by tensor:
1. u <- m u + g and v <- v + u with momentum correction (DGC); v <- v + g without.
2. The k elements of v that are largest by magnitude are sent to all, and cleared in v; in u, too (factor masking).
3. Everybody adds up what came, in the order of ranks.

With momentum correction the optimizer must have no momentum of its own, as it is in here already.

Sent by each: (P-1) (4 + e) k bytes, e bytes of an element: against a dense sum it pays while (P-1)(4 + e) k < 2 e D.
Source: Lin et al. 2018, Deep Gradient Compression, arXiv:1712.01887; Aji and Heafield 2017, arXiv:1704.05021.
"""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Correcting, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, all_gather, join
from rubato.strategies.selection import INDEX, largest, pack, unpack
from rubato.strategies.sizes import count_of


class TopK(Correcting):
    """Top-k with error feedback.

    Args:
        density: the share of a tensor's elements that travels, above 0 to 1.
        momentum: m of the momentum correction; 0: error feedback alone.
    """

    def __init__(self, layout: Layout, density: float, momentum: float = 0.0) -> None:
        super().__init__(layout, momentum)
        self._counts = [count_of(density, piece.numel) for piece in layout.pieces]

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        after = self.gather(part_D, state)
        residual = after["residual"]
        places = self._select(residual)
        values = residual[places]
        self.clear(after, places)
        total = torch.zeros_like(residual)
        for message in all_gather(comm, pack(places, values)):
            total.index_add_(0, *unpack(message, values.dtype))  # each place once: no order to choose
        return total, after

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        return (world - 1) * (INDEX.itemsize + element_bytes) * sum(self._counts)

    def _select(self, vector_D: torch.Tensor) -> torch.Tensor:
        """The places of the largest of each tensor."""
        chosen, start = [], 0
        for piece, count in zip(self.layout.pieces, self._counts, strict=True):
            chosen.append(largest(vector_D[start : start + piece.numel].abs(), count) + start)
            start += piece.numel
        return join(chosen, vector_D.new_empty(0, dtype=torch.int64))
