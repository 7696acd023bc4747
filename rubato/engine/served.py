"""What the rounds of one server have in common: workers push gradients, the server makes the updates.

round      one step of the job. All parameters and the optimizers' state are the same on all workers when it begins
ticket     a piece of the round's samples, whose gradient a worker computes and sends to the server: the owner of the
           step's microbatches, which computes none while there are others
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
from rubato.engine.comm import Communicator, Messages
from rubato.engine.flat import FlatLayout
from rubato.engine.replicas import NO_GRADIENT, Replicas
from rubato.engine.state import TrainingState
from rubato.errors import ModelError

_HEAD = struct.Struct("<qd?d")


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


class Served(ABC):
    """What one worker does of the rounds.

    Args:    replicas: hold the round's beginning, and step the optimizers.
    """

    def __init__(self, state: TrainingState, replicas: Replicas) -> None:
        self._state, self._replicas = state, replicas
        self._layout = FlatLayout(state.named_parameters(), state.buffers)
        self._before: list[torch.Tensor] = []
        self._before_other: list[torch.Tensor] = []
        self._changes = torch.empty(0)
        """Of float buffers, added up by weight."""
        self._integers = b""
        """Of the ticket whose other buffers and modes count: the first one."""
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
        self._before = [one.now.detach().clone() for one in self._layout.float_buffers]
        self._before_other = [one.now.clone() for one in self._layout.other_buffers]
        self._changes = self._layout.empty()[self._layout.tail : self._layout.flags.start]
        self.told = []

    def close(self) -> None:
        """All updates of the round are made: buffers as they are on average."""
        total = sum(weight for _, weight in self.told)
        vector = self._layout.empty()
        if total > 0:
            vector[self._layout.tail : self._layout.flags.start] = self._changes / total
        self._layout.put_buffers(vector, self._before)
        self._layout.put_integers(self._integers)
        # The program here has had no batch in which it could switch them.
        self._state.take_modes(self._integers[self._layout.integer_bytes :])

    # --- a worker that computes tickets -------------------------------------------------------------------------------

    def restore_buffers(self) -> None:
        """Every ticket starts from the buffers of the round's beginning."""
        for places, before in (
            (self._layout.float_buffers, self._before),
            (self._layout.other_buffers, self._before_other),
        ):
            for place, value in zip(places, before, strict=True):
                place.put(value)

    def pack(self, ticket: int, loss: float | None, weight: float) -> Push:
        """The gradient of a ticket, which is dropped from the model.

        Raises:  ModelError: there is none.
        """
        if all(one.grad is None for _, one in self._layout.parameters):
            raise ModelError(NO_GRADIENT)
        vector = self._layout.empty()
        self._layout.pack(vector, self._before, 1.0)
        return Push(ticket, weight, loss, vector, self._layout.integers() + self._state.modes())

    def send(self, comm: Communicator, server: int, push: Push) -> None:
        """Tell the server the gradient of a ticket."""
        told = push.ticket, push.weight, push.loss is not None, push.loss or 0.0
        head = bytes_tensor(_HEAD.pack(*told) + push.integers)
        comm.start_apart(server, [], [head, push.vector.cpu()])

    def go_back(self) -> None:
        """Parameters and buffers are those of the round's beginning."""
        self._replicas.go_back()
        self.restore_buffers()

    def weights(self) -> torch.Tensor:
        """(n,): a copy of the parameters as they are, as they travel."""
        vector = torch.zeros(self._layout.tail, dtype=self._layout.dtype)
        self._layout.pack_weights(vector)
        return vector

    # --- the server ---------------------------------------------------------------------------------------------------

    def take(self, push: Push) -> None:
        """The ticket that `alone` gave is computed."""
        self._taken = push

    def _await(self, comm: Communicator, rank: int) -> tuple[Messages, torch.Tensor, torch.Tensor]:
        """A push of a worker, which may be under way."""
        integers = self._layout.integer_bytes + len(self._state.modes())
        head = torch.empty(_HEAD.size + integers, dtype=torch.uint8)
        vector = self._layout.empty().cpu()
        return comm.start_apart(rank, [head, vector], []), head, vector

    @staticmethod
    def _read(head: torch.Tensor, vector: torch.Tensor) -> Push:
        """What has come of `_await`."""
        ticket, weight, has_loss, loss = _HEAD.unpack(bytes(head[: _HEAD.size].numpy()))
        return Push(ticket, weight, loss if has_loss else None, vector, bytes(head[_HEAD.size :].numpy()))

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
            self._changes.add_(vector[layout.tail : layout.flags.start], alpha=total)
        for push in pushes:
            if push.ticket == 0:
                self._integers = push.integers
        self.told += [(push.loss, push.weight) for push in pushes]


def _flags(layout: FlatLayout, vector: torch.Tensor) -> list[float]:
    found: list[float] = vector[layout.flags.start :][: layout.flags.numel].tolist()
    return found
