"""Several ranks in one process, a thread each: over real gloo, or over queues where thousands of groups are needed."""

from __future__ import annotations

import queue
import random
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
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
Key = tuple[int, int, int]
"""Of a message: its sender, its receiver, and its number among those from one to the other."""


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


class Post:
    """The messages of some ranks, a thread each: one arrives at a time, and only when no rank can go on without.

    Args:
        delay: of a message from one rank to another, by its number: of the first ones that are on their way between any
            two the one with the least is next.
    """

    def __init__(self, world: int, delay: Callable[[int, int, int], float]) -> None:
        self._delay = delay
        self._busy = set(range(world))
        self._has_come = threading.Condition()
        self._sent: dict[Key, torch.Tensor] = {}
        """On their way. They are read when they arrive, as gloo does of a sender that waits for its receiver."""
        self._places: dict[Key, torch.Tensor] = {}
        """Of what is expected."""
        self._early: dict[Key, torch.Tensor] = {}
        """What has come before it was expected."""

    def start(self, places: dict[Key, torch.Tensor], sent: dict[Key, torch.Tensor]) -> None:
        """Messages are sent, and others expected."""
        with self._has_come:
            self._sent |= sent
            self._places |= places
            for key in places.keys() & self._early.keys():
                self._put(key, self._early.pop(key))

    def wait(self, rank: int, keys: Iterable[Key]) -> None:
        """Until all of these have come."""
        with self._has_come:
            while not self._places.keys().isdisjoint(keys):
                self._rest(rank)
                assert self._has_come.wait_for(lambda: rank in self._busy, PATIENCE_S), f"rank {rank} waits for ever"

    def leave(self, rank: int) -> None:
        """It waits for nothing more."""
        with self._has_come:
            self._rest(rank)

    def _rest(self, rank: int) -> None:
        self._busy.discard(rank)
        if self._busy or not self._sent:
            return
        first = {key[:2]: key for key in sorted(self._sent, reverse=True)}
        key = min(first.values(), key=lambda one: self._delay(*one))
        self._put(key, self._sent.pop(key))
        self._busy.add(key[1])
        self._has_come.notify_all()

    def _put(self, key: Key, came: torch.Tensor) -> None:
        place = self._places.pop(key, None)
        if place is None:
            self._early[key] = came.clone()
        else:
            assert came.numel() == place.numel(), f"rank {key[1]} expects other bytes of {key[0]}"
            place.copy_(came)


class PostedCommunicator(FakeCommunicator):
    """Over a `Post`: what is sent is not copied, and a place is filled at any time until it is waited for."""

    def __init__(self, rank: int, world: int, post: Post) -> None:
        super().__init__(rank, world, {})
        self._post = post

    def _start(self, received: Sequence[Message], sent: Sequence[Message]) -> Pending:
        received, sent = ([one for one in ways if one[1].numel()] for ways in (received, sent))
        told = {(self.rank, rank, self._next(self._sent, rank)): tensor for rank, tensor in sent}
        places = {(rank, self.rank, self._next(self._received, rank)): place for rank, place in received}
        self._post.start(places, told)
        return FakePending(lambda: self._post.wait(self.rank, places))

    def start_all_gather(self, out: torch.Tensor, source: torch.Tensor) -> Pending:
        """As gloo's: where it is over what was sent may change."""
        return super().start_all_gather(out, source.clone())

    def confirm(self) -> None:
        """All have received what was sent before, as it comes in the order in which it was sent."""
        self.tell_all(torch.empty(self.world, dtype=torch.uint8), self._mark)


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


def on_posted_ranks(world: int, seed: int, play: Callable[[Communicator], R]) -> list[R]:
    """`play` on a thread for each of so many ranks, between which messages arrive in an order of the seed's."""
    post = Post(world, lambda *key: random.Random(hash((seed, *key))).random())

    def one(rank: int) -> R:
        try:
            return play(PostedCommunicator(rank, world, post))
        finally:
            post.leave(rank)

    return on_ranks(world, one)


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
