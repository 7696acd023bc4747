"""Messages between the workers of a generation, as the strategies put them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class Collectives(Protocol):
    """The members of one generation."""

    rank: int
    world: int
    device: torch.device
    """Where the vectors of the training are."""

    def pass_messages(
        self, received: Sequence[tuple[int, torch.Tensor]], sent: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """Messages from some ranks and to some, on their way at once, and both ways between any two.

        What is sent must stay as it is until all know that all have received it.

        Shapes:  (n,), contiguous, as long as the other side says.
        """
        ...

    def confirm(self) -> None:
        """Wait until all others have received what they were sent; all call it."""
        ...

    def all_reduce(self, total: torch.Tensor) -> None:
        """The sum of the vectors of all, in place, as the backend below has it; all call it.

        Shapes:  (n,), contiguous, equal on all.
        Raises:  GenerationLost: then nobody goes on with the vector, which may still be written to.
        """
        ...


class Alone:
    """The collectives of a worker that trains alone."""

    rank = 0
    world = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pass_messages(
        self, received: Sequence[tuple[int, torch.Tensor]], sent: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """There is nobody else."""
        assert not [*received, *sent]

    def confirm(self) -> None:
        """Likewise."""

    def all_reduce(self, total: torch.Tensor) -> None:
        """It is the sum."""


class Group:
    """Some of the ranks, for what they do among themselves."""

    def __init__(self, comm: Collectives, ranks: Sequence[int]) -> None:
        self._comm = comm
        self._ranks = list(ranks)
        self.rank = self._ranks.index(comm.rank)
        self.world = len(self._ranks)
        self.device = comm.device

    def pass_messages(
        self, received: Sequence[tuple[int, torch.Tensor]], sent: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """See `Collectives`."""
        self._comm.pass_messages(*[[(self._ranks[rank], one) for rank, one in ways] for ways in (received, sent)])

    def confirm(self) -> None:
        """Of all, not of the group alone."""
        self._comm.confirm()

    def all_reduce(self, total: torch.Tensor) -> None:
        """The backend adds up the vectors of all members alone."""
        raise ValueError("some of the ranks have no backend of their own: add up by messages")


def exchange(
    comm: Collectives, sent: Mapping[int, torch.Tensor], expected: Mapping[int, int], dtype: torch.dtype
) -> dict[int, torch.Tensor]:
    """Messages between some pairs of ranks, on their way at once.

    Args:     sent: by receiver, a vector, which is copied.  expected: by sender, elements of its message.
    Returns:  by sender, what came.
    Shapes:   all (n,), of `dtype`.
    """
    came = {rank: torch.empty(expected[rank], dtype=dtype, device=comm.device) for rank in sorted(expected)}
    distinct = {id(one): one for one in sent.values()}  # the same one often goes to several
    copies = {key: one.clone(memory_format=torch.contiguous_format) for key, one in distinct.items()}
    comm.pass_messages(list(came.items()), [(rank, copies[id(sent[rank])]) for rank in sorted(sent)])
    return came


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


def join(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """One behind the other; of none, an empty vector like this one."""
    return torch.cat(list(parts)) if parts else like.new_empty(0)


def split(vector: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
    """Stretches of these many elements, views."""
    return torch.split(vector, list(sizes))
