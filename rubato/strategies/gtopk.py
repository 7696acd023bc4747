"""The k largest of all workers' together, found on the way through a tree.

Per step and worker, D elements, k = density * D:
1. v <- v + g; its k largest elements by magnitude are this worker's list, and are cleared in v.
2. Binomial tree, level by level: who receives a list unites it with its own (adding where both have an element), keeps
   the k largest of it, and adds what it drops to its own v: nothing is lost. (The published code gives back only what a
   worker chose itself, which loses more the more workers there are.)
3. The root's list goes down the same tree; everybody applies it.

Sent: at most ceil(log2 P) lists by one rank, k (4 + e) bytes each, and one up.
Source: Shi et al. 2019, arXiv:1901.04359.
"""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Piecewise, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, exchange
from rubato.strategies.selection import INDEX, largest, pack, unpack
from rubato.strategies.sizes import count_of, elements_sent, levels_of
from rubato.strategies.sums import pair

Entries = tuple[torch.Tensor, torch.Tensor]
"""Places (k,) int64, ascending, and values (k,)."""


class GlobalTopK(Piecewise):
    """gTop-k.

    Args:    density: the share of all compressed elements that travels, above 0 to 1.
    """

    own = ("residual",)

    def __init__(self, layout: Layout, density: float) -> None:
        super().__init__(layout)
        self._count = count_of(density, layout.numel)

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        residual = state["residual"] + part_D
        places = largest(residual.abs(), self._count)
        entries = places, residual[places]
        residual[places] = 0
        levels = levels_of(comm.world)
        for m in levels:
            up, down = pair(comm, m)
            came = self._pass_on(comm, entries, up, down)
            if came is not None:
                entries = merge(entries, came, self._count, residual)
        for m in reversed(levels):
            up, down = pair(comm, m)
            entries = self._pass_on(comm, entries, down, up) or entries
        total = torch.zeros_like(residual)
        total[entries[0]] = entries[1]
        return total, {"residual": residual}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        return elements_sent("tree", rank, world, self._count) * (INDEX.itemsize + element_bytes)

    def _pass_on(self, comm: Collectives, entries: Entries, to: int | None, of: int | None) -> Entries | None:
        """A list to one rank, or one from one."""
        dtype = entries[1].dtype
        size = self._count * (INDEX.itemsize + dtype.itemsize)
        sent = {} if to is None else {to: pack(*entries)}
        came = exchange(comm, sent, {} if of is None else {of: size}, torch.uint8)
        return None if of is None else unpack(came[of], dtype)


def merge(mine: Entries, other: Entries, count: int, residual: torch.Tensor) -> Entries:
    """The `count` largest of both lists together; what is dropped is added to the residual."""
    places, where = torch.unique(torch.cat([mine[0], other[0]]), return_inverse=True)
    values = mine[1].new_zeros(places.numel()).index_add_(0, where, torch.cat([mine[1], other[1]]))
    kept = largest(values.abs(), count)
    is_dropped = torch.ones_like(places, dtype=torch.bool)
    is_dropped[kept] = False
    residual[places[is_dropped]] += values[is_dropped]
    return places[kept], values[kept]
