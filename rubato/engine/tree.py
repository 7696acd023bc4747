"""The canonical reduction tree over microbatches.

Floating-point addition is not associative: the order decides the bits. So the order is a property of the job, never of
the workers: a fixed mixed-radix tree over the V microbatches, level by level. A worker holds *nodes* of it (sums over
aligned runs of microbatches); whoever holds all children of a node may add them, left to right, and the bits are the
same.

    V = 8, radices (2, 2, 2):      level 3                 0
                                   level 2         0               1
                                   level 1     0       1       2       3
                                   level 0   0   1   2   3   4   5   6   7     one leaf a microbatch

A node is (level, index). Microbatches that are empty in a step (the tail of an epoch) are absent: a node is the sum of
its children that are present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Node = tuple[int, int]
B = TypeVar("B")


def radices_of(num_microbatches: int) -> tuple[int, ...]:
    """Prime factors of V in ascending order: the fan-in of each level, leaves first.

    Args:    num_microbatches: V >= 1.
    Returns: radices whose product is V; () for V = 1.
    """
    rest, factors, factor = num_microbatches, [], 2
    while rest > 1:
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
        factor = factor + 1 if factor * factor <= rest else max(rest, factor + 1)
    return tuple(factors)


@dataclass(frozen=True)
class Tree:
    """The shape of the canonical tree: fixed for a job."""

    radices: tuple[int, ...]

    @classmethod
    def of(cls, num_microbatches: int) -> Tree:
        """The tree over V microbatches."""
        return cls(radices_of(num_microbatches))

    @property
    def depth(self) -> int:
        """Level of the root."""
        return len(self.radices)

    @property
    def num_leaves(self) -> int:
        """V."""
        return self.span(self.depth)

    def span(self, level: int) -> int:
        """Leaves under a node of this level."""
        leaves = 1
        for radix in self.radices[:level]:
            leaves *= radix
        return leaves

    def leaves(self, node: Node) -> range:
        """The leaves under a node."""
        span = self.span(node[0])
        return range(node[1] * span, (node[1] + 1) * span)

    def parent(self, node: Node) -> Node:
        """The node above."""
        return node[0] + 1, node[1] // self.radices[node[0]]

    def children(self, node: Node) -> list[Node]:
        """The nodes below, in the order in which they are added."""
        radix = self.radices[node[0] - 1]
        return [(node[0] - 1, node[1] * radix + offset) for offset in range(radix)]

    def frontier(self, held: Iterable[int], present: Iterable[int]) -> list[Node]:
        """The fewest nodes that cover exactly the leaves `held`, where only `present` leaves exist.

        A node counts as held when all its present leaves are and it has any. Ordered by first leaf.
        """
        held_set, present_set = set(held), set(present)
        found: list[Node] = []

        def visit(node: Node) -> None:
            existing = [leaf for leaf in self.leaves(node) if leaf in present_set]
            if not existing or held_set.isdisjoint(existing):
                return
            if held_set.issuperset(existing):
                found.append(node)
                return
            for child in self.children(node):
                visit(child)

        visit((self.depth, 0))
        return found


def balanced_owners(num_microbatches: int, world: int) -> tuple[int, ...]:
    """Which rank computes each microbatch: contiguous runs whose lengths differ by at most one.

    Aligned runs keep the number of tree nodes a rank must send small: one when the world divides V into aligned parts.
    """
    return tuple(leaf * world // num_microbatches for leaf in range(num_microbatches))


def heirs(owners: Sequence[int | None], world: int) -> tuple[int, ...]:
    """Give every microbatch without an owner (None) to the rank with the least to do for them, lowest rank first.

    Only the orphans count as work: what survivors hold is computed already.
    """
    load = [0] * world
    result: list[int] = []
    for owner in owners:
        if owner is None:
            owner = min(range(world), key=lambda rank: (load[rank], rank))
            load[owner] += 1
        result.append(owner)
    return tuple(result)


class Partials(Generic[B]):
    """The nodes a worker holds of one step's tree, combined as far as they go.

    Args:
        tree: the job's tree.
        present: leaves that exist in this step.
        add: `add(left, right)` adds right into left and returns left; right may be reused by the caller.
        release: called with each buffer that is no longer needed.
    """

    def __init__(
        self, tree: Tree, present: Iterable[int], add: Callable[[B, B], B], release: Callable[[B], None] | None = None
    ) -> None:
        self.tree = tree
        self.present = frozenset(present)
        self.nodes: dict[Node, B] = {}
        self.held: set[int] = set()
        self._add = add
        self._release = release

    def put(self, node: Node, value: B) -> None:
        """Take in a node and combine upwards.

        Raises:
            ValueError: a leaf under it is held already (a microbatch counted twice).
        """
        leaves = [leaf for leaf in self.tree.leaves(node) if leaf in self.present]
        doubled = self.held.intersection(leaves)
        if doubled or not leaves:
            raise ValueError(f"microbatches {sorted(doubled) or list(self.tree.leaves(node))} counted twice or absent")
        self.held.update(leaves)
        self.nodes[node] = value
        while node[0] < self.tree.depth:
            node = self.tree.parent(node)
            if not self._combine(node):
                return

    def _combine(self, node: Node) -> bool:
        """Add the children of a node where all that exist are held; whether it could."""
        children = [child for child in self.tree.children(node) if self._exists(child)]
        if any(child not in self.nodes for child in children):
            return False
        total = self.nodes.pop(children[0])
        for child in children[1:]:
            right = self.nodes.pop(child)
            total = self._add(total, right)
            if self._release is not None:
                self._release(right)
        self.nodes[node] = total
        return True

    def _exists(self, node: Node) -> bool:
        return any(leaf in self.present for leaf in self.tree.leaves(node))

    def root(self) -> B:
        """The sum over all present leaves.

        Raises:
            ValueError: leaves are missing (a microbatch not counted).
        """
        root = (self.tree.depth, 0)
        if root not in self.nodes:
            raise ValueError(f"microbatches {sorted(self.present - self.held)} are missing")
        return self.nodes[root]

    def clear(self) -> None:
        """Forget everything, giving the buffers back."""
        if self._release is not None:
            for value in self.nodes.values():
                self._release(value)
        self.nodes.clear()
        self.held.clear()
