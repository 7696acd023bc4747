"""The updates of a step by a server: asynchronous training between two commits.

Of the rounds that `served` tells of:
ticket     one of the H pieces of the round's samples; each is dealt once, to whoever is free
push       the server steps its optimizers with it at once
answer     the server's weights and buffers, as they are by then, and the next ticket; with bounded staleness it waits
           until the slowest has pushed enough
So within a round nobody waits for anybody.

Which gradient comes first is up to the clock, so the bits are not the same again. But the round has a log of what was
applied in which order and how old it was, which travels with the state: gone through in its order it gives these bits.

Messages: H times the gradients to the server, H - (W - 1) times the weights from it; then one exchange.
Memory: the server two vectors for each of the others, each of these three; and what `replicas` tells of one replica.
Source: Dean et al. 2012 (DistBelief); Ho et al. 2013 (SSP); Zhang et al. 2016, arXiv:1511.05950 (damping). The protocol
is `strategies.parameter_server`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from rubato.checkpoint.manifest import read_manifest
from rubato.checkpoint.storage import open_folder
from rubato.checkpoint.stripes import read_state
from rubato.checkpoint.tree import decode
from rubato.engine.comm import Communicator
from rubato.engine.first import first_of
from rubato.engine.replicas import Replicas
from rubato.engine.served import OVER, Awaited, Held, Push, Served
from rubato.engine.state import TrainingState
from rubato.errors import CheckpointError, SpecMismatch
from rubato.strategies.parameter_server import ShardServer
from rubato.wire.spec import JobSpec
from rubato.wire.storage import parse_storage

REGISTERED = "rubato.updates"
"""The name of the log, in the training state."""


@dataclass(frozen=True)
class Update:
    """A row of the log: what was applied, in the order in which it was."""

    ticket: int
    version: int
    """Updates of the round that were in the weights it was computed with."""


class UpdateLog:
    """The log of the last round, which travels as a buffer does, and of all before it.

    Args:    most: updates in a round.
    """

    name = "the log of asynchronous updates"
    is_value = True

    def __init__(self, most: int) -> None:
        self.own = torch.empty((most, 2), dtype=torch.int32, device="meta")
        self.now = torch.full((most, 2), OVER, dtype=torch.int32)
        self.first = 0
        """The step of the first round: another method may have trained before."""
        self.rounds: list[torch.Tensor] = []
        """(updates, 2) each: ticket and version."""

    def put(self, value: torch.Tensor) -> None:
        """See `Place`."""
        self.now = value.to(torch.int32).cpu().clone()

    def write(self, updates: Sequence[Update]) -> None:
        """A round by this worker."""
        self.now.fill_(OVER)
        for row, update in enumerate(updates):
            self.now[row, 0], self.now[row, 1] = update.ticket, update.version

    @property
    def last(self) -> list[Update]:
        """Of the last round."""
        return [Update(ticket, version) for ticket, version in self.now.tolist() if ticket != OVER]

    def count(self, step: int) -> None:
        """The round counts, as this step."""
        if not self.rounds:
            self.first = step
        self.rounds.append(self.now[: len(self.last)].clone())

    def state_dict(self) -> dict[str, Any]:
        """All rounds, one behind the other."""
        updates = torch.cat(self.rounds) if self.rounds else torch.empty((0, 2), dtype=torch.int32)
        lengths = torch.tensor([len(one) for one in self.rounds], dtype=torch.int64)
        return {"updates": updates, "lengths": lengths, "first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind them."""
        self.rounds = [one.clone() for one in torch.split(state["updates"].cpu(), state["lengths"].tolist())]
        self.first = state.get("first", 0)  # older checkpoints tell none: nothing else had trained before

    @property
    def by_step(self) -> dict[int, list[Update]]:
        """The updates of all rounds, in their order."""
        rounds = [[Update(ticket, version) for ticket, version in one.tolist()] for one in self.rounds]
        return dict(enumerate(rounds, self.first))


class Serving(Served):
    """What one worker does of the rounds; a ticket is an update.

    Args:    most: updates in a round.
    """

    def __init__(self, spec: JobSpec, most: int, state: TrainingState, replicas: Replicas) -> None:
        super().__init__(state, replicas)
        self._staleness, self._damps = spec.local_updates.staleness, spec.local_updates.damping
        self._updates: list[Update] = []
        self.log = UpdateLog(most)
        self._replayed = None if spec.local_updates.replay is None else read_log(spec.local_updates.replay)
        self.is_replay = self._replayed is not None

    def begin(self) -> None:
        """See `Served`."""
        super().begin()
        self._updates = []

    def close(self) -> None:
        """See `Served`; and the log is written."""
        super().close()
        self.log.write(self._updates)

    def told_of_round(self) -> dict[str, float]:
        """What a row of metrics says: how old the gradients of the last round were."""
        ages = [index - update.version for index, update in enumerate(self.log.last)]
        return {"staleness": fmean(ages), "staleness_max": float(max(ages))} if ages else {}

    def pieces(self, updates: Sequence[range], helpers: int, size: Callable[[range], int]) -> list[range]:
        """See `Served`."""
        return list(updates)

    # --- a worker that computes tickets -------------------------------------------------------------------------------

    def tickets(self, comm: Communicator, server: int, place: int, count: int) -> Iterator[int]:
        """See `Served`. With the first one, by its place, it begins without being told."""
        ticket = place if place < count else OVER
        room = self.room()
        while ticket != OVER:
            yield ticket
            ticket = self.dealt(comm, server, room)

    # --- the server ---------------------------------------------------------------------------------------------------

    def alone(self, step: int, count: int) -> Iterator[int]:
        """See `Served`."""
        return self.in_order(self.order(step, count))

    def order(self, step: int, tickets: int) -> list[Update]:
        """What a worker without others does: every ticket, with all updates in its weights that were made before.

        Raises:  ModelError: it goes through a log that does not fit.
        """
        if self._replayed is None:
            return [Update(ticket, ticket) for ticket in range(tickets)]
        found = self._replayed.get(step, [])
        if step < min(self._replayed, default=0):
            raise SpecMismatch(
                f"the log of local_updates.replay begins at step {min(self._replayed)}, as another method has trained "
                "before: go on from the checkpoint of that step"
            )
        if sorted(update.ticket for update in found) != list(range(tickets)):
            raise SpecMismatch(
                f"step {step} makes {tickets} updates, and the log of local_updates.replay has {len(found)}: "
                "it is of a shorter job, or of one with another batch or data set"
            )
        return found

    def in_order(self, order: Sequence[Update]) -> Iterator[int]:
        """The tickets of a round, each to be computed and given to `take` before the next is asked for.

        Args:    order: of the updates. A state is kept as long as an update is to come that was computed with it.
        """
        last_use = {update.version: index for index, update in enumerate(order)}
        kept: dict[int, tuple[torch.Tensor, Held]] = {}
        for index, update in enumerate(order):
            if last_use.get(index, -1) > index:
                kept[index] = self.state(), self._given
            present = None
            if update.version != index:
                present = self.state(), self._given
                self._go_to(*kept[update.version])
            self.restore_buffers()
            yield update.ticket
            if present is not None:
                self._go_to(*present)
            self._apply_taken(update, index)
            if last_use[update.version] == index:
                kept.pop(update.version, None)

    def _go_to(self, state: torch.Tensor, buffers: Held) -> None:
        self._layout.put_weights(state)
        self._given = buffers

    def _apply_taken(self, update: Update, index: int) -> None:
        assert self._taken.ticket == update.ticket
        staleness = index - update.version
        self._apply(self._taken, update.version, 1.0 / max(1, staleness) if self._damps else 1.0)
        del self._taken

    def serve(self, comm: Communicator, helpers: Sequence[int], count: int) -> None:
        """See `Served`. They have begun with a ticket each, in the order of their ranks."""
        protocol = ShardServer(self._staleness, damps=self._damps)
        dealt = iter(range(count))
        awaited: dict[int, Awaited] = {}
        for rank in helpers:
            protocol.join(rank)
        for rank, _ in zip(helpers, dealt, strict=False):
            protocol.pull(rank)
            awaited[rank] = self._await(comm, rank)
        for rank in helpers:
            if rank not in awaited:  # fewer tickets than workers
                protocol.leave(rank)
        while awaited:
            with self.waited:
                rank = first_of({rank: one.messages for rank, one in awaited.items()})
            update, answers = protocol.push(rank)
            self._apply(awaited.pop(rank).read(), update.version, update.scale)
            answers += protocol.pull(rank)
            while answers:
                other = answers.pop(0)
                ticket = next(dealt, OVER)
                self.deal(comm, other, ticket, None if ticket == OVER else self.state())
                if ticket == OVER:
                    answers += protocol.leave(other)
                else:
                    awaited[other] = self._await(comm, other)

    def _apply(self, push: Push, version: int, scale: float) -> None:
        self._update([push], scale)
        self._updates.append(Update(push.ticket, version))


def serving_of(spec: JobSpec, state: TrainingState, replicas: Replicas | None) -> Serving | None:
    """That of a spec whose updates are asynchronous; its log is part of the state from here on."""
    if replicas is None or not spec.local_updates.is_asynchronous:
        return None
    serving = Serving(spec, spec.local_updates.sync_every, state, replicas)
    state.registered[REGISTERED] = serving.log
    return serving


def read_log(checkpoint: str) -> dict[int, list[Update]]:
    """The order in which a checkpoint's updates were made, by step.

    Raises:
        UserError: the address is none.
        CheckpointError: it cannot be read, or its updates were not asynchronous.
    """
    folder = open_folder(parse_storage(checkpoint).absolute())
    document, tensors = read_state(folder, read_manifest(folder).files)
    registered = decode(document["state"], tensors)["registered"]
    if REGISTERED not in registered:
        raise CheckpointError(f"{folder} tells of no asynchronous updates: name a checkpoint of a job that made some")
    log = UpdateLog(0)
    log.load_state_dict(registered[REGISTERED])
    return log.by_step
