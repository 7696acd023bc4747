"""One reduction of a step over the members of a generation, cut in chunks.

Names: W workers, L elements of a flat vector, S its bytes, C = ceil(L/W) elements of a chunk (a multiple of 16), F the
frontier: the nodes a worker holds (1 each where W divides V into aligned runs, and where the order of the sum is free).

Phase A, all-to-all: every worker sends chunk c of each of its frontier nodes to worker c, which adds them up in the
order of the job. A missing or doubled node is an error: this is the exactly-once check. Sent: F * S * (W-1)/W bytes.
Phase B, all-gather: worker c gives its reduced chunk, its header, and its integer buffers to all. Sent: S * (W-1)/W.

With one node a worker this is what a ring sends, and every survivor sees a peer's death directly in A.
Source of the cost of the ring: Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rubato.engine.comm import Communicator
from rubato.engine.header import ALIGNMENT, Header
from rubato.engine.tree import Node, Order, Partials
from rubato.errors import ProtocolError

_LABEL = struct.Struct("<6q")
"""Before each message of phase A: attempt, generation, step, sender, nodes, bits of the leaves they cover (folded)."""


@dataclass(frozen=True)
class Reduced:
    """The outcome of a reduction, equal on all members: enough to bring one that missed it up to date."""

    chunks: tuple[torch.Tensor, ...]
    """The reduced vector (not yet divided), in W pieces; together (L,)."""
    headers: tuple[Header, ...]
    integers: bytes
    """Of the buffers that are not floating point, after the step's lowest microbatch."""


class Exchange:
    """Reductions within one generation. Its buffers belong to the generation, and go to the grave with it."""

    def __init__(
        self,
        comm: Communicator | None,
        like: torch.Tensor,
        header_bytes: int,
        integer_bytes: int,
        device: torch.device,
        gradients: int | None = None,
    ) -> None:
        """`gradients`: so many elements of the vector, the first ones, must be finite; None: all."""
        self._comm = comm
        self._world = comm.world if comm else 1
        self._rank = comm.rank if comm else 0
        self._length = like.numel()
        self._gradients = self._length if gradients is None else gradients
        self._dtype = like.dtype
        self._device = device
        self._chunk = -(-self._length // (self._world * 16)) * 16
        self._header_bytes = header_bytes
        self._integer_bytes = integer_bytes
        self._row_bytes = _aligned(self._chunk * like.element_size()) + header_bytes + _aligned(integer_bytes)
        # Fresh memory is zeroed by the kernel page by page, which costs more than the copies: all buffers are kept.
        self._kept: dict[str, torch.Tensor] = {}
        self._gathered: list[torch.Tensor] = []
        self._turn = 1

    def touch(self, order: Order, owners: Sequence[int]) -> None:
        """Touch the memory of the buffers that a step with these owners needs, before anybody waits for it."""
        if self._comm is None:
            return
        frontiers = [
            order.frontier([leaf for leaf, owner in enumerate(owners) if owner == rank], range(len(owners)))
            for rank in range(self._world)
        ]
        sent, received = self._message_sizes(frontiers)
        own = len(frontiers[self._rank]) * self._chunk * self._element_bytes
        for name, size in (("source", sum(sent)), ("out", sum(received)), ("own", own), ("row", self._row_bytes)):
            self._scratch(name, size).zero_()
        for _ in range(2):
            self._buffer().zero_()

    def _message_sizes(self, frontiers: Sequence[Sequence[Node]]) -> tuple[list[int], list[int]]:
        """Bytes to and from every rank in phase A: a label, and a chunk of each node. Own parts do not travel."""
        size, mine = self._element_bytes, len(frontiers[self._rank])
        low, high = self._bounds(self._rank)
        others = [rank for rank in range(self._world) if rank != self._rank]
        sent, received = [0] * self._world, [0] * self._world
        for rank in others:
            begin, end = self._bounds(rank)
            sent[rank] = ALIGNMENT + mine * (end - begin) * size
            received[rank] = ALIGNMENT + len(frontiers[rank]) * (high - low) * size
        return sent, received

    def _bounds(self, rank: int) -> tuple[int, int]:
        """First and last (exclusive) element of a rank's chunk; late chunks may be short or empty."""
        return min(rank * self._chunk, self._length), min((rank + 1) * self._chunk, self._length)

    def reduce(
        self,
        partials: Partials[torch.Tensor],
        owners: Sequence[int],
        header: Header,
        integers: bytes,
    ) -> Reduced:
        """Both phases.

        Args:
            partials: this worker's nodes; their vectors are (L,).
            owners: by microbatch, the rank that holds it in this step.
            header: of this worker; `is_finite` is filled in here.
            integers: this worker's integer buffers; those of the owner of the lowest microbatch count.
        Raises:
            GenerationLost: a member was lost; the partials are untouched.
            ProtocolError: a node is missing or doubled, or a message is of another step.
        """
        present = sorted(partials.present)
        if self._comm is None:
            root = partials.root()
            return Reduced((root,), (_with_finite(header, root[: self._gradients]),), integers)
        chunk = self._phase_a(partials, owners, present, header)
        low, _ = self._bounds(self._rank)
        checked = chunk[: max(0, self._gradients - low)]
        return self._phase_b(chunk, _with_finite(header, checked), integers, owners[present[0]])

    def _phase_a(
        self, partials: Partials[torch.Tensor], owners: Sequence[int], present: list[int], header: Header
    ) -> torch.Tensor:
        """All-to-all of chunks; the sum of this rank's chunk, in the order of the job."""
        assert self._comm is not None
        order, size = partials.order, self._element_bytes
        frontiers = [
            order.frontier([leaf for leaf in present if owners[leaf] == rank], present) for rank in range(self._world)
        ]
        mine = frontiers[self._rank]
        if sorted(mine) != sorted(partials.nodes):
            raise ProtocolError(f"this worker holds nodes {sorted(partials.nodes)}, but should hold {sorted(mine)}")
        bounds = [self._bounds(rank) for rank in range(self._world)]
        low, high = bounds[self._rank]
        sent, received = self._message_sizes(frontiers)
        source, out = self._scratch("source", sum(sent)), self._scratch("out", sum(received))
        own = self._scratch("own", len(mine) * (high - low) * size)
        offset = 0
        for rank, (begin, end) in enumerate(bounds):
            if rank == self._rank:
                continue
            self._put(source, offset, self._label(header, self._rank, mine, order, present))
            at = offset + ALIGNMENT
            for node in mine:
                self._typed(source, at, end - begin).copy_(partials.nodes[node][begin:end])
                at += (end - begin) * size
            offset += sent[rank]
        self._comm.all_to_all(out, source, received, sent)

        whole: Partials[torch.Tensor] = Partials(order, present, lambda left, right: left.add_(right))
        offset, own_at = 0, 0
        for rank in range(self._world):
            label, at = self._label(header, rank, frontiers[rank], order, present), offset + ALIGNMENT
            if rank != self._rank and self._get(out, offset, len(label)) != label:
                raise ProtocolError(f"rank {rank} sent parts of another step or other nodes than the owners say")
            for node in frontiers[rank]:
                if rank == self._rank:
                    # A copy: the node itself must survive a failure of this attempt.
                    part = self._typed(own, own_at, high - low).copy_(partials.nodes[node][low:high])
                    own_at += (high - low) * size
                else:
                    part = self._typed(out, at, high - low)
                    at += (high - low) * size
                _put_once(whole, node, part)
            offset += received[rank]
        try:
            return whole.root()
        except ValueError as error:
            raise ProtocolError(f"step {header.step}: {error}") from error

    def _phase_b(self, chunk: torch.Tensor, header: Header, integers: bytes, integer_owner: int) -> Reduced:
        """All-gather of reduced chunk, header and integer buffers."""
        assert self._comm is not None
        row = self._scratch("row", self._row_bytes)
        self._typed(row, 0, chunk.numel()).copy_(chunk)
        after_chunk = _aligned(self._chunk * self._element_bytes)
        self._put(row, after_chunk, header.pack())
        if integers:
            self._put(row, after_chunk + self._header_bytes, integers)
        gathered = self._buffer()
        self._comm.all_gather(gathered, row)
        chunks, headers, owned = [], [], b""
        for rank in range(self._world):
            begin, end = self._bounds(rank)
            offset = rank * self._row_bytes
            chunks.append(self._typed(gathered, offset, end - begin))
            headers.append(Header.unpack(self._get(gathered, offset + after_chunk, self._header_bytes)))
            if rank == integer_owner and self._integer_bytes:
                owned = self._get(gathered, offset + after_chunk + self._header_bytes, self._integer_bytes)
        return Reduced(tuple(chunks), tuple(headers), owned)

    # --- bytes --------------------------------------------------------------------------------------------------------

    @property
    def _element_bytes(self) -> int:
        return torch.empty(0, dtype=self._dtype).element_size()

    def _buffer(self) -> torch.Tensor:
        """One of two buffers in turn: the last result stays readable for a peer that missed it."""
        self._turn = 1 - self._turn
        if len(self._gathered) < 2:
            size = self._row_bytes * self._world
            self._gathered.append(torch.empty(size, dtype=torch.uint8, device=self._device))
        return self._gathered[self._turn]

    def _scratch(self, name: str, size: int) -> torch.Tensor:
        """The first `size` bytes of a buffer that is kept from step to step."""
        kept = self._kept.get(name)
        if kept is None or kept.numel() < size:
            kept = self._kept[name] = torch.empty(size, dtype=torch.uint8, device=self._device)
        return kept[:size]

    def _typed(self, buffer: torch.Tensor, offset: int, numel: int) -> torch.Tensor:
        return buffer[offset : offset + numel * self._element_bytes].view(self._dtype)

    def _put(self, buffer: torch.Tensor, offset: int, data: bytes) -> None:
        buffer[offset : offset + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def _get(self, buffer: torch.Tensor, offset: int, size: int) -> bytes:
        return bytes(buffer[offset : offset + size].cpu().numpy())

    def _label(self, header: Header, sender: int, nodes: list[Node], order: Order, present: list[int]) -> bytes:
        covered, existing = 0, set(present)
        for node in nodes:
            for leaf in order.leaves(node):
                covered ^= (leaf + 1) * 0x9E3779B97F4A7C15 if leaf in existing else 0
        folded = covered & (2**63 - 1)
        return _LABEL.pack(header.attempt, header.generation, header.step, sender, len(nodes), folded)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _put_once(whole: Partials[torch.Tensor], node: Node, part: torch.Tensor) -> None:
    try:
        whole.put(node, part)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def _with_finite(header: Header, chunk: torch.Tensor) -> Header:
    # A sum is not finite if any element is not; it may overflow where none is, so then all elements are looked at.
    is_finite = bool(torch.isfinite(chunk.sum())) or bool(torch.isfinite(chunk).all())
    return Header(**{**vars(header), "is_finite": is_finite})
