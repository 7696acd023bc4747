"""What the rounds of one server have in common: workers push gradients, the server makes the updates.

round      one step of the job. All parameters and the optimizers' state are the same on all workers when it begins
ticket     a piece of the round's samples, whose gradient a worker computes and sends to the server: the owner of the
           step's microbatches, which computes none while there are others
buffers    travel with the weights: a ticket starts from those that the server had beside the weights it is computed
           with, and tells how it changed them. To what the server has by then each update adds the mean change of float
           buffers, and of others the change that its first ticket made: what a worker alone has behind its updates
close      all updates are made: the others go back to the round's beginning, and how far the server came is the
           gradient of the step. The exchange gives that, and what its optimizers keep, to all

So between two rounds everybody has the same state: there workers come and go, and checkpoints are saved. Where one is
lost amid a round, the server too, the others begin that round again: each sample counts once.
`serving` and `backups` say when a push becomes an update, and when who pushed is answered.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from rubato.checkpoint.layout import bytes_tensor
from rubato.engine.comm import Communicator
from rubato.engine.flat import FlatLayout
from rubato.engine.pending import Messages, Waited
from rubato.engine.replicas import NO_GRADIENT, Replicas
from rubato.engine.state import TrainingState
from rubato.errors import ModelError

_HEAD = struct.Struct("<qd?d")
"""Of a push: ticket, weight, whether there is a loss, loss."""
_DEAL = struct.Struct("<q?")
"""Ticket, and whether weights follow."""
OVER = -1
"""Instead of a ticket: there is none left."""


@dataclass(frozen=True)
class Held:
    """What buffers held at a moment."""

    floats: list[torch.Tensor]
    others: list[torch.Tensor]


@dataclass(frozen=True)
class Push:
    """The gradient of a ticket."""

    ticket: int
    weight: float
    """Of its samples."""
    loss: float | None
    vector: torch.Tensor
    """(N,): gradients, changes of float buffers, touched flags."""
    integers: bytes
    """Of the other buffers behind it, and the modes of the modules."""
    given: Held
    """The buffers that it started from."""


@dataclass(frozen=True)
class Awaited:
    """A push that may be under way."""

    messages: Messages
    head: torch.Tensor
    vector: torch.Tensor
    given: Held

    def read(self) -> Push:
        """What has come."""
        ticket, weight, has_loss, loss = _HEAD.unpack(bytes(self.head[: _HEAD.size].numpy()))
        integers = bytes(self.head[_HEAD.size :].numpy())
        return Push(ticket, weight, loss if has_loss else None, self.vector, integers, self.given)


class Served(ABC):
    """What one worker does of the rounds.

    Args:    replicas: hold the round's beginning, and step the optimizers.
    """

    def __init__(self, state: TrainingState, replicas: Replicas) -> None:
        self._state, self._replicas = state, replicas
        self.waited = Waited()
        self._layout = FlatLayout(state.named_parameters(), state.buffers)
        self._beginning = self._given = Held([], [])
        """Buffers: as the round began, and beside the weights as they are, from which the next ticket starts."""
        self._modes = b""
        """Of the ticket whose modes count: the first one."""
        self.told: list[tuple[float | None, float]] = []
        """Loss and weight of each ticket of the round, where this worker is the server."""
        self.helped = (0, 0)
        """Generation and step of the last round of which this worker has computed all tickets that it got."""

    is_replay = False
    """Whether the server goes through a log again, by itself."""

    @abstractmethod
    def pieces(self, updates: Sequence[range], helpers: int, size: Callable[[range], int]) -> list[range]:
        """What each ticket of a round is, told by what is read of each of its updates.

        Args:
            helpers: workers that compute tickets; 0: the server does it.
            size: samples of what is read.
        """

    @abstractmethod
    def tickets(self, comm: Communicator, server: int, place: int, count: int) -> Iterator[int]:
        """The tickets that this worker is to compute; each is packed and sent before the next is asked for.

        Args:
            server: its rank.
            place: of this one among those that compute.
            count: of all tickets.
        Raises:  GenerationLost: a member was lost.
        """

    @abstractmethod
    def serve(self, comm: Communicator, helpers: Sequence[int], count: int) -> None:
        """A round with others, as the server.

        Raises:  GenerationLost: one was lost.
        """

    @abstractmethod
    def alone(self, step: int, count: int) -> Iterator[int]:
        """The tickets of a round without others, each to be computed and given to `take` before the next is asked for.

        Raises:  ModelError: it goes through a log that does not fit.
        """

    def begin(self) -> None:
        """A round begins, or begins again; the buffers are as at its beginning."""
        self._beginning = self._given = self._held()
        self.told = []

    def close(self) -> None:
        """All updates of the round are made."""
        self.restore_buffers()
        self._state.take_modes(self._modes)  # the program here has had no batch in which it could switch them

    # --- a worker that computes tickets -------------------------------------------------------------------------------

    def dealt(self, comm: Communicator, server: int, vector: torch.Tensor) -> int:
        """The next ticket that the server tells, `OVER` where there is none, and the state it is computed with.

        Args:    vector: what `state` gives is received there.
        """
        head = torch.empty(_DEAL.size + self._layout.integer_bytes, dtype=torch.uint8)
        with self.waited:
            comm.start_apart(server, [head], []).wait()
        ticket, has_weights = _DEAL.unpack(bytes(head[: _DEAL.size].numpy()))
        if has_weights:
            with self.waited:
                comm.start_apart(server, [vector], []).wait()
            self._layout.put_weights(vector)
            self._layout.put_values(vector)
            self._layout.put_integers(bytes(head[_DEAL.size :].numpy()))
            self._given = self._held()
        return int(ticket)

    def restore_buffers(self) -> None:
        """Every ticket starts from the buffers that belong to its weights."""
        places = *self._layout.float_buffers, *self._layout.other_buffers
        for place, value in zip(places, (*self._given.floats, *self._given.others), strict=True):
            place.put(value)

    def pack(self, ticket: int, loss: float | None, weight: float) -> Push:
        """The gradient of a ticket, which is dropped from the model.

        Raises:  ModelError: there is none.
        """
        if all(one.grad is None for _, one in self._layout.parameters):
            raise ModelError(NO_GRADIENT)
        vector = self._layout.empty()
        self._layout.pack(vector, self._given.floats, 1.0)
        return Push(ticket, weight, loss, vector, self._layout.integers() + self._state.modes(), self._given)

    def send(self, comm: Communicator, server: int, push: Push) -> None:
        """Tell the server the gradient of a ticket."""
        told = push.ticket, push.weight, push.loss is not None, push.loss or 0.0
        head = bytes_tensor(_HEAD.pack(*told) + push.integers)
        comm.start_apart(server, [], [head, push.vector.cpu()])

    def go_back(self) -> None:
        """Parameters and buffers are those of the round's beginning."""
        self._replicas.go_back()
        self._given = self._beginning
        self.restore_buffers()

    def state(self) -> torch.Tensor:
        """(n,): a copy of the parameters and float buffers as they are, as they travel."""
        vector = self.room()
        self._layout.pack_weights(vector)
        self._layout.pack_values(vector)
        return vector

    def room(self) -> torch.Tensor:
        """(n,): zeros, for that."""
        return torch.zeros(self._layout.flags.start, dtype=self._layout.dtype)

    def _held(self) -> Held:
        """Buffers as they are."""
        floats = [one.now.detach().clone() for one in self._layout.float_buffers]
        return Held(floats, [one.now.clone() for one in self._layout.other_buffers])

    # --- the server ---------------------------------------------------------------------------------------------------

    def take(self, push: Push) -> None:
        """The ticket that `alone` gave is computed."""
        self._taken = push

    def deal(self, comm: Communicator, rank: int, ticket: int, state: torch.Tensor | None) -> None:
        """Tell a worker its next ticket, or `OVER`, and the state as it is, where it has another."""
        head = bytes_tensor(_DEAL.pack(ticket, state is not None) + self._layout.integers())
        comm.start_apart(rank, [], [head] if state is None else [head, state])

    def _await(self, comm: Communicator, rank: int) -> Awaited:
        """The push of a worker that was dealt a ticket of the state as it is."""
        integers = self._layout.integer_bytes + len(self._state.modes())
        head = torch.empty(_HEAD.size + integers, dtype=torch.uint8)
        vector = self._layout.empty().cpu()
        return Awaited(comm.start_apart(rank, [head, vector], []), head, vector, self._given)

    def _update(self, pushes: Sequence[Push], scale: float = 1.0) -> None:
        """One update, of the mean over the samples of these.

        Args:    scale: what learning rates are multiplied by.
        """
        layout = self._layout
        counted = [push for push in pushes if push.weight > 0] or pushes[:1]  # nan times 0 is nan
        total = sum(push.weight for push in counted)
        vector = counted[0].vector.to(layout.device)
        if len(counted) > 1:
            vector = vector * (counted[0].weight / total)
            for push in counted[1:]:
                vector.add_(push.vector.to(layout.device), alpha=push.weight / total)
        touched = [any(flags) for flags in zip(*(_flags(layout, push.vector) for push in pushes), strict=True)]
        for (_, one), piece, flag in zip(layout.parameters, layout.pieces, touched, strict=False):
            view = vector[piece.start : piece.start + piece.numel].view(piece.shape)
            one.grad = view.to(one.dtype) if flag else None
        self._replicas.update(total, scale)
        if total > 0:
            self._advance(vector, counted[0])
        for push in pushes:
            if push.ticket == 0:
                self._modes = push.integers[layout.integer_bytes :]
        self.told += [(push.loss, push.weight) for push in pushes]

    def _advance(self, vector: torch.Tensor, push: Push) -> None:
        """Buffers take the changes of an update.

        Args:    vector: its mean, with those of float buffers.  push: its first one; all began with the same buffers.
        """
        layout, now = self._layout, self._given
        layout.put_buffers(vector, push.given.floats, now.floats)
        layout.put_integers(push.integers)
        for place, given, base in zip(layout.other_buffers, push.given.others, now.others, strict=True):
            place.put(_changed(base, given, place.now))
        self._given = self._held()


def _changed(base: torch.Tensor, given: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    """Integers to which is added what they were changed by elsewhere; of truth values the last one told."""
    return told if told.dtype == torch.bool else (base.long() + told.long() - given.long()).to(told.dtype)


def _flags(layout: FlatLayout, vector: torch.Tensor) -> list[float]:
    found: list[float] = vector[layout.flags.start :][: layout.flags.numel].tolist()
    return found
