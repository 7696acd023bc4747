"""Several ranks in one process, a thread each: over real gloo, or over queues where thousands of groups are needed."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from rubato.engine.comm import Communicator, Message, form, open_store
from rubato.engine.pending import Pending
from rubato.engine.tree import balanced_owners
from rubato.errors import GenerationLost
from rubato.wire.worker import GenerationRecord, Member, Origin

R = TypeVar("R")
HOST = "127.0.0.1"
PATIENCE_S = 30.0


class FakePending(Pending):
    """A message per rank that is taken in when it is waited for."""

    def __init__(self, receive: Callable[[], None]) -> None:
        super().__init__(None, lambda: False)
        self._receive = receive

    def wait(self) -> None:
        self._receive()


class FakeCommunicator(Communicator):
    """The collectives over queues: a message that has another size than the receiver expects fails the test."""

    def __init__(self, rank: int, world: int, lines: dict[tuple[int, int], Line]) -> None:
        super().__init__(None, rank, world, lambda: False)
        self._lines = lines
        self.sent_bytes = 0
        """To others, by messages."""

    def start_messages(self, received: Sequence[Message], sent: Sequence[Message]) -> Pending:
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for _, tensor in sent)
        return self._start(received, sent)

    def _start(self, received: Sequence[Message], sent: Sequence[Message]) -> Pending:
        received, sent = ([one for one in ways if one[1].numel()] for ways in (received, sent))
        for rank, tensor in sent:
            self._lines[self.rank, rank].send(self._next(self._sent, rank), tensor.clone())
        expected = [(rank, self._next(self._received, rank), out) for rank, out in received]

        def receive() -> None:
            for rank, number, out in expected:
                came = self._lines[rank, self.rank].receive(number)
                assert came.numel() == out.numel(), f"rank {self.rank} expects other bytes of {rank}"
                out.copy_(came)

        return FakePending(receive)

    def confirm(self) -> None:
        """What is sent was copied."""

    def start_all_gather(self, out: torch.Tensor, source: torch.Tensor) -> Pending:
        others, rows = [rank for rank in range(self.world) if rank != self.rank], out.view(self.world, -1)
        rows[self.rank].copy_(source)
        return self._start([(rank, rows[rank]) for rank in others], [(rank, source) for rank in others])

    def all_reduce(self, total: torch.Tensor) -> None:
        """In the order of ranks."""
        rows = torch.empty(self.world * total.numel(), dtype=total.dtype, device=total.device)
        self.start_all_gather(rows, total.clone()).wait()
        first, *others = rows.view(self.world, -1)
        total.copy_(sum(others, first))

    def bury(self) -> None:
        for rank in range(self.world):
            self._lines[self.rank, rank].send(-1, None)

    @staticmethod
    def _next(counts: list[int], rank: int) -> int:
        counts[rank] += 1
        return counts[rank]


class Line:
    """From one rank to another: messages by the sender's number of each."""

    def __init__(self, sender: int) -> None:
        self._sender = sender
        self._queue: queue.Queue[tuple[int, torch.Tensor | None]] = queue.Queue()
        self._early: dict[int, torch.Tensor] = {}

    def send(self, call: int, message: torch.Tensor | None) -> None:
        self._queue.put((call, message))

    def receive(self, call: int) -> torch.Tensor:
        while call not in self._early:
            sent, message = self._queue.get(timeout=PATIENCE_S)
            if message is None:
                raise GenerationLost(f"rank {self._sender} is gone")
            self._early[sent] = message
        return self._early.pop(call)


def fake_group(world: int) -> list[FakeCommunicator]:
    lines = {(one, other): Line(one) for one in range(world) for other in range(world)}
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
    results: dict[int, R | BaseException] = {}

    def one(rank: int) -> None:
        try:
            results[rank] = play(rank)
        except BaseException as error:
            results[rank] = error
            traceback.print_exc()  # the others may wait for this rank for ever, and nobody raise it

    # Not a pool: at the timeout of a test it would wait for the rank that waits for ever.
    ranks = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in range(world)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    return [results[rank] for rank in range(world)]
