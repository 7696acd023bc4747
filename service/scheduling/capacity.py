"""Slots: what nodes have, and what is left of them while a round is decided."""

from __future__ import annotations

from dataclasses import dataclass, field

# Slots are floats (half a CPU is allowed); sums of tenths must not lose a worker to rounding.
_EPSILON = 1e-6
_MANY = 1e9
"""More workers than a job may have fit onto no node, however little one takes."""


@dataclass(frozen=True)
class Shape:
    """What one worker takes of a node."""

    cpu: float
    gpu: float

    def __str__(self) -> str:
        parts = [f"{self.cpu:g} CPU"] if self.cpu else []
        parts += [f"{self.gpu:g} GPU"] if self.gpu else []
        return " and ".join(parts)


@dataclass(frozen=True)
class NodeView:
    """What a node has in all."""

    node_id: str
    cpu: float
    gpu: float


@dataclass(frozen=True)
class ClusterView:
    """A cluster that can take jobs: it is online, and these nodes are neither cordoned nor draining."""

    cluster_id: str
    nodes: tuple[NodeView, ...]
    shut: tuple[str, ...] = ()
    """The names of the others."""


@dataclass
class Free:
    """What is left of a cluster; a worker must fit onto one node."""

    cpu: dict[str, float] = field(default_factory=dict)
    gpu: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, cluster: ClusterView) -> Free:
        """The empty cluster."""
        return cls(
            {node.node_id: node.cpu for node in cluster.nodes}, {node.node_id: node.gpu for node in cluster.nodes}
        )

    def copy(self) -> Free:
        """For trying something out."""
        return Free(dict(self.cpu), dict(self.gpu))

    def fits_on(self, node_id: str, shape: Shape) -> int:
        """Workers that still fit on one node."""
        return _count(self.cpu[node_id], self.gpu[node_id], shape)

    def fits(self, shape: Shape) -> int:
        """Workers that still fit."""
        return sum(self.fits_on(node_id, shape) for node_id in self.cpu)

    def take(self, node_id: str, shape: Shape, workers: int = 1) -> None:
        """Use up part of a node, below zero where reality is fuller than planned; give it back with a negative count.

        A node that is not there (it was lost, or drains) changes nothing.
        """
        if node_id in self.cpu:
            self.cpu[node_id] -= workers * shape.cpu
            self.gpu[node_id] -= workers * shape.gpu

    def place(self, shape: Shape, workers: int) -> list[str]:
        """Use up whatever fits first; gives the node of each worker that found one."""
        nodes: list[str] = []
        for node_id in self.cpu:
            count = min(workers - len(nodes), self.fits_on(node_id, shape))
            self.take(node_id, shape, count)
            nodes += [node_id] * count
        return nodes


def largest_fit(cluster: ClusterView, shape: Shape) -> int:
    """Workers that the empty cluster would take."""
    return Free.of(cluster).fits(shape)


def _count(cpu: float, gpu: float, shape: Shape) -> int:
    counts = [
        int(min((have + _EPSILON) // need, _MANY)) for have, need in ((cpu, shape.cpu), (gpu, shape.gpu)) if need > 0
    ]
    return max(0, min(counts, default=0))
