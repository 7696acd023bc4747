"""One reduction on its way: two phases for each bucket of the vector, several buckets at once.

Names: W workers, L elements of a flat vector, S its bytes; a bucket is a stretch of the vector, C = ceil(its length/W)
elements of a chunk of it (a multiple of 16), F the frontier: the nodes a worker holds (1 each where W divides V into
aligned runs, and where the order of the sum is free).

First all tell each other which nodes they hold, of which step. A missing or doubled node, or one of another step, is an
error: this is the exactly-once check.
Phase A: every worker sends chunk c of each of its frontier nodes to worker c, which adds them up in the order of the
job. Sent: F * S * (W-1)/W bytes.
Phase B: worker c gives its reduced chunk to all; in the last bucket also its header, and its integer buffers. Sent:
S * (W-1)/W. As messages, too: gloo's all-gather takes several times as long (`make bench-gather`).
Both are sent from where they lie, and those of phase B are received where they belong.

The parts of a bucket are sent before the sums of those before it are, by all in the same order, so that nobody waits
for an answer to its last message. When each bucket begins is every worker's own affair.

With one node a worker this is what a ring sends, and every survivor sees a peer's death directly.
Source of the cost of the ring: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.engine.buffers import UNDER_WAY, Buffers, Section
from rubato.engine.comm import Communicator
from rubato.engine.header import ALIGNMENT, Header
from rubato.engine.labels import Stamp, tell_nodes
from rubato.engine.pending import Pending
from rubato.engine.tree import Node, Order, Partials
from rubato.errors import ProtocolError


@dataclass(frozen=True)
class Reduced:
    """The outcome of a reduction, equal on all members: enough to bring one that missed it up to date."""

    chunks: tuple[torch.Tensor, ...]
    """The reduced vector (not yet divided), whole, or in pieces as it was told by several; together (L,)."""
    headers: tuple[Header, ...]
    integers: bytes
    """Of the buffers that are not floating point, after the step's lowest microbatch."""


class Reduction:
    """Made by `Exchange.begin`; used by one thread at a time.

    Args:
        gradients: so many elements of the vector, the first ones, must be finite.
        present: the microbatches that exist in the step.
        owners: by microbatch, the rank that holds it in this step.
        results: the buffer for the outcome.
    """

    def __init__(
        self,
        comm: Communicator,
        buffers: Buffers,
        gradients: int,
        order: Order,
        present: Collection[int],
        owners: Sequence[int],
        stamp: Stamp,
        results: torch.Tensor,
    ) -> None:
        self._comm = comm
        self._buffers = buffers
        self._gradients = gradients
        self._order = order
        self._present = sorted(present)
        self._stamp = stamp
        self._results = results
        self._frontiers = frontiers(order, self._present, owners, buffers.world)
        self._mine = self._frontiers[buffers.rank]
        self._integer_owner = owners[self._present[0]]
        self._is_finite = True
        self._begun = 0
        self._parts_sent: deque[tuple[int, list[tuple[int, Node, torch.Tensor]], Pending]] = deque()
        """Buckets whose parts are on their way, the oldest first, with what comes in."""
        self._sums_sent: deque[Pending] = deque()

    def next(self, nodes: Mapping[Node, torch.Tensor]) -> None:
        """Exchange the next bucket but the last, or begin to.

        Args:    nodes: what this worker holds of the sum; complete in the bucket's stretch.
        Raises:  GenerationLost: a member was lost.
                 ProtocolError: a node is missing or doubled, or a member is at another step.
        """
        if self._begun == 0:
            self._tell_nodes(nodes)
        self._send_parts(nodes)
        if len(self._parts_sent) == UNDER_WAY:
            self._send_sum(nodes)

    def end(self, nodes: Mapping[Node, torch.Tensor], header: Header, integers: bytes) -> Reduced:
        """Exchange all buckets that are left, and headers and integer buffers with the last one.

        Args:    header: of this worker; `is_finite` is filled in here.
        Raises:  as `next`.
        """
        buffers = self._buffers
        while self._begun < len(buffers.sections):
            self.next(nodes)
        while len(self._parts_sent) > 1:
            self._send_sum(nodes)
        self._send_sum(nodes, header, integers)
        while self._sums_sent:
            self._sums_sent.popleft().wait()
        self._comm.confirm()  # the program may change its gradients, which lie where sums are sent from
        last = buffers.sections[-1]
        vector = buffers.typed(self._results, 0, buffers.length)
        headers, owned = [], b""
        for rank in range(buffers.world):
            row, (low, high) = buffers.place(last, rank)[0], last.bounds(rank)
            vector[low:high].copy_(buffers.typed(self._results, row, high - low))
            said = row + buffers.said_at
            headers.append(Header.unpack(_get(self._results, said, buffers.header_bytes)))
            if rank == self._integer_owner and buffers.integer_bytes:
                owned = _get(self._results, said + buffers.header_bytes, buffers.integer_bytes)
        return Reduced((vector,), tuple(headers), owned)

    def _tell_nodes(self, nodes: Mapping[Node, torch.Tensor]) -> None:
        scratch, world = self._buffers.scratch, self._buffers.world
        memory = scratch("label", 0, ALIGNMENT), scratch("labels", 0, world * ALIGNMENT)
        present = frozenset(self._present)
        tell_nodes(self._comm, self._order, present, self._frontiers, self._stamp, nodes, memory)

    def _send_parts(self, nodes: Mapping[Node, torch.Tensor]) -> None:
        """Phase A, begun: every other worker's chunk of the next bucket, node by node, on its way."""
        buffers, number = self._buffers, self._begun
        section = buffers.sections[number]
        incoming = self._incoming(section, number)
        received = [(rank, part) for rank, _, part in incoming]
        others, mine = _others(buffers), [nodes[node] for node in self._mine]
        sent = [(rank, whole[slice(*section.bounds(rank))]) for rank in others for whole in mine]
        self._parts_sent.append((number, incoming, self._comm.start_messages(received, sent)))
        self._begun += 1

    def _incoming(self, section: Section, number: int) -> list[tuple[int, Node, torch.Tensor]]:
        """What comes in phase A of a bucket: from whom, which node, and where."""
        buffers = self._buffers
        memory = buffers.scratch("parts", number, bytes_of_parts(buffers, section, self._frontiers))
        held = [(rank, node) for rank in _others(buffers) for node in self._frontiers[rank]]
        elements = section.elements(buffers.rank)
        parts = buffers.typed(memory, 0, len(held) * elements).view(len(held), elements)
        return [(rank, node, part) for (rank, node), part in zip(held, parts, strict=True)]

    def _send_sum(
        self, nodes: Mapping[Node, torch.Tensor], header: Header | None = None, integers: bytes = b""
    ) -> None:
        """Phase A ended for the oldest bucket, and phase B begun: its sum here, and what is said with it, on their way.

        The sum is made in this worker's row of the results.
        """
        buffers = self._buffers
        if len(self._sums_sent) == UNDER_WAY:
            self._sums_sent.popleft().wait()
        number, incoming, pending = self._parts_sent.popleft()
        pending.wait()
        section, here = buffers.sections[number], buffers.rank
        begin, end = buffers.place(section, here)
        chunk = buffers.typed(self._results, begin, section.elements(here))
        self._sum(self._all_parts(section, nodes, incoming), chunk)
        checked = self._gradients - section.bounds(here)[0]
        self._is_finite = self._is_finite and (checked <= 0 or is_finite(chunk[:checked]))
        row = self._results[begin:end]
        if header is not None:
            _put(row, buffers.said_at, replace(header, is_finite=self._is_finite).pack() + integers)
        self._sums_sent.append(self._spread(section, row))

    def _spread(self, section: Section, row: torch.Tensor) -> Pending:
        """Phase B of a bucket, begun: this worker's row to all others, and theirs to where they belong."""
        others = _others(self._buffers)
        rows = [(rank, self._results[slice(*self._buffers.place(section, rank))]) for rank in others]
        return self._comm.start_messages(rows, [(rank, row) for rank in others])

    def _all_parts(
        self, section: Section, nodes: Mapping[Node, torch.Tensor], incoming: Sequence[tuple[int, Node, torch.Tensor]]
    ) -> dict[Node, torch.Tensor]:
        """All parts of this worker's chunk of a bucket: its own, and what has come in."""
        low, high = section.bounds(self._buffers.rank)
        parts = {node: nodes[node][low:high] for node in self._mine}
        for _, node, part in incoming:
            if node in parts:
                raise ProtocolError(f"step {self._stamp[2]}: node {node} is held twice")
            parts[node] = part
        return parts

    def _sum(self, parts: Mapping[Node, torch.Tensor], out: torch.Tensor) -> None:
        """Add up the parts in the order of the job, into `out`. The own ones must survive a failure of this attempt."""
        own = {id(parts[node]) for node in self._mine}
        is_taken = False

        def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            nonlocal is_taken
            if not is_taken:
                is_taken = True
                return torch.add(left, right, out=out)
            return torch.add(left, right) if id(left) in own else left.add_(right)

        whole: Partials[torch.Tensor] = Partials(self._order, self._present, add)
        try:
            for node, part in parts.items():
                whole.put(node, part)
            root = whole.root()
        except ValueError as error:
            raise ProtocolError(f"step {self._stamp[2]}: {error}") from error
        if root is not out:
            out.copy_(root)


def frontiers(order: Order, present: Collection[int], owners: Sequence[int], world: int) -> list[list[Node]]:
    """By rank, the nodes it holds when it has computed all that it owns."""
    return [order.frontier([leaf for leaf in present if owners[leaf] == rank], present) for rank in range(world)]


def bytes_of_parts(buffers: Buffers, section: Section, frontiers: Sequence[Sequence[Node]]) -> int:
    """Of what comes in phase A of a bucket."""
    nodes = sum(len(frontiers[rank]) for rank in _others(buffers))
    return nodes * section.elements(buffers.rank) * buffers.element_bytes


def is_finite(chunk: torch.Tensor) -> bool:
    """Whether all elements are."""
    # A sum is not finite if any element is not; it may overflow where none is, so then all elements are looked at.
    return bool(torch.isfinite(chunk.sum())) or bool(torch.isfinite(chunk).all())


def _others(buffers: Buffers) -> list[int]:
    return [rank for rank in range(buffers.world) if rank != buffers.rank]


def _put(buffer: torch.Tensor, offset: int, data: bytes) -> None:
    buffer[offset : offset + len(data)].copy_(bytes_tensor(data))


def _get(buffer: torch.Tensor, offset: int, size: int) -> bytes:
    return bytes(buffer[offset : offset + size].cpu().numpy())
