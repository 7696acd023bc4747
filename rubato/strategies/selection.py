"""Which elements of a vector are the largest, so that all workers and all runs choose alike."""

from __future__ import annotations

import torch

INDEX = torch.int32
"""As places travel."""


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """The places of the k largest, ascending; of equal ones those with the lower place count as larger.

    Shapes:  values (n,) -> (k,) int64.
    """
    if k >= values.numel():
        return torch.arange(values.numel(), device=values.device)
    # topk does not say which of equals it takes: so all above the k-th value, and the first of those that equal it.
    limit = torch.topk(values, k, sorted=False).values.min()
    above = torch.nonzero(values > limit).flatten()
    equal = torch.nonzero(values == limit).flatten()[: k - above.numel()]
    return torch.cat([above, equal]).sort().values


def pack(places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Elements and where they belong, as one message of bytes. Shapes: (k,), (k,)."""
    return torch.cat([values.view(torch.uint8), places.to(INDEX).view(torch.uint8)])


def unpack(message: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (k,) int64 and values (k,) of a message, which `pack` made of values of this type."""
    at = message.numel() // (dtype.itemsize + INDEX.itemsize) * dtype.itemsize
    return message[at:].clone().view(INDEX).long(), message[:at].clone().view(dtype)
