"""Streaming DiLoCo: each worker trains weights of its own, of which a fragment at a time is exchanged.

The parameters are cut into F fragments. A step of the job is some updates of each worker, from its own weights; then
one fragment is exchanged, in turn, and all else stays with the worker:
    D    the mean over the workers, by samples, of t - (own weights behind the updates), t being the weights of the
         fragment as all shared them last
    t    the outer optimizer steps with D for a gradient: equal on all workers
    own  t + mix (own weights - t): so much a worker keeps of what it has learned beside the others

So what is sent in a step is 1/F of the parameters, and nothing of what optimizers keep. Where members come or go, the
state is saved or something is evaluated, all *settle*: from there they go on from the mean of their weights, of their
buffers and of what their optimizers keep. Nothing that was learned is lost or counted twice by that, and t stays. A
worker that is lost between takes along what it had learned in fragments that were not exchanged since, which is told.

Memory: t, the outer momentum, and their values behind the present exchange, each once the parameters.
Source: Douillard et al. 2025, arXiv:2501.18512; `strategies.local_updates` has the outer optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rubato.data.order import BatchPlan
from rubato.engine.aggregation import aggregation_of
from rubato.engine.flat import FlatLayout
from rubato.engine.keeping import Keeping, from_row, to_row
from rubato.engine.reduction import is_finite
from rubato.errors import ProtocolError
from rubato.strategies.local_updates import Outer
from rubato.strategies.peers import Collectives
from rubato.strategies.sizes import cut
from rubato.strategies.sums import sum_over
from rubato.wire.local_updates import LocalUpdatesSpec
from rubato.wire.spec import JobSpec

REGISTERED = "rubato.streaming"
"""The name of what all share, in the training state."""


@dataclass(frozen=True)
class Fragment:
    """What all share of one, behind its exchange."""

    place: slice
    """In the parameters."""
    shared: torch.Tensor
    momentum: torch.Tensor | None


@dataclass(frozen=True)
class Pending:
    """What follows from the exchange of a step, if it counts."""

    step: int
    total: torch.Tensor
    """(L,): what this worker takes for the sum."""
    share: float
    """Of this worker."""
    shares: float
    """Of all, which the total is divided by."""
    fragment: Fragment | None
    """None: what was told was not finite."""


class Streaming(Keeping):
    """The exchange of a fragment in place of all, and what all share."""

    registered = REGISTERED
    what = "what all workers had learned by themselves and not told yet"
    parts_states = True

    def __init__(self, spec: LocalUpdatesSpec) -> None:
        super().__init__()
        self._outer = Outer(spec.outer.lr, spec.outer.momentum)
        self._fragments, self._mix = spec.fragments, spec.mix
        self._flat: FlatLayout | None = None
        self._shared = torch.empty(0)
        """t of all fragments: (n,), laid out as gradients are."""
        self._momentum = torch.empty(0)
        self._is_settled = True
        self._is_loaded = False
        self._pending: Pending | None = None
        self._share = 1.0
        """Of this worker in the last step that counts: its own weights weigh so much in the mean."""

    @property
    def flat(self) -> FlatLayout:
        """Set by `prepare`."""
        assert self._flat is not None
        return self._flat

    def prepare(self, flat: FlatLayout, plan: BatchPlan) -> None:
        """See `Keeping`."""
        self._flat = flat
        self._shared = self._own_weights()
        self._momentum = torch.zeros_like(self._shared)

    def begin(self, hosts: Sequence[int], *, counts: bool) -> None:
        """See `Keeping`."""
        self.is_disturbed = not self._is_settled or counts

    def _own_weights(self) -> torch.Tensor:
        """(n,): the parameters as they are, laid out as gradients are."""
        vector = self.flat.empty()[: self.flat.gradients]
        for (_, one), piece in zip(self.flat.parameters, self.flat.pieces, strict=False):
            vector[piece.start : piece.start + piece.numel].view(piece.shape).copy_(one.detach())
        return vector

    # --- a step -------------------------------------------------------------------------------------------------------

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, step: int, *, are_finite: bool
    ) -> tuple[torch.Tensor, bool]:
        """See `Keeping`. All have the same in the step's fragment only."""
        flat = self.flat
        if not are_finite:
            total = sum_over(comm, vector_L)
            self._pending = Pending(step, total, self.share, 0.0, None)
            return total, False
        place = slice(*cut(flat.gradients, self._fragments)[step % self._fragments])
        begun = self._own_weights()[place]
        way = vector_L[place] + self.share * (self._shared[place] - begun)
        told = sum_over(comm, torch.cat([way, way.new_tensor([self.share])]))
        shares = float(told[-1])
        total = self._of_own(vector_L, shares)
        if not is_finite(told) or shares == 0.0:
            total[place] = told[:-1]
            self._pending = Pending(step, total, self.share, 0.0, None)
            return total, shares == 0.0
        momentum = self._momentum[place].clone() if self._outer.momentum else None
        shared = self._shared[place] - self._outer.lr * self._outer.direction(told[:-1] / shares, momentum)
        own = begun - vector_L[place] / self.share if self.share else begun
        total[place] = (begun - torch.lerp(shared, own, self._mix)) * shares
        for at, piece in enumerate(flat.pieces[: len(flat.parameters)]):
            if piece.start < place.stop and place.start < piece.start + piece.numel:
                total[flat.flags.start + at] = shares  # it has changed, whoever has trained it
        self._pending = Pending(step, total, self.share, shares, Fragment(place, shared, momentum))
        return total, True

    def _of_own(self, vector_L: torch.Tensor, shares: float) -> torch.Tensor:
        """What gives this worker its own gradients and buffers, when it is divided by the shares of all."""
        if self.share:
            return vector_L * (shares / self.share)
        total = self.flat.empty()  # it had no microbatch, and stays as it is
        self.flat.pack_values(total, shares)
        return total

    def count(self, step: int, *, follows: bool) -> torch.Tensor | None:
        """See `Keeping`."""
        pending, self._pending = self._pending, None
        self._is_settled = False
        if follows:
            return None
        if pending is None or pending.step != step:
            raise ProtocolError(f"step {step} counts, but this worker has not exchanged it")
        fragment = pending.fragment
        if fragment is not None:
            self._shared[fragment.place] = fragment.shared
            if fragment.momentum is not None:
                self._momentum[fragment.place] = fragment.momentum
        self._share = pending.share
        return pending.total

    @property
    def kept(self) -> float:
        """See `Keeping`: of how far its own weights are from those that all share."""
        pending = self._pending
        if pending is None or pending.fragment is None:
            return 0.0
        way = self._shared - self._own_weights()
        way += pending.total[: self.flat.gradients] / pending.shares
        way[pending.fragment.place] = 0.0
        return float(torch.linalg.vector_norm(way))

    # --- settling -----------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """See `Keeping`."""
        return self._is_settled

    def settle(self, comm: Collectives) -> torch.Tensor:
        """See `Keeping`."""
        flat = self.flat
        own = flat.empty()[: flat.flags.start]
        own[: flat.gradients] = self._own_weights()
        for buffer, piece in zip(flat.float_buffers, flat.pieces[len(flat.parameters) :], strict=True):
            own[piece.start : piece.start + piece.numel].view(piece.shape).copy_(buffer.now.detach())
        told = sum_over(comm, torch.cat([own * self._share, own.new_tensor([self._share])]))
        shares = float(told[-1])
        return to_row([told[:-1] / shares if shares else own, self._shared, self._momentum])

    def take(self, row: torch.Tensor) -> None:
        """See `Keeping`."""
        flat = self.flat
        like = [flat.empty()[: flat.flags.start], self._shared, self._momentum]
        own, shared, momentum = (one.to(flat.device) for one in from_row(row, like))
        with torch.no_grad():
            for (_, one), piece in zip(flat.parameters, flat.pieces, strict=False):
                one.copy_(own[piece.start : piece.start + piece.numel].view(piece.shape))
            for buffer, piece in zip(flat.float_buffers, flat.pieces[len(flat.parameters) :], strict=True):
                buffer.put(own[piece.start : piece.start + piece.numel].view(piece.shape).to(buffer.own.dtype))
        torch.clear_autocast_cache()
        self._shared, self._momentum = shared, momentum
        self._is_settled, self.is_disturbed, self._told = True, False, {}

    def state_dict(self) -> dict[str, Any]:
        """See `Keeping`. Another number of fragments goes on with it."""
        return {"shared": self._shared, "momentum": self._momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Keeping`."""
        if state["shared"].shape == self._shared.shape:
            self._shared, self._momentum = (state[name].to(self._shared) for name in ("shared", "momentum"))
            self._is_loaded = True
        self._pending, self._is_settled, self._told = None, True, {}

    def resume(self) -> None:
        """See `Keeping`. Where it tells nothing, all share the weights that were saved."""
        if not self._is_loaded:
            self._shared = self._own_weights()
            self._momentum = torch.zeros_like(self._shared)
        self._is_settled = True


def keeping_of(spec: JobSpec) -> Keeping | None:
    """That of a spec; None: the engine's own reduction does it."""
    if spec.local_updates.method == "streaming_diloco":
        return Streaming(spec.local_updates)
    return aggregation_of(spec.aggregation, spec.seed)
