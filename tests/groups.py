"""Several ranks in one process, a thread each: over real gloo, or over queues where thousands of groups are needed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from rubato.engine.comm import Communicator, form, open_store
from rubato.engine.tree import balanced_owners
from rubato.errors import GenerationLost
from rubato.wire.worker import GenerationRecord, Member, Origin

R = TypeVar("R")
HOST = "127.0.0.1"
PATIENCE_S = 30.0


class FakeCommunicator(Communicator):
    """The collectives over queues: a message that has another size than the receiver expects fails the test."""

    def __init__(self, rank: int, world: int, lines: dict[tuple[int, int], queue.Queue[torch.Tensor | None]]) -> None:
        super().__init__(None, rank, world, lambda: False)
        self._lines = lines

    def all_to_all(
        self, out: torch.Tensor, source: torch.Tensor, out_sizes: Sequence[int], source_sizes: Sequence[int]
    ) -> None:
        assert sum(out_sizes) == out.numel()
        for rank, part in enumerate(source.split(list(source_sizes))):
            self._lines[self.rank, rank].put(part.clone())
        for rank, part in enumerate(out.split(list(out_sizes))):
            received = self._receive(rank)
            assert received.numel() == part.numel(), f"rank {self.rank} expects other bytes of {rank}"
            part.copy_(received)

    def all_gather(self, out: torch.Tensor, source: torch.Tensor) -> None:
        for rank in range(self.world):
            self._lines[self.rank, rank].put(source.clone())
        for rank, part in enumerate(out.split(source.numel())):
            part.copy_(self._receive(rank))

    def bury(self) -> None:
        for rank in range(self.world):
            self._lines[self.rank, rank].put(None)

    def _receive(self, rank: int) -> torch.Tensor:
        received = self._lines[rank, self.rank].get(timeout=PATIENCE_S)
        if received is None:
            raise GenerationLost(f"rank {rank} is gone")
        return received


def fake_group(world: int) -> list[Communicator]:
    lines: dict[tuple[int, int], queue.Queue[torch.Tensor | None]] = {
        (one, other): queue.Queue() for one in range(world) for other in range(world)
    }
    return [FakeCommunicator(rank, world, lines) for rank in range(world)]


def record_of(world: int, number: int = 1, *, store: str = "", num_microbatches: int = 12) -> GenerationRecord:
    members = tuple(Member(f"w{rank}", f"{rank}.1") for rank in range(world))
    owners = balanced_owners(num_microbatches, world)
    return GenerationRecord(1, number, members, owners, store, Origin("fresh"), "start", 0)


@contextmanager
def gloo_group(world: int) -> Iterator[list[Communicator]]:
    """A real group of this process's threads, buried at the end."""
    store, address = open_store(HOST)
    record = record_of(world, store=address)
    group = on_ranks(
        world,
        lambda rank: form(
            record, rank, job_id="test", host=HOST, device=torch.device("cpu"), is_revoked=threading.Event().is_set
        ),
    )
    try:
        yield group
    finally:
        bury(group)
        del store


def bury(group: Sequence[Communicator]) -> None:
    """Bury and wait for the graves: a thread that ends after the test would be another's."""
    before = set(threading.enumerate())
    for comm in group:
        comm.bury()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)


def on_ranks(world: int, play: Callable[[int], R]) -> list[R]:
    """`play(rank)` on a thread each; the results by rank. The first exception is raised when all have ended."""
    results: list[Any] = outcomes(world, play)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def outcomes(world: int, play: Callable[[int], R]) -> list[R | BaseException]:
    """Likewise, with the exceptions among the results."""

    def one(rank: int) -> R | BaseException:
        try:
            return play(rank)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        return list(pool.map(one, range(world)))
