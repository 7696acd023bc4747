"""Messages between the workers of a generation, as the strategies put them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch


class Collectives(Protocol):
    """The collectives of one generation; all members make the same calls in the same order."""

    rank: int
    world: int

    def all_to_all(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """Send `source_sizes[r]` elements to each rank r, in order; receive `out_sizes[r]` from each."""
        ...


def exchange(
    comm: Collectives, sent: Mapping[int, torch.Tensor], expected: Mapping[int, int], dtype: torch.dtype
) -> dict[int, torch.Tensor]:
    """Messages between some pairs of ranks, on their way at once; who has none to send or get calls it, too.

    Args:     sent: by receiver, a vector.  expected: by sender, elements of its message.
    Returns:  by sender, what came.
    Shapes:   all (n,), of `dtype`.
    """
    size, ranks = dtype.itemsize, range(comm.world)
    device = next((message.device for message in sent.values()), torch.device("cpu"))
    messages = [sent[rank].contiguous().view(torch.uint8) for rank in sorted(sent)]
    source = torch.cat(messages) if messages else torch.empty(0, dtype=torch.uint8, device=device)
    sizes = [expected.get(rank, 0) * size for rank in ranks]
    out = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    told = [sent[rank].numel() * size if rank in sent else 0 for rank in ranks]
    comm.all_to_all(out, source, sizes, told)
    parts = split(out, sizes)
    return {rank: parts[rank].clone().view(dtype) for rank in sorted(expected)}


def all_gather(comm: Collectives, vector: torch.Tensor, numels: Sequence[int] | None = None) -> list[torch.Tensor]:
    """By rank, the vector of each, equal on all ranks.

    Args:    numels: by rank, elements of its vector; none: all are as long as this one.
    """
    lengths = [vector.numel()] * comm.world if numels is None else list(numels)
    others = [rank for rank in range(comm.world) if rank != comm.rank]
    came = exchange(comm, dict.fromkeys(others, vector), {rank: lengths[rank] for rank in others}, vector.dtype)
    return [vector if rank == comm.rank else came[rank] for rank in range(comm.world)]


def cut(numel: int, parts: int) -> list[tuple[int, int]]:
    """Where each of the parts of a vector begins and ends, as even as can be."""
    return list(pairwise(numel * part // parts for part in range(parts + 1)))


def lengths(numel: int, parts: int) -> list[int]:
    """How many elements each of these parts has."""
    return [high - low for low, high in cut(numel, parts)]


def split(vector: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """Stretches of these many elements, views."""
    return torch.split(vector, list(sizes))
