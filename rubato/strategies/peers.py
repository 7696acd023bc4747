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
    device: torch.device
    """Where the vectors of the training are."""

    def pass_messages(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """Send `source_sizes[r]` elements to each rank r, in order; receive `out_sizes[r]` from each.

        On their way at once, and both ways between any two; most may have nothing for each other.
        """
        ...


class Alone:
    """The collectives of a worker that trains alone."""

    rank = 0
    world = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pass_messages(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """To itself."""
        out.copy_(source)


class Group:
    """Some of the ranks, for what they do among themselves. All ranks must make the same calls, each in its group."""

    def __init__(self, comm: Collectives, ranks: Sequence[int]) -> None:
        self._comm = comm
        self._ranks = list(ranks)
        self.rank = self._ranks.index(comm.rank)
        self.world = len(self._ranks)
        self.device = comm.device

    def pass_messages(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        """See `Collectives`."""
        of_all = [[0] * self._comm.world, [0] * self._comm.world]
        for whole, sizes in zip(of_all, (out_sizes, source_sizes), strict=True):
            for rank, size in zip(self._ranks, sizes, strict=True):
                whole[rank] = size
        self._comm.pass_messages(out, source, *of_all)


def exchange(
    comm: Collectives, sent: Mapping[int, torch.Tensor], expected: Mapping[int, int], dtype: torch.dtype
) -> dict[int, torch.Tensor]:
    """Messages between some pairs of ranks, on their way at once; who has none to send or get calls it, too.

    Args:     sent: by receiver, a vector.  expected: by sender, elements of its message.
    Returns:  by sender, what came.
    Shapes:   all (n,), of `dtype`.
    """
    size, ranks, device = dtype.itemsize, range(comm.world), comm.device
    messages = [sent[rank].contiguous().view(torch.uint8) for rank in sorted(sent)]
    source = torch.cat(messages) if messages else torch.empty(0, dtype=torch.uint8, device=device)
    sizes = [expected.get(rank, 0) * size for rank in ranks]
    out = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    told = [sent[rank].numel() * size if rank in sent else 0 for rank in ranks]
    comm.pass_messages(out, source, sizes, told)
    parts = split(out, sizes)
    return {rank: parts[rank].view(dtype) for rank in sorted(expected)}


def all_gather(comm: Collectives, vector: torch.Tensor, numels: Sequence[int] | None = None) -> list[torch.Tensor]:
    """By rank, the vector of each, equal on all ranks.

    Args:    numels: by rank, elements of its vector; none: all are as long as this one.
    """
    expected = [vector.numel()] * comm.world if numels is None else numels
    others = others_of(comm)
    came = exchange(comm, dict.fromkeys(others, vector), {rank: expected[rank] for rank in others}, vector.dtype)
    return [vector if rank == comm.rank else came[rank] for rank in range(comm.world)]


def scatter(comm: Collectives, vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """By rank, what each has for this one.

    Args:    vectors: by rank, what this one has for it; all have as much for a rank as it has for itself.
    """
    others, mine = others_of(comm), vectors[comm.rank]
    expected = dict.fromkeys(others, mine.numel())
    came = exchange(comm, {rank: vectors[rank] for rank in others}, expected, mine.dtype)
    return [mine if rank == comm.rank else came[rank] for rank in range(comm.world)]


def tell_of_first(comm: Collectives, vector: torch.Tensor, numel: int) -> torch.Tensor:
    """What rank 0 has, on all.

    Args:    vector: of rank 0; of the others its type counts.
    Shapes:  (numel,).
    """
    sent = {} if comm.rank else dict.fromkeys(others_of(comm), vector)
    came = exchange(comm, sent, {0: numel} if comm.rank else {}, vector.dtype)
    return came[0] if comm.rank else vector


def others_of(comm: Collectives) -> list[int]:
    """All ranks but this one."""
    return [rank for rank in range(comm.world) if rank != comm.rank]


def sent_directly(shares: Sequence[int], rank: int) -> int:
    """What a rank sends that gives each other one its share, and then its own share to all of them. Pure."""
    return sum(shares) - shares[rank] + (len(shares) - 1) * shares[rank]


def cut(numel: int, parts: int) -> list[tuple[int, int]]:
    """Where each of the parts of a vector begins and ends, as even as can be."""
    return list(pairwise(numel * part // parts for part in range(parts + 1)))


def lengths(numel: int, parts: int) -> list[int]:
    """How many elements each of these parts has."""
    return [high - low for low, high in cut(numel, parts)]


def join(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """One behind the other; of none, an empty vector like this one."""
    return torch.cat(list(parts)) if parts else like.new_empty(0)


def split(vector: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """Stretches of these many elements, views."""
    return torch.split(vector, list(sizes))
