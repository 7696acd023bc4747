"""Slots: what nodes have, and what is left of them while a round is decided."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# Slots are floats (half a CPU is allowed); sums of tenths must not lose a worker to rounding.
_EPSILON = 1e-6
_MANY = 1e9
"""More workers than a job may have fit onto no node, however little one takes."""


@dataclass(frozen=True)
class Shape:
    """What one worker takes of a node."""

    cpu: float
    gpu: float
    memory: float = 0
    """Bytes."""
    accelerator: str | None = None
    """A type that its node must have; None: any, or none."""


@dataclass(frozen=True)
class NodeView:
    """What a node has in all."""

    node_id: str
    cpu: float
    gpu: float
    memory: float | None = None
    """Bytes; None: its agent did not tell, and Ray refuses what does not fit."""
    accelerators: frozenset[str] | None = None
    """Types; None: its agent did not tell."""


@dataclass(frozen=True)
class ClusterView:
    """A cluster that can take jobs: it is online, and these nodes are neither cordoned nor draining."""

    cluster_id: str
    nodes: tuple[NodeView, ...]
    shut: tuple[str, ...] = ()
    """The names of the others."""


class Free:
    """What is left of a cluster; a worker must fit onto one node.

    Args:    nodes: what is left of each.
    """

    def __init__(self, nodes: Iterable[NodeView]) -> None:
        self._nodes = {node.node_id: node for node in nodes}

    @classmethod
    def of(cls, cluster: ClusterView) -> Free:
        """The empty cluster."""
        return cls(cluster.nodes)

    def copy(self) -> Free:
        """For trying something out."""
        return Free(self._nodes.values())

    def fits(self, shape: Shape) -> int:
        """Workers that still fit."""
        return sum(_count(node, shape) for node in self._nodes.values())

    def take(self, node_id: str, shape: Shape, workers: int = 1) -> None:
        """Use up part of a node, below zero where reality is fuller than planned; give it back with a negative count.

        A node that is not there (it was lost, or drains) changes nothing.
        """
        if (node := self._nodes.get(node_id)) is not None:
            memory = None if node.memory is None else node.memory - workers * shape.memory
            cpu, gpu = node.cpu - workers * shape.cpu, node.gpu - workers * shape.gpu
            self._nodes[node_id] = replace(node, cpu=cpu, gpu=gpu, memory=memory)

    def place(self, shape: Shape, workers: int) -> list[str]:
        """Use up whatever fits first; gives the node of each worker that found one."""
        nodes: list[str] = []
        for node_id, node in self._nodes.items():
            if count := min(workers - len(nodes), _count(node, shape)):
                self.take(node_id, shape, count)
                nodes += [node_id] * count
        return nodes


def largest_fit(cluster: ClusterView, shape: Shape) -> int:
    """Workers that the empty cluster would take."""
    return Free.of(cluster).fits(shape)


def _count(node: NodeView, shape: Shape) -> int:
    if shape.accelerator is not None and node.accelerators is not None and shape.accelerator not in node.accelerators:
        return 0
    pairs = ((node.cpu, shape.cpu), (node.gpu, shape.gpu), (node.memory, shape.memory))
    counts = [int(min((have + _EPSILON) // need, _MANY)) for have, need in pairs if have is not None and need > 0]
    return max(0, min(counts, default=0))
