"""Dense sums within a node, where links are fast; only the largest elements between nodes.

Names: N nodes, node i of m_i workers, D elements, k = density * D.
Per step:
1. Within a node, worker j gets stretch j of all, and adds up.
2. v <- v + that sum. Of its stretch of v the largest elements by magnitude are chosen, k over all m_i workers of the
   node, and cleared in v. So a node keeps one v, of which each worker has a stretch.
3. Between nodes: worker j tells its list to one worker of each other node, the (j mod m)th of its m.
4. Within a node all tell all what they chose and what came; everybody adds up all lists, node by node.

Sent between nodes, by worker: (N-1) (4 + e) k / m_i bytes, e bytes of an element.
Source: after the hierarchical top-k of Shi et al. 2020, arXiv:2010.10458.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rubato.strategies.compressor import Piecewise, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, Group, exchange, split
from rubato.strategies.selection import INDEX, largest, pack, unpack
from rubato.strategies.sizes import count_of, cut
from rubato.strategies.sums import reduce_scatter


class HierarchicalTopK(Piecewise):
    """Hierarchical top-k with error feedback, for one generation.

    Args:
        density: the share of the elements that each node sends, above 0 to 1.
        nodes: by rank, which node it is on.
    """

    own = ("residual",)

    def __init__(self, layout: Layout, density: float, nodes: Sequence[object]) -> None:
        super().__init__(layout)
        self._density = density
        names = list(dict.fromkeys(nodes))
        self._groups = [[rank for rank, node in enumerate(nodes) if node == name] for name in names]
        """By node, its ranks."""
        self._group_of = {rank: group for group in self._groups for rank in group}

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        low, high = self._stretch(comm.rank)
        residual = state["residual"].clone()
        mine = residual[low:high]
        mine.add_(reduce_scatter(Group(comm, self._group_of[comm.rank]), part_D))
        places = largest(mine.abs(), self._count(comm.rank))
        lists = {comm.rank: (places + low, mine[places])}
        mine[places] = 0
        lists |= self._between_nodes(comm, *lists[comm.rank])
        lists |= self._in_node(comm, lists, part_D)
        total = torch.zeros_like(residual)
        for group in self._groups:
            for rank in group:
                total.index_add_(0, *lists[rank])
        return total, {"residual": residual}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        group = self._group_of[rank]
        low, high = self._stretch(rank)
        entry = INDEX.itemsize + element_bytes
        told = sum(self._count(one) for one in self._heard(rank))
        within = (len(group) - 1) * told * entry + element_bytes * (self.layout.numel - (high - low))
        return self.bytes_between_nodes(rank, element_bytes) + (within if len(group) > 1 else 0)

    def bytes_between_nodes(self, rank: int, element_bytes: int) -> int:
        """What a rank sends to other nodes in a step. Pure."""
        return (len(self._groups) - 1) * self._count(rank) * (INDEX.itemsize + element_bytes)

    def adopt(self, settled: State, rank: int, world: int) -> State:
        """See `Compressor`. Each node has its share, each worker a stretch of that."""
        low, high = self._stretch(rank)
        residual = torch.zeros_like(settled["residual"])
        residual[low:high] = settled["residual"][low:high] / len(self._groups)
        return {"residual": residual}

    def _stretch(self, rank: int) -> tuple[int, int]:
        """Which elements a rank adds up for its node."""
        group = self._group_of[rank]
        return cut(self.layout.numel, len(group))[group.index(rank)]

    def _count(self, rank: int) -> int:
        """How many elements a rank chooses."""
        low, high = self._stretch(rank)
        return count_of(self._density, high - low)

    def _partner(self, rank: int, group: Sequence[int]) -> int:
        """Who of another node is told what a rank chose."""
        return group[self._group_of[rank].index(rank) % len(group)]

    def _heard(self, rank: int) -> list[int]:
        """Whose lists a rank has after phase 3: its own, and those of other nodes that were told to it."""
        group = self._group_of[rank]
        others = [one for other in self._groups if other is not group for one in other]
        return [rank, *(one for one in others if self._partner(one, group) == rank)]

    def _between_nodes(
        self, comm: Collectives, places: torch.Tensor, values: torch.Tensor
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """Lists of other nodes' workers, by their rank."""
        here = self._group_of[comm.rank]
        partners = [self._partner(comm.rank, group) for group in self._groups if group is not here]
        entry = INDEX.itemsize + values.dtype.itemsize
        expected = {rank: entry * self._count(rank) for rank in self._heard(comm.rank)[1:]}
        came = exchange(comm, dict.fromkeys(partners, pack(places, values)), expected, torch.uint8)
        return {rank: unpack(came[rank], values.dtype) for rank in expected}

    def _in_node(
        self, comm: Collectives, lists: dict[int, tuple[torch.Tensor, torch.Tensor]], like: torch.Tensor
    ) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """The lists that the others of this node have, by the rank that chose them."""
        others = [rank for rank in self._group_of[comm.rank] if rank != comm.rank]
        counts = {rank: [self._count(one) for one in self._heard(rank)] for rank in others}
        entry = INDEX.itemsize + like.dtype.itemsize
        expected = {rank: entry * sum(counts[rank]) for rank in others}
        mine = [lists[rank] for rank in self._heard(comm.rank)]
        told = pack(torch.cat([one[0] for one in mine]), torch.cat([one[1] for one in mine]))
        came = exchange(comm, dict.fromkeys(others, told), expected, torch.uint8)
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for rank in others:
            places, values = unpack(came[rank], like.dtype)
            parts = zip(split(places, counts[rank]), split(values, counts[rank]), strict=True)
            found |= dict(zip(self._heard(rank), parts, strict=True))
        return found
