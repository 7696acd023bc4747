"""What goes over a cut between layers, in fewer bytes: as bfloat16, or as 8-bit integers with a scale a sample.

`bf16`   all of it as bfloat16: 8 bits of significand, at most 1/256 of a number off.
`int8`   what goes in, as round(127 x / m) where m is the largest magnitude of the sample, and m: at most m/254 off. All
         else as bfloat16: what comes out is little, and gradients span too many magnitudes for one scale.

The module behind the cut computes with what arrives, and its gradient is passed on as if it had been what was sent
(straight-through; Bengio et al. 2013, arXiv:1308.3432). A sample with a number that is not finite arrives with such.

Bytes: `sizes.cut_bytes`.
Source: Dettmers 2015, arXiv:1511.04561 (8-bit activations and gradients over links); the scale a sample is ours.
"""

from __future__ import annotations

from math import prod
from typing import get_args

import torch

from rubato.strategies.sizes import SCALE_BYTES
from rubato.wire.local_updates import CutFormat

FORMATS: tuple[CutFormat, ...] = get_args(CutFormat)
_MOST = 127.0


def pack(tensor: torch.Tensor, used: CutFormat) -> torch.Tensor:
    """(b, ...) -> one dimension, as it travels, on the tensor's device."""
    flat = tensor.detach().contiguous().view(-1)
    if used == "none":
        return flat
    if used == "bf16":
        return flat.bfloat16()
    rows = flat.view(_rows(tensor.shape), -1).float()
    scales = rows.abs().amax(1, keepdim=True)
    numbers = (rows / scales.clamp_min(torch.finfo(torch.float32).tiny) * _MOST).round_().to(torch.int8)
    return torch.cat([scales.view(-1).view(torch.uint8), numbers.view(-1).view(torch.uint8)])


def empty_packed(shape: torch.Size, dtype: torch.dtype, used: CutFormat) -> torch.Tensor:
    """What `pack` gives for a tensor of this shape and type, to be received into."""
    if used == "none":
        return torch.empty(prod(shape), dtype=dtype)
    if used == "bf16":
        return torch.empty(prod(shape), dtype=torch.bfloat16)
    return torch.empty(SCALE_BYTES * _rows(shape) + prod(shape), dtype=torch.uint8)


def unpack(packed: torch.Tensor, shape: torch.Size, dtype: torch.dtype, used: CutFormat) -> torch.Tensor:
    """The tensor again, as far as it has come through."""
    if used != "int8":
        return packed.to(dtype).view(shape)
    count = SCALE_BYTES * _rows(shape)
    # A copy of each part begins where numbers of its type may.
    scales, numbers = packed[:count].clone().view(torch.float32), packed[count:].clone().view(torch.int8)
    rows = numbers.view(_rows(shape), -1).float() * (scales.view(-1, 1) / _MOST)
    return rows.to(dtype).view(shape)


def _rows(shape: torch.Size) -> int:
    return shape[0] if shape else 1
