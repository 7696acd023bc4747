"""How the gradients of microbatches are added up: the canonical tree, or in any order.

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

Jobs that give up equal bits (`reproducible: false`) add up in any order: a node is then whatever one worker holds,
named by its microbatches, and one backward pass may go over several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

Node = tuple[int, ...]
"""Of a tree (level, index); where the order is free, the microbatches under it."""
B = TypeVar("B")


class Order(Protocol):
    """Which sums a worker may form."""

    @property
    def takes_several(self) -> bool:
        """Whether one backward pass may go over several microbatches."""
        ...

    def node_of(self, leaves: Sequence[int]) -> Node:
        """The node that a backward pass over these microbatches gives."""
        ...

    def leaves(self, node: Node) -> Iterable[int]:
        """The microbatches under a node; in a tree also those that are empty."""
        ...

    def frontier(self, held: Iterable[int], present: Iterable[int]) -> list[Node]:
        """The fewest nodes that cover exactly the leaves `held`, where only `present` leaves exist."""
        ...

    def next_sum(self, node: Node, held: Collection[Node], present: Collection[int]) -> tuple[Node, list[Node]] | None:
        """What a worker that holds `node` among others can add up next: the sum, and its parts in order."""
        ...

    def root(self, present: Iterable[int]) -> Node:
        """The node over all of them."""
        ...


class AnyOrder:
    """Whatever is there is added at once: the least memory and work, but the bits follow the membership."""

    takes_several = True

    def node_of(self, leaves: Sequence[int]) -> Node:
        """See `Order`."""
        return tuple(leaves)

    def leaves(self, node: Node) -> Iterable[int]:
        """See `Order`."""
        return node

    def frontier(self, held: Iterable[int], present: Iterable[int]) -> list[Node]:
        """See `Order`."""
        both = sorted(set(held).intersection(present))
        return [tuple(both)] if both else []

    def next_sum(self, node: Node, held: Collection[Node], present: Collection[int]) -> tuple[Node, list[Node]] | None:
        """See `Order`."""
        others = [other for other in held if other != node]
        return (tuple(sorted((*others[0], *node))), [others[0], node]) if others else None

    def root(self, present: Iterable[int]) -> Node:
        """See `Order`."""
        return tuple(sorted(present))


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
    """The shape of the canonical tree: fixed for a job. Legend of nodes: (level, index)."""

    radices: tuple[int, ...]
    takes_several = False

    @classmethod
    def of(cls, num_microbatches: int) -> Tree:
        """The tree over V microbatches."""
        return cls(radices_of(num_microbatches))

    @property
    def depth(self) -> int:
        """Level of the root."""
        return len(self.radices)

    def span(self, level: int) -> int:
        """Leaves under a node of this level."""
        leaves = 1
        for radix in self.radices[:level]:
            leaves *= radix
        return leaves

    def node_of(self, leaves: Sequence[int]) -> Node:
        """See `Order`."""
        (leaf,) = leaves
        return 0, leaf

    def root(self, present: Iterable[int]) -> Node:
        """See `Order`."""
        return self.depth, 0

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

    def next_sum(self, node: Node, held: Collection[Node], present: Collection[int]) -> tuple[Node, list[Node]] | None:
        """See `Order`. The parent, where all its children that exist are held."""
        if node[0] == self.depth:
            return None
        parent = self.parent(node)
        children = [child for child in self.children(parent) if any(leaf in present for leaf in self.leaves(child))]
        return (parent, children) if all(child in held for child in children) else None

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

    def count_nodes(self, begin: int, end: int) -> int:
        """How many nodes the frontier of the microbatches begin..end has, where all exist."""
        count = 0
        for radix in self.radices:
            left = min(-begin % radix, end - begin)  # of the node at the run's beginning, which is not held whole
            begin += left
            right = min(end % radix, end - begin)
            end -= right
            count += left + right
            begin, end = begin // radix, end // radix
        return count + end - begin


def balanced_owners(num_microbatches: int, world: int) -> tuple[int, ...]:
    """Which rank computes each microbatch: contiguous runs whose lengths differ by at most one.

    Aligned runs keep the number of tree nodes a rank must send small: one when the world divides V into aligned parts.
    """
    return tuple(leaf * world // num_microbatches for leaf in range(num_microbatches))


def runs(numbers: Sequence[int]) -> Iterator[range]:
    """Ascending numbers as runs without gaps."""
    begin = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[end - 1] + 1:
            yield range(numbers[begin], numbers[end - 1] + 1)
            begin = end


def passes(order: Order, leaves: Sequence[int]) -> Iterator[range]:
    """The backward passes in which a worker computes these microbatches, which ascend."""
    yield from runs(leaves) if order.takes_several else (range(leaf, leaf + 1) for leaf in leaves)


def heirs(owners: Sequence[int | None], world: int) -> tuple[int, ...]:
    """Share out the microbatches without an owner (None), in runs whose lengths differ by at most one.

    Only these orphans count as work: what survivors hold is computed already.
    """
    orphans = [leaf for leaf, owner in enumerate(owners) if owner is None]
    heir_of = dict(zip(orphans, balanced_owners(len(orphans), world), strict=True))
    return tuple(heir_of[leaf] if owner is None else owner for leaf, owner in enumerate(owners))


class Partials(Generic[B]):
    """The nodes a worker holds of one step's sum, combined as far as they go.

    Args:
        order: the job's tree, or any order.
        present: leaves that exist in this step.
        add: `add(left, right)` adds right into left and returns left; right may be reused by the caller.
        release: called with each buffer that is no longer needed.
    """

    def __init__(
        self, order: Order, present: Iterable[int], add: Callable[[B, B], B], release: Callable[[B], None] | None = None
    ) -> None:
        self.order = order
        self.present = frozenset(present)
        self.nodes: dict[Node, B] = {}
        self.held: set[int] = set()
        self._add = add
        self._release = release

    def left_of(self, node: Node) -> B | None:
        """What a value put at `node` is added to at once, and by itself; None: nothing, or others are added as well."""
        found = self.order.next_sum(node, {*self.nodes, node}, self.present)
        if found is None or found[1][1:] != [node]:
            return None
        return self.nodes[found[1][0]]

    def put_added(self, node: Node) -> None:
        """Take in a node whose value the caller has added to `left_of(node)`, and combine upwards.

        Raises:
            ValueError: as `put`.
        """
        self._hold(node)
        found = self.order.next_sum(node, {*self.nodes, node}, self.present)
        assert found is not None
        total, (left, _) = found
        self.nodes[total] = self.nodes.pop(left)
        self._combine(total)

    def joins(self, node: Node) -> tuple[Node, list[list[B]], dict[Node, B]]:
        """What a value put at `node` is to be added up with, where it is the last of each sum it goes into.

        Returns: the node that it ends in; sum by sum the values on its left, in order; the nodes that are left alone.
        """
        held, found = {*self.nodes, node}, []
        while (following := self.order.next_sum(node, held, self.present)) is not None:
            total, parts = following
            assert parts[-1] == node
            if len(parts) > 1:
                found.append([self.nodes[part] for part in parts[:-1]])
            held = held.difference(parts) | {total}
            node = total
        return node, found, {one: self.nodes[one] for one in held if one != node}

    def put_joined(self, node: Node, value: B) -> None:
        """Take in a node whose value the caller has added up with all that it `joins`, in a buffer of its own.

        Raises:
            ValueError: as `put`.
        """
        self._hold(node)
        total, lefts, others = self.joins(node)
        if self._release is not None:
            for level in lefts:
                for left in level:
                    self._release(left)
        self.nodes = {**others, total: value}

    def put(self, node: Node, value: B) -> None:
        """Take in a node and combine upwards.

        Raises:
            ValueError: a leaf under it is held already (a microbatch counted twice).
        """
        self._hold(node)
        self.nodes[node] = value
        self._combine(node)

    def _hold(self, node: Node) -> None:
        leaves = [leaf for leaf in self.order.leaves(node) if leaf in self.present]
        doubled = self.held.intersection(leaves)
        if doubled or not leaves:
            raise ValueError(f"microbatches {sorted(doubled) or list(self.order.leaves(node))} counted twice or absent")
        self.held.update(leaves)

    def _combine(self, node: Node) -> None:
        while (found := self.order.next_sum(node, self.nodes, self.present)) is not None:
            node, parts = found
            self.nodes[node] = self._sum(parts)

    def _sum(self, parts: Sequence[Node]) -> B:
        total = self.nodes.pop(parts[0])
        for part in parts[1:]:
            right = self.nodes.pop(part)
            total = self._add(total, right)
            if self._release is not None:
                self._release(right)
        return total

    def root(self) -> B:
        """The sum over all present leaves.

        Raises:
            ValueError: leaves are missing (a microbatch not counted).
        """
        root = self.order.root(self.present)
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


def most_at_once(order: Order, leaves: Sequence[int], present: Collection[int]) -> int:
    """Vectors that a worker needs to add up these microbatches, where the last pass is sent while it is computed."""
    partials: Partials[bool] = Partials(order, present, lambda left, right: True)
    most, due = 0, list(passes(order, leaves))
    for number, run in enumerate(due):
        node = order.node_of(run)
        is_added = partials.left_of(node) is not None and number < len(due) - 1
        most = max(most, len(partials.nodes) + (not is_added))
        partials.put(node, True)
    return most
