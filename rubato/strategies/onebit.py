"""One bit an element, and two values a column.

A *column* is what a tensor has for one output (a row of the matrix here). It is told as: for each element, whether it
is negative; and the means of those that are and of those that are not, which stand for them. Each worker is answerable
for a stripe of the columns.

Per step and worker:
1. t = g + e; q is told of t, e <- t - q.
2. Each stripe of q goes to the worker that answers for it, who adds up what all tell in the order of ranks, and s, what
   is kept of the stripe; tells that to all in the same form, and keeps the difference in s.

Sent by each: (P-1)/P of 2 (D/8 + 2 e columns) bytes, e bytes of an element, for D elements.
Source: Seide et al. 2014, doi:10.21437/Interspeech.2014-274.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rubato.strategies.compressor import Piecewise, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, all_gather, scatter
from rubato.strategies.sizes import cut, sent_directly


@dataclass(frozen=True)
class _Run:
    """Columns of one length, one behind the other, in a stretch of the compressed elements."""

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.count * self.length

    def bytes(self, element_bytes: int) -> int:
        """Of what is told of it."""
        return -(-self.count * self.length // 8) + 2 * element_bytes * self.count


class OneBit(Piecewise):
    """1-bit SGD with two-stage error feedback."""

    own = ("residual", "stripe")

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._columns = [(piece.rows, piece.numel // piece.rows) for piece in layout.pieces]

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        stripes = [self._stripe(rank, comm.world) for rank in range(comm.world)]
        size = part_D.element_size()
        lengths = [sum(run.bytes(size) for run in stripe) for stripe in stripes]
        wanted = part_D.add_(state["residual"])
        packed = [_pack(wanted, stripe) for stripe in stripes]
        told = torch.zeros_like(wanted)
        for stripe, one in zip(stripes, packed, strict=True):
            _add(told, stripe, one)
        mine = stripes[comm.rank]
        total = state["stripe"].clone()
        for one in scatter(comm, packed):
            _add(total, mine, one)
        result = torch.zeros_like(wanted)
        for stripe, one in zip(stripes, all_gather(comm, _pack(total, mine), lengths), strict=True):
            _add(result, stripe, one)
        for run in mine:
            total[run.start : run.stop] -= result[run.start : run.stop]
        return result, {"residual": wanted - told, "stripe": total}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        stripes = [sum(run.bytes(element_bytes) for run in self._stripe(one, world)) for one in range(world)]
        return sent_directly(stripes, rank)

    def adopt(self, settled: State, rank: int, world: int) -> State:
        """See `Compressor`. What is kept of a stripe goes to the worker that answers for it."""
        whole = settled["stripe"]
        stripe = torch.zeros_like(whole)
        for run in self._stripe(rank, world):
            stripe[run.start : run.stop] = whole[run.start : run.stop]
        return {**super().adopt(settled, rank, world), "stripe": stripe}

    def _stripe(self, rank: int, world: int) -> list[_Run]:
        """The columns that a rank answers for: an even share of each tensor's."""
        runs, start = [], 0
        for count, length in self._columns:
            low, high = cut(count, world)[rank]
            if low < high:
                runs.append(_Run(start + low * length, high - low, length))
            start += count * length
        return runs


def _pack(vector_D: torch.Tensor, stripe: list[_Run]) -> torch.Tensor:
    """What is told of a stripe, as bytes: run by run the two means of each column, then its bits."""
    told = [torch.empty(0, dtype=torch.uint8, device=vector_D.device)]
    for run in stripe:
        columns = vector_D[run.start : run.stop].view(run.count, run.length)
        is_negative = columns < 0
        negatives = is_negative.sum(1)
        below = torch.where(is_negative, columns, 0).sum(1) / negatives.clamp(min=1)
        above = torch.where(is_negative, 0, columns).sum(1) / (run.length - negatives).clamp(min=1)
        told += [torch.cat([below, above]).view(torch.uint8), _pack_bits(is_negative.flatten())]
    return torch.cat(told)


def _add(vector_D: torch.Tensor, stripe: list[_Run], told: torch.Tensor) -> None:
    """Add what is told of a stripe."""
    at = 0
    for run in stripe:
        size = run.bytes(vector_D.element_size())
        means_bytes = 2 * vector_D.element_size() * run.count
        means = told[at : at + means_bytes].clone().view(vector_D.dtype)
        bits = _unpack_bits(told[at + means_bytes : at + size], run.count * run.length).view(run.count, run.length)
        below, above = means[: run.count, None], means[run.count :, None]
        vector_D[run.start : run.stop].view(run.count, run.length).add_(torch.where(bits, below, above))
        at += size


def _pack_bits(bits: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).view(-1, 8)
    return (padded.to(torch.uint8) << _weights(bits.device)).sum(1, dtype=torch.uint8)


def _unpack_bits(told: torch.Tensor, count: int) -> torch.Tensor:
    return (told[:, None] >> _weights(told.device) & 1).flatten()[:count].bool()


def _weights(device: torch.device) -> torch.Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
