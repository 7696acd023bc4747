"""A list of tensors as one run of bytes, cut into shares: member i of M gives, or vouches for, share i."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

ALIGNMENT = 64
"""Bytes; shares begin at multiples of it."""


def total_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Length of the run."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def share_bounds(total: int, count: int) -> list[tuple[int, int]]:
    """Begin and end of `count` shares that make up `total` bytes; sizes differ by less than two alignments."""
    cuts = [total * index // count // ALIGNMENT * ALIGNMENT for index in range(count)] + [total]
    return list(itertools.pairwise(cuts))


def overlaps(tensors: Sequence[torch.Tensor], begin: int, end: int) -> list[tuple[torch.Tensor, int, int, int]]:
    """(tensor, first, last, offset): bytes first..last of the tensor lie at `offset` of the run begin..end."""
    found, at = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        first, last = max(begin, at), min(end, at + size)
        if first < last:
            found.append((tensor, first - at, last - at, first - begin))
        at += size
    return found
