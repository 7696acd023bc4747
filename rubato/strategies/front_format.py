"""What travels of the layers before a cut, in 16 bits: sums of their gradients, and how far their weights came.

`bf16`   as bfloat16: 8 bits of significand, at most 1/256 of a number off, in the range of float32.

A sum is made in full digits and told rounded, so all have the same bits, who has made it too. The weights of a round's
end travel as how far they came since its beginning, which both sides have: at most 1/256 of that is lost, however large
the weights are. All go on from what was told, so nobody drifts from anybody.

Buffers and what optimizers keep travel as they are: a mean of squares that decays by less than 1/256 a round would
never decay where its value is rounded, and could fall below 0 where its change is.
Source: Kalamkar et al. 2019, arXiv:1905.12322 (bfloat16).
"""

from __future__ import annotations

import torch

from rubato.strategies.cut_format import pack, unpack
from rubato.strategies.peers import Collectives, all_gather, exchange, others_of, split
from rubato.strategies.sizes import cut_format, lengths
from rubato.wire.local_updates import FrontFormat


def sum_rounded(comm: Collectives, vector: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' vectors, rounded to bfloat16; of the last element as it is.

    Phase 1: rank r gets stretch r of all as bfloat16, and their last elements. It adds up in the vector's type, in the
    order of ranks. Phase 2: it rounds the sum, and tells it to all.

    Sent by each: 4n(P-1)/P bytes for n + 1 elements, and P - 1 elements in full.
    Shapes:  (n + 1,), float32 or float64, equal on all ranks.
    """
    head, whole = vector.element_size(), vector[-1:].view(torch.uint8)
    stretches = split(vector[:-1], lengths(vector.numel() - 1, comm.world))
    others, mine = others_of(comm), stretches[comm.rank]
    sent = {rank: torch.cat([whole, stretches[rank].bfloat16().view(torch.uint8)]) for rank in others}
    came = exchange(comm, sent, dict.fromkeys(others, head + 2 * mine.numel()), torch.uint8)
    parts, ends = [mine] * comm.world, [vector[-1:]] * comm.world
    for rank, packed in came.items():
        ends[rank], parts[rank] = packed[:head].view(vector.dtype), packed[head:].view(torch.bfloat16).to(vector.dtype)
    told = all_gather(comm, sum(parts[1:], parts[0]).bfloat16(), [one.numel() for one in stretches])
    return torch.cat([*(one.to(vector.dtype) for one in told), sum(ends[1:], ends[0])])


def pack_change(now: torch.Tensor, beginning: torch.Tensor, chosen: FrontFormat) -> torch.Tensor:
    """A parameter as it travels at a round's end, in one dimension.

    Args:    chosen: what the spec says; what has 16 bits travels as it is.
    """
    used = _used(chosen, now)
    return pack(now if used == "none" else now - beginning, used)


def change_bytes(like: torch.Tensor, chosen: FrontFormat) -> int:
    """Bytes of that."""
    return 2 * like.numel() if _used(chosen, like) == "bf16" else like.numel() * like.element_size()


def unpack_change(packed: torch.Tensor, beginning: torch.Tensor, chosen: FrontFormat) -> torch.Tensor:
    """The parameter at the round's end.

    Args:    packed: bytes, uint8, which begin where numbers may.
    """
    used = _used(chosen, beginning)
    if used == "none":
        return packed.view(beginning.dtype).view(beginning.shape)
    return beginning + unpack(packed.view(torch.bfloat16), beginning.shape, beginning.dtype, used)


def _used(chosen: FrontFormat, like: torch.Tensor) -> FrontFormat:
    return "bf16" if cut_format(chosen, like.element_size(), goes_in=False) == "bf16" else "none"
