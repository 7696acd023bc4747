"""The updates of a step by a server, each of all its samples, without waiting for the slowest: backup workers.

Of the rounds that `served` tells of, with C workers that compute and b backups:
ticket     one of N = max(1, C - b) pieces of an update's samples. `strategies.backup_workers` says who computes it, and
           who computes it a second time
push       the first of a ticket counts; when all N of an update are there, the server steps its optimizers with their
           mean, added up in the order of tickets
answer     a ticket, and the weights and buffers where they are others than it has
So an update is synchronous descent over its samples, and which worker is slow changes no bit of it. A slow one is
waited for once in a round, when all exchange.

Messages: for each of H updates the weights to each that computes, N to C gradients back; then one exchange.
Memory: the server two vectors for each of the others, and N for an update; and what `replicas` tells of one replica.
Source: Chen et al. 2016, arXiv:1604.00981.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from rubato.engine.comm import Communicator
from rubato.engine.first import first_of
from rubato.engine.replicas import Replicas
from rubato.engine.served import OVER, Awaited, Push, Served
from rubato.engine.state import TrainingState
from rubato.strategies.backup_workers import Dealer
from rubato.strategies.sizes import cut
from rubato.wire.spec import JobSpec


class Backed(Served):
    """What one worker does of the rounds."""

    def __init__(self, spec: JobSpec, state: TrainingState, replicas: Replicas) -> None:
        super().__init__(state, replicas)
        self._backups = spec.local_updates.backups
        self._groups: list[list[int]] = []
        """The tickets of each update of the round."""

    def pieces(self, updates: Sequence[range], helpers: int, size: Callable[[range], int]) -> list[range]:
        """See `Served`."""
        found: list[range] = []
        self._groups = []
        for update in updates:
            parts = [update[low:high] for low, high in cut(len(update), max(1, helpers - self._backups))]
            parts = [part for part in parts if part and size(part)]
            if parts:
                self._groups.append(list(range(len(found), len(found) + len(parts))))
                found += parts
        return found

    def tickets(self, comm: Communicator, server: int, place: int, count: int) -> Iterator[int]:
        """See `Served`."""
        room = self.room()
        while (ticket := self.dealt(comm, server, room)) != OVER:
            yield ticket

    def alone(self, step: int, count: int) -> Iterator[int]:
        """See `Served`."""
        for group in self._groups:
            pushes = []
            for ticket in group:
                self.restore_buffers()
                yield ticket
                pushes.append(self._taken)
            self._update(pushes)

    def serve(self, comm: Communicator, helpers: Sequence[int], count: int) -> None:
        """See `Served`."""
        dealer = Dealer(helpers, self._backups)
        known = dict.fromkeys(helpers, 0)
        """By rank, updates that are in the state it has."""
        awaited: dict[int, Awaited] = {}
        began: dict[int, float] = {}
        for version, group in enumerate(self._groups):
            pushes: dict[int, Push] = {}
            dealer.begin(group)
            state = None
            while True:
                for rank, ticket in dealer.deal():
                    if state is None and known[rank] != version:
                        state = self.state()
                    self.deal(comm, rank, ticket, state if known[rank] != version else None)
                    known[rank], began[rank] = version, time.monotonic()
                    awaited[rank] = self._await(comm, rank)
                if dealer.is_complete:
                    break
                rank, push = self._next(awaited)
                if dealer.done(rank, time.monotonic() - began[rank]) is not None:
                    pushes[push.ticket] = push
            self._update([pushes[ticket] for ticket in group])
        for rank in dealer.free:
            self.deal(comm, rank, OVER, None)
        while awaited:
            rank, _ = self._next(awaited)
            self.deal(comm, rank, OVER, None)

    def _next(self, awaited: dict[int, Awaited]) -> tuple[int, Push]:
        """The push that is there first."""
        with self.waited:
            rank = first_of({rank: one.messages for rank, one in awaited.items()})
        return rank, awaited.pop(rank).read()


def backed_of(spec: JobSpec, state: TrainingState, replicas: Replicas | None) -> Backed | None:
    """That of a spec whose updates a server makes synchronously."""
    is_on = replicas is not None and spec.local_updates.method == "synchronous"
    return Backed(spec, state, replicas) if is_on and replicas is not None else None
