"""Streaming DiLoCo: each worker trains weights of its own, of which a fragment at a time is exchanged.

The parameters are cut into F fragments. A step of the job is some updates of each worker, from its own weights; then
one fragment is exchanged, in turn, and all else stays with the worker:
    D    the mean over the workers, by their samples since the last time, of t - (own weights behind the updates), t
         being the weights of the fragment as all shared them last
    t    the outer optimizer steps with D for a gradient: equal on all workers
    own  t + mix (own weights - t): so much a worker keeps of what it has learned beside the others

So what is sent in a step is 1/F of the parameters, and nothing of what optimizers keep. Where members come or go, the
state is saved or something is evaluated, all *settle*: from there they go on from the mean of their weights, of their
buffers and of what their optimizers keep, by their samples since the last time. Nothing that was learned is lost or
counted twice by that, and t stays. A worker that is lost between takes along what it had learned in fragments that were
not exchanged since, which is told.

Memory: t, the outer momentum, and their values behind the present exchange, each once the parameters.
Source: Douillard et al. 2025, arXiv:2501.18512; `strategies.local_updates` has the outer optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rubato.data.order import BatchPlan
from rubato.engine.aggregation import aggregation_of
from rubato.engine.flat import FlatLayout, weigh
from rubato.engine.keeping import Keeping, from_row, to_row
from rubato.engine.reduction import is_finite
from rubato.errors import ModelError, ProtocolError
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

    index: int
    place: slice
    """In the parameters."""
    shared: torch.Tensor
    momentum: torch.Tensor | None
    shares: float
    """Of all workers in the step, which the total is divided by."""


@dataclass(frozen=True)
class Pending:
    """What follows from the exchange of a step, if it counts."""

    step: int
    total: torch.Tensor
    """(L,): what this worker takes for the sum."""
    share: float
    """Of this worker."""
    touched: set[int]
    """Parameters that had a gradient here."""
    fragment: Fragment | None
    """None: what was told was not finite, or counts nothing."""


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
        self._learned = 0.0
        """Shares of this worker in the steps since the last settlement: its own weights weigh so much in the mean."""
        self._since = [0.0] * self._fragments
        """By fragment, those since its last exchange, or the last settlement."""
        self._touched: list[set[int]] = [set() for _ in range(self._fragments)]
        """By fragment, the parameters that had a gradient here since its last exchange, or the last settlement."""

    @property
    def flat(self) -> FlatLayout:
        """Set by `prepare`."""
        assert self._flat is not None
        return self._flat

    def check_registered(self, registered: Mapping[str, object]) -> None:
        """See `Keeping`. What is made of a worker's own weights would be another on each."""
        for name, one in registered.items():
            if isinstance(one, torch.nn.Module):
                raise ModelError(
                    f"with streaming_diloco each worker has weights of its own, and {name!r} ({type(one).__name__}) is "
                    "no part of what they settle: leave it out, or use diloco"
                )

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
        flat = self.flat
        vector = torch.zeros(flat.gradients, dtype=flat.dtype, device=flat.device)
        flat.pack_weights(vector)
        return vector

    def _place(self, fragment: int) -> slice:
        """Of a fragment, in the parameters."""
        return slice(*cut(self.flat.gradients, self._fragments)[fragment])

    def _parts(self, place: slice) -> Iterator[tuple[int, slice]]:
        """(index of a parameter, where the part of it that lies there is within the place)."""
        for index, piece in enumerate(self.flat.pieces[: len(self.flat.parameters)]):
            low, high = max(piece.start, place.start), min(piece.start + piece.numel, place.stop)
            if low < high:
                yield index, slice(low - place.start, high - place.start)

    # --- a step -------------------------------------------------------------------------------------------------------

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, step: int, *, are_finite: bool
    ) -> tuple[torch.Tensor, bool]:
        """See `Keeping`. All have the same in the step's fragment only."""
        share = self.share
        touched = {index for index, flag in enumerate(self._flags(vector_L).tolist()) if flag}
        if not are_finite:
            self._pending = Pending(step, sum_over(comm, vector_L), share, touched, None)
            return self._pending.total, False
        fragment = step % self._fragments
        place, weight = self._place(fragment), self._since[fragment] + share
        parts = list(self._parts(place))
        begun = self._own_weights()[place]
        own = begun - vector_L[place] / share if share else begun
        known = touched | self._touched[fragment]
        flags = own.new_tensor([float(index in known) for index, _ in parts])
        told = sum_over(comm, torch.cat([weight * (self._shared[place] - own), flags, own.new_tensor([weight, share])]))
        weights, shares = told[-2:].tolist()
        total = self._of_own(vector_L, shares)
        if not is_finite(told) or not weights or not shares:
            self._pending = Pending(step, total, share, touched, None)
            return total, is_finite(told)
        before = self._shared[place], self._momentum[place]
        momentum = before[1].clone() if self._outer.momentum else None
        shared = before[0] - self._outer.lr * self._outer.direction(told[: len(own)] / weights, momentum)
        changed = total[place]
        changed.copy_((begun - torch.lerp(shared, own, self._mix)) * shares)
        for (index, part), flag in zip(parts, told[len(own) : -2].tolist(), strict=True):
            if flag:
                self._flags(total)[index] = shares
            else:  # nobody has trained it: it stays where it is
                changed[part] = 0.0
                shared[part] = before[0][part]
                if momentum is not None:
                    momentum[part] = before[1][part]
        self._pending = Pending(step, total, share, touched, Fragment(fragment, place, shared, momentum, shares))
        return total, True

    def _flags(self, vector_L: torch.Tensor) -> torch.Tensor:
        """Of a vector, by parameter: whether it had a gradient."""
        return vector_L[self.flat.flags.start :][: self.flat.flags.numel]

    def _of_own(self, vector_L: torch.Tensor, shares: float) -> torch.Tensor:
        """What gives this worker its own gradients and buffers, when it is divided by the shares of all."""
        if self.share:
            return vector_L * (shares / self.share)
        total = self.flat.empty()  # it had no microbatch, and stays as it is
        self.flat.pack_unchanged(total, shares)
        return total

    def count(self, step: int, *, follows: bool) -> torch.Tensor | None:
        """See `Keeping`."""
        pending, self._pending = self._pending, None
        self._is_settled = False
        if follows:
            return None
        if pending is None or pending.step != step:
            raise ProtocolError(f"step {step} counts, but this worker has not exchanged it")
        self._learned += pending.share
        self._since = [since + pending.share for since in self._since]
        for one in self._touched:
            one.update(pending.touched)
        fragment = pending.fragment
        if fragment is not None:
            self._shared[fragment.place] = fragment.shared
            if fragment.momentum is not None:
                self._momentum[fragment.place] = fragment.momentum
            self._since[fragment.index] = 0.0
            self._touched[fragment.index].clear()
        return pending.total

    @property
    def kept(self) -> float:
        """See `Keeping`: of how far its own weights are from those that all share."""
        pending = self._pending
        if pending is None:
            return 0.0
        way = self._shared - self._own_weights()
        if pending.fragment is not None:
            way += pending.total[: self.flat.gradients] / pending.fragment.shares
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
        flat.pack_weights(own)
        flat.pack_values(own)
        weighted = own.clone()
        weigh(weighted, self._learned)
        told = sum_over(comm, torch.cat([weighted, own.new_tensor([self._learned])]))
        learned = float(told[-1])  # nothing: all are as they were settled last
        return to_row([told[:-1] / learned if learned else own, self._shared, self._momentum])

    def take(self, row: torch.Tensor) -> None:
        """See `Keeping`."""
        flat = self.flat
        like = [flat.empty()[: flat.flags.start], self._shared, self._momentum]
        own, shared, momentum = (one.to(flat.device) for one in from_row(row, like))
        flat.put_weights(own)
        flat.put_values(own)
        self._shared, self._momentum = shared, momentum
        self._settle()

    def _settle(self) -> None:
        """All have the same now."""
        self._is_settled, self.is_disturbed, self._told, self._pending = True, False, {}, None
        self._learned, self._since = 0.0, [0.0] * self._fragments
        for one in self._touched:
            one.clear()

    def state_dict(self) -> dict[str, Any]:
        """See `Keeping`. Another number of fragments goes on with it."""
        return {"shared": self._shared, "momentum": self._momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Keeping`."""
        if state["shared"].shape == self._shared.shape:
            self._shared, self._momentum = (state[name].to(self._shared) for name in ("shared", "momentum"))
            self._is_loaded = True
        self._settle()

    def resume(self) -> None:
        """See `Keeping`. Where it tells nothing, all share the weights that were saved."""
        if not self._is_loaded:
            self._shared = self._own_weights()
            self._momentum = torch.zeros_like(self._shared)
        self._settle()


def keeping_of(spec: JobSpec) -> Keeping | None:
    """That of a spec; None: the engine's own reduction does it."""
    if spec.local_updates.method == "streaming_diloco":
        return Streaming(spec.local_updates)
    return aggregation_of(spec.aggregation, spec.seed)
