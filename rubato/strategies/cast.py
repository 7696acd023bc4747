"""Gradients with half the digits on the wire: 16 bits, as float16 or bfloat16.

Per step: the dense sum, but what travels is cast. Phase 1: rank r gets stretch r of all, cast; it adds up in full
digits, in the order of ranks. Phase 2: it casts the sum, and tells it to all.

float16 has 5 bits of exponent: so each stretch is told with a power of two, by which it is scaled into the range.
Sent by each: 4n(P-1)/P bytes of 8n(P-1)/P for n elements of float32, and 4 bytes a stretch.
Source: Gupta et al. 2015, arXiv:1502.02551 (16 bits suffice, with care); Kalamkar et al. 2019, arXiv:1905.12322 (bf16).
"""

from __future__ import annotations

import torch

from rubato.strategies.compressor import Piecewise, State
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Collectives, all_gather, exchange, others_of, split
from rubato.strategies.sizes import lengths, sent_directly

_LARGEST = 2.0**15
"""Half of what float16 can hold."""


class Cast(Piecewise):
    """16-bit gradients. What the cast rounds off is not kept.

    Args:    dtype: float16 or bfloat16.
    """

    def __init__(self, layout: Layout, dtype: torch.dtype) -> None:
        super().__init__(layout)
        self._dtype = dtype

    def compress(self, comm: Collectives, part_D: torch.Tensor, state: State, step: int) -> tuple[torch.Tensor, State]:
        """See `Piecewise`."""
        stretches = split(part_D, lengths(part_D.numel(), comm.world))
        mine, others = stretches[comm.rank], others_of(comm)
        sent = {rank: self._pack(stretches[rank]) for rank in others}
        came = exchange(comm, sent, dict.fromkeys(others, self._bytes(mine.numel())), torch.uint8)
        parts = [mine if rank == comm.rank else self._unpack(came[rank], mine) for rank in range(comm.world)]
        total = self._pack(sum(parts[1:], parts[0]))
        told = all_gather(comm, total, [self._bytes(one.numel()) for one in stretches])
        return torch.cat([self._unpack(one, part_D) for one in told]), {}

    def compressed_bytes(self, rank: int, world: int, element_bytes: int, step: int) -> int:
        """See `Piecewise`."""
        return sent_directly([self._bytes(length) for length in lengths(self.layout.numel, world)], rank)

    def _bytes(self, numel: int) -> int:
        return 4 + numel * self._dtype.itemsize

    def _pack(self, vector: torch.Tensor) -> torch.Tensor:
        """Exponent (int32), then the elements."""
        exponent = 0
        if self._dtype == torch.float16 and vector.numel():
            top = float(vector.abs().max())
            if 0.0 < top < float("inf"):
                exponent = int(torch.frexp(torch.tensor(top / _LARGEST, dtype=torch.float64)).exponent)
        scaled = torch.ldexp(vector, torch.tensor(-exponent)) if exponent else vector
        head = torch.tensor([exponent], dtype=torch.int32, device=vector.device)
        return torch.cat([head.view(torch.uint8), scaled.to(self._dtype).view(torch.uint8)])

    def _unpack(self, packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        exponent = packed[:4].clone().view(torch.int32)  # which may lie anywhere
        return torch.ldexp(packed[4:].clone().view(self._dtype).to(like.dtype), exponent.to(like.device))
