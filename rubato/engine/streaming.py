"""Streaming DiLoCo: each worker trains weights of its own, of which a fragment at a time is exchanged.

The parameters are cut into F fragments. A step of the job is some updates of each worker, from its own weights; then
one fragment is exchanged, in turn, and all else stays with the worker:
    D    the mean over the workers, by their samples since the last time, of t - (own weights behind the updates), t
         being the weights of the fragment as all shared them last
    t    the outer optimizer steps with D for a gradient: equal on all workers
    own  t + mix (own weights - t): so much a worker keeps of what it has learned beside the others

With a delay the weights that are told are those of so many updates before the end of the step, and they are on their
way while these updates are made. What a worker learns of the fragment in them is its own until the next time, whole:
it is added to `own` behind the mixing, and their samples weigh in the next mean. Nothing is under way at a boundary.
Where a step is begun again without those that were lost, or a generation has just begun, it is told at the end.

So what is sent in a step is 1/F of the parameters, and nothing of what optimizers keep. Where members come or go, the
state is saved or something is evaluated, all *settle*: from there they go on from the mean of their weights, of their
buffers and of what their optimizers keep, by their samples since the last time. Nothing that was learned is lost or
counted twice by that, and t stays. A worker that is lost between takes along what it had learned in fragments that were
not exchanged since, which is told.

Memory: t, the outer momentum, and their values behind the present exchange, each once the parameters.
Source: Douillard et al. 2025, arXiv:2501.18512; `strategies.local_updates` has the outer optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rubato.data.order import BatchPlan
from rubato.engine.aggregation import aggregation_of, layout_of_flat
from rubato.engine.errand import Errand
from rubato.engine.flat import FlatLayout, weigh
from rubato.engine.keeping import Keeping, from_row, to_row
from rubato.engine.reduction import is_finite
from rubato.engine.replicas import Replicas
from rubato.errors import ModelError, ProtocolError
from rubato.strategies.layout import carry_over, layout_of_table
from rubato.strategies.local_updates import Outer
from rubato.strategies.peers import Collectives
from rubato.strategies.sizes import cut
from rubato.strategies.sums import sum_over
from rubato.wire.local_updates import LocalUpdatesSpec
from rubato.wire.spec import JobSpec

REGISTERED = "rubato.streaming"
"""The name of what all share, in the training state."""


@dataclass(frozen=True)
class Parcel:
    """What a worker tells of a step's fragment."""

    step: int
    own: torch.Tensor
    """Its weights of it."""
    share: float
    """Of the worker in the step, until they were these."""
    touched: set[int]
    """Parameters that had a gradient here until then."""


@dataclass(frozen=True)
class Fragment:
    """What all share of one, behind its exchange."""

    index: int
    place: slice
    """In the parameters."""
    shared: torch.Tensor
    momentum: torch.Tensor | None
    since: torch.Tensor
    """How far the worker's own weights have come since they were told."""
    share: float
    """Of the worker in the step, of what was told."""
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
    saved = "the checkpoint's outer momentum"
    parts_states = True

    def __init__(self, spec: LocalUpdatesSpec) -> None:
        super().__init__()
        self._outer = Outer(spec.outer.lr, spec.outer.momentum)
        self._fragments, self._mix = spec.fragments, spec.mix
        self.delay = spec.delay
        """So many updates before the end of a step its fragment is told."""
        self._parcel: Parcel | None = None
        """Of the present step, where it was taken before its end."""
        self._errand: Errand[torch.Tensor] | None = None
        """The exchange of the parcel, where it is under way."""
        self._heard: torch.Tensor | None = None
        """What has come of it."""
        self._flat: FlatLayout | None = None
        self._index: dict[str, int] = {}
        """By name, the place of a parameter among all."""
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
        self._index = {name: index for index, (name, _) in enumerate(flat.parameters)}
        self._shared = self._own_weights()
        self._momentum = torch.zeros_like(self._shared)

    def begin(self, hosts: Sequence[int], *, counts: bool) -> None:
        """See `Keeping`."""
        self.is_disturbed = not self._is_settled or counts
        self.abandon()

    def abandon(self) -> None:
        """See `Keeping`."""
        errand, self._errand, self._heard = self._errand, None, None
        if errand is not None:
            errand.wait()

    def _own_weights(self, instead: Mapping[str, torch.Tensor] | None = None) -> torch.Tensor:
        """(n,): the parameters as they are, laid out as gradients are."""
        flat = self.flat
        vector = torch.zeros(flat.gradients, dtype=flat.dtype, device=flat.device)
        flat.pack_weights(vector, instead)
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

    def take_ahead(
        self, step: int, replicas: Replicas, vector_L: torch.Tensor | None, done: float, share: float
    ) -> None:
        """This worker's last replica of the step has some updates to make: take the fragment as it is now.

        Args:
            vector_L: of the replicas before it; None: there was none.
            done: what these count.
            share: what the updates count that it has made.
        """
        place = self._place(step % self._fragments)
        own, touched = self._own_weights()[place], {self._index[name] for name in replicas.touched}
        if vector_L is not None and done + share > 0:
            begun = self._own_weights(replicas.beginning())[place]
            own = (done * begun - vector_L[place] + share * own) / (done + share)
            touched |= self._touched_in(vector_L)
        self._parcel = Parcel(step, own, done + share, touched)

    def send_ahead(self, comm: Collectives, tell: Callable[[], object]) -> None:
        """Let it be on its way, beside what the main thread does.

        Args:    tell: as for `send_first`.
        """
        parcel = self._parcel
        assert parcel is not None
        self._errand = Errand("fragment", self.flat.device, self._sending(comm, parcel, tell))

    def send_first(self, comm: Collectives, vector_L: torch.Tensor, step: int, tell: Callable[[], object]) -> None:
        """See `Keeping`."""
        if self.delay == 0:
            return
        errand, self._errand = self._errand, None
        if errand is not None:
            self._heard = errand.result()
            return
        if self._parcel is None or self._parcel.step != step:
            own = self._behind(self._own_weights()[self._place(step % self._fragments)], vector_L, step)
            self._parcel = Parcel(step, own, self.share, self._touched_in(vector_L))
        self._heard = self._sending(comm, self._parcel, tell)()

    def _behind(self, begun: torch.Tensor, vector_L: torch.Tensor, step: int) -> torch.Tensor:
        """This worker's weights of the fragment behind the updates of a step, which it has begun with these."""
        return begun - vector_L[self._place(step % self._fragments)] / self.share if self.share else begun

    def _sending(self, comm: Collectives, parcel: Parcel, tell: Callable[[], object]) -> Callable[[], torch.Tensor]:
        """What exchanges it, for the sum of: the way from own to t, weighted; flags by parameter; the weight."""
        fragment = parcel.step % self._fragments
        place, weight = self._place(fragment), self._since[fragment] + parcel.share
        known = parcel.touched | self._touched[fragment]
        flags = parcel.own.new_tensor([float(index in known) for index, _ in self._parts(place)])
        way = weight * (self._shared[place] - parcel.own)
        message = torch.cat([way, flags, parcel.own.new_tensor([weight])])

        def send() -> torch.Tensor:
            tell()
            return sum_over(comm, message)

        return send

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, step: int, *, are_finite: bool
    ) -> tuple[torch.Tensor, bool]:
        """See `Keeping`. All have the same in the step's fragment only."""
        share, touched = self.share, self._touched_in(vector_L)
        parcel, told = self._parcel, self._heard
        self._parcel = self._heard = None
        if not are_finite:
            self._pending = Pending(step, sum_over(comm, vector_L), share, touched, None)
            return self._pending.total, False
        fragment = step % self._fragments
        place = self._place(fragment)
        begun = self._own_weights()[place]
        own = self._behind(begun, vector_L, step)
        if parcel is None or told is None:
            parcel = Parcel(step, own, share, touched)
            told = self._sending(comm, parcel, lambda: None)()
        total, weights = self._of_own(vector_L, self.whole), float(told[-1])
        if not is_finite(told) or not weights or not self.whole:
            self._pending = Pending(step, total, share, touched, None)
            return total, is_finite(told)
        since = own - parcel.own
        before = self._shared[place], self._momentum[place]
        momentum = before[1].clone() if self._outer.momentum else None
        shared = before[0] - self._outer.lr * self._outer.direction(told[: len(since)] / weights, momentum)
        changed = (begun - (torch.lerp(shared, parcel.own, self._mix) + since)) * self.whole
        for (index, part), flag in zip(self._parts(place), told[len(since) : -1].tolist(), strict=True):
            if flag:
                total[place][part] = changed[part]
                self._flags(total)[index] = self.whole
            else:  # nobody had trained it: it stays where it is
                shared[part] = before[0][part]
                if momentum is not None:
                    momentum[part] = before[1][part]
        exchanged = Fragment(fragment, place, shared, momentum, since, parcel.share, self.whole)
        self._pending = Pending(step, total, share, touched, exchanged)
        return total, True

    def _flags(self, vector_L: torch.Tensor) -> torch.Tensor:
        """Of a vector, by parameter: whether it had a gradient."""
        return vector_L[self.flat.flags.start :][: self.flat.flags.numel]

    def _touched_in(self, vector_L: torch.Tensor) -> set[int]:
        """Parameters that have a gradient in a vector."""
        return {index for index, flag in enumerate(self._flags(vector_L).tolist()) if flag}

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
            rest = pending.share - fragment.share
            self._since[fragment.index] = rest
            self._touched[fragment.index] = set(pending.touched) if rest else set()
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
            way[pending.fragment.place] = pending.fragment.since
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
        self._is_settled, self.is_disturbed, self._told = True, False, {}
        self._pending = self._parcel = None
        self._learned, self._since = 0.0, [0.0] * self._fragments
        for one in self._touched:
            one.clear()

    def state_dict(self) -> dict[str, Any]:
        """See `Keeping`. Another number of fragments goes on with it."""
        state: dict[str, Any] = {"shared": self._shared, "momentum": self._momentum}
        return state if self._flat is None else {**state, "pieces": layout_of_flat(self.flat).table}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Keeping`. Of parameters of which it tells nothing, all share the weights that were saved."""
        shared, momentum = (state[name].to(self._shared) for name in ("shared", "momentum"))
        now = layout_of_flat(self.flat)
        before = layout_of_table(state["pieces"]) if "pieces" in state else now
        if before.table != now.table:
            saved, (shared, momentum) = (shared, momentum), (self._own_weights(), torch.zeros_like(self._momentum))
            carry_over(saved[0], before.parameters, shared, now.parameters)
            left = carry_over(saved[1], before.parameters, momentum, now.parameters)
            self.dropped = left / float(torch.linalg.vector_norm(saved[1])) if left else 0.0
        if shared.shape == self._shared.shape:
            self._shared, self._momentum, self._is_loaded = shared, momentum, True
        else:
            self.dropped = float(momentum.any())
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
