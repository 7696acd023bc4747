"""The strategies in the engine: which one a job has, and what a worker keeps of the gradients that it did not tell.

What is kept (see `rubato.strategies.compressor`) belongs to the training state as the weights do, but each worker has
its own. So it is in one of two forms:

    own        from a step to the next: what follows from a step's exchange is *pending* until the step counts, and is
               dropped where it does not. Whoever counts a step has heard of all members that they have what follows
    settled    at a boundary where members come or go, or the state is saved, all tell each other what they keep: from
               here to the next step everybody has the sum, which is saved, compared and given to joiners as other
               states are. Each takes its share of it when the next step is exchanged, by the members there are then

A worker that is lost between two steps takes along what it kept; one that is lost behind a settlement takes nothing.

What is kept is in the units of the gradients, whatever a GradScaler makes of them. What is kept of a parameter that no
microbatch of a step has touched, and a gradient that is not finite, are left out of the step's exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any

import torch

from rubato.data.order import BatchPlan
from rubato.data.stream import StreamPlan
from rubato.engine.entry import Key
from rubato.engine.flat import FlatLayout
from rubato.engine.reduction import is_finite
from rubato.errors import ModelError, ProtocolError
from rubato.strategies.cast import Cast
from rubato.strategies.compressor import OF_OTHERS, Compressor, State
from rubato.strategies.dense import Dense, Gathering
from rubato.strategies.gtopk import GlobalTopK
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.layout import Layout, Piece, layout_of
from rubato.strategies.onebit import OneBit
from rubato.strategies.peers import Collectives
from rubato.strategies.powersgd import PowerSGD
from rubato.strategies.sketch import Sketch
from rubato.strategies.stages import Stages
from rubato.strategies.sums import sum_over
from rubato.strategies.threshold import Threshold
from rubato.strategies.topk import TopK
from rubato.wire.aggregation import PLACED, AggregationSpec

REGISTERED = "rubato.aggregation"
"""The name of what is kept, in the training state."""
_GRADIENTS = ("residual", "stripe")
"""Parts of it that are gradients, in their units."""
MAX_PLACES = 2**31


class Aggregation:
    """How one worker's part of each step becomes the sum of all, for a job whose spec says how."""

    def __init__(self, spec: AggregationSpec, seed: int) -> None:
        self.spec = spec
        self._seed = seed
        self._flat: FlatLayout | None = None
        self._layout: Layout | None = None
        self._plan: BatchPlan | None = None
        self._method: Compressor | None = None
        self._like: State = {}
        """What is kept, as its shapes and types: without memory."""
        self._settled: State | None = None
        self._own: State | None = None
        self._pending: tuple[int, State] | None = None
        self._told: dict[str, float] = {}
        """By incarnation, the norm of what each worker keeps."""
        self.settling: Key | None = None
        """The exchange in which what is kept is settled, while that is under way."""
        self.has_dropped = False
        """Whether a checkpoint had something of another method, which is not told yet."""
        self.is_disturbed = False
        """Whether members were lost, or moved, since what is kept was shared out."""
        self.scale = 1.0
        """What a GradScaler has multiplied the gradients of the present step by; equal on all workers."""

    def check_optimizers(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Raises:  ModelError: momentum would count twice."""
        if not self.spec.compression.momentum:
            return
        for optimizer in optimizers:
            if any(group.get("momentum") or group.get("betas") for group in optimizer.param_groups):
                raise ModelError(
                    "aggregation.compression.momentum gathers momentum before the exchange, and "
                    f"{type(optimizer).__name__} would once more behind it: use SGD without momentum, or leave "
                    "compression.momentum out"
                )

    def prepare(self, flat: FlatLayout, plan: BatchPlan) -> None:
        """Training is about to begin, with this model.

        Raises:  ModelError: the method does not suit it.
        """
        if self.spec.compression.warmup_densities and isinstance(plan, StreamPlan):
            raise ModelError("a stream has no epochs, and aggregation.compression.warmup_densities are one an epoch")
        method = self.spec.compression.method
        self._flat, self._plan = flat, plan
        self._layout = layout_of_flat(flat)
        if method in PLACED and self._layout.numel >= MAX_PLACES:
            raise ModelError(
                f"{method} names places among less than 2**31 elements, and the model has {self._layout.numel}; "
                "use powersgd or onebit"
            )
        self.begin([0], counts=False)
        self._settled = self._fresh()
        self._like = {name: part.to("meta") for name, part in self._settled.items()}

    def begin(self, hosts: Sequence[int], *, counts: bool) -> None:
        """A generation begins, whose members are on these machines.

        Members that go on with what each has of its own were not brought here by a settlement. Some may not have
        counted yet the step that it follows from.

        Args:    counts: the present step was exchanged before, as this worker was told.
        """
        assert self._layout is not None
        assert self._plan is not None
        self._method = _method_of(self.spec, self._layout, self._plan, hosts, self._seed)
        self.is_disturbed = self._own is not None or counts

    def _fresh(self) -> State:
        """What is kept before the first step."""
        assert self._method is not None
        assert self._flat is not None
        return self._method.start(self._flat.empty())

    # --- a step -------------------------------------------------------------------------------------------------------

    def exchange(
        self, comm: Collectives, vector_L: torch.Tensor, step: int, *, are_finite: bool
    ) -> tuple[torch.Tensor, bool]:
        """What all take for the sum of their vectors (L,), a new one; it may be asked again for the same step.

        Args:    are_finite: whether all workers' are: else they are added up as they are, and nothing is kept of them.
        Returns: it, and whether its gradients are finite.
        Raises:  GenerationLost: a member was lost.
        """
        assert self._method is not None
        before = self._present(comm.rank, comm.world)
        if not are_finite:
            self._pending = step, before
            return sum_over(comm, vector_L), False
        total, after = self._method.exchange(comm, self._scaled(vector_L, 1 / self.scale), before, step)
        total = self._scaled(total, self.scale)
        assert self._flat is not None
        if not is_finite(total[: self._flat.gradients]):
            self._pending = step, before
            return total, False
        self._leave_untouched(total, before, after)
        self._pending = step, after
        return total, True

    def _scaled(self, vector_L: torch.Tensor, factor: float) -> torch.Tensor:
        """With its gradients multiplied; by a power of two that changes no digit of them."""
        if factor == 1.0:
            return vector_L
        assert self._flat is not None
        scaled = vector_L.clone()
        scaled[: self._flat.gradients] *= factor
        return scaled

    def _leave_untouched(self, total: torch.Tensor, before: State, after: State) -> None:
        """Parameters that nobody has touched get no gradient in this step: so what is kept of them stays as it was."""
        assert self._method is not None
        assert self._flat is not None
        assert self._layout is not None
        untouched = self._flat.untouched(total)
        if not untouched:
            return
        parts = [(self._layout.pieces, name) for name in self._method.own if name in after]
        for pieces, name in [*parts, *([(self._layout.others, OF_OTHERS)] if OF_OTHERS in after else [])]:
            for place in _places_of(pieces, untouched):
                after[name][place] = before[name][place]

    def hear(self, told: Mapping[str, float]) -> None:
        """By incarnation, the norm of what each worker keeps if the step counts that was exchanged last."""
        self._told = dict(told)

    def count(self, step: int, *, follows: bool) -> None:
        """The step counts: what follows from its exchange is kept.

        Args:    follows: this worker joins, took no part in the exchange, and keeps nothing yet.
        Raises:  ProtocolError: it took no part, but should have.
        """
        pending, self._pending = self._pending, None
        self._settled = self._own = None
        if follows:
            return
        if pending is None or pending[0] != step:
            raise ProtocolError(f"step {step} counts, but this worker has not exchanged it")
        self._own = pending[1]

    @property
    def kept(self) -> float:
        """Norm of the gradients that this worker keeps of its own if the step counts that it has exchanged."""
        after = {} if self._pending is None else self._pending[1]
        return norm(float(torch.linalg.vector_norm(after[name])) for name in _GRADIENTS if name in after)

    def lost(self, incarnations: Collection[str]) -> tuple[float, float]:
        """What is kept by others than these no more, once: its norm, and the share of it in what all kept."""
        gone = norm(self._told.pop(one) for one in set(self._told).difference(incarnations))
        whole = norm([gone, *self._told.values()])
        return gone, gone**2 / whole**2 if whole else 0.0

    def _present(self, rank: int, world: int) -> State:
        if self._own is not None:
            return self._own
        if not self._like:
            return {}
        if self._settled is None:
            raise ProtocolError("a worker that has not heard what is kept takes part in an exchange")
        assert self._method is not None
        return self._method.adopt(self._settled, rank, world)

    # --- settling -----------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """Whether all know what they keep together, or the method keeps nothing; equal on all members."""
        return self._settled is not None or not self._like

    def settle(self, comm: Collectives) -> torch.Tensor:
        """What all keep together; changes nothing.

        Returns: float64 (n,), equal on all: the bytes of it, for `take`.
        Raises:  GenerationLost: a member was lost.
        """
        assert self._method is not None
        assert self._own is not None
        settled = self._method.settle(comm, self._own)
        parts = [settled[name].detach().cpu().contiguous().view(-1).view(torch.uint8) for name in sorted(settled)]
        size = sum(map(len, parts))
        return torch.cat([*parts, torch.zeros(-size % 8, dtype=torch.uint8)]).view(torch.float64)

    def take(self, row: torch.Tensor) -> None:
        """From here to the next step, this is what all keep together.

        Args:    row: float64 (n,), as `settle` gave it.
        """
        data, at, found = row.reshape(-1).view(torch.uint8), 0, {}
        for name in sorted(self._like):
            like = self._like[name]
            size = like.numel() * like.element_size()
            found[name] = self._here(data[at : at + size].clone().view(like.dtype).view(like.shape))
            at += size
        self._settled, self._own, self.is_disturbed = found, None, False
        self._told = {}

    def state_dict(self) -> dict[str, Any]:
        """What all keep together, where they know it."""
        return {"settled": None if self._settled is None else dict(self._settled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over. What another method has kept is dropped: a job may go on with another."""
        settled, shapes = state["settled"], {name: part.shape for name, part in self._like.items()}
        if settled is not None and {name: part.shape for name, part in settled.items()} != shapes:
            self.has_dropped = keeps_something(state)
            settled = self._fresh()
        if settled is not None:
            settled = {name: self._here(part).to(self._like[name].dtype) for name, part in settled.items()}
        self._settled, self._own, self._pending, self._told = settled, None, None, {}

    def resume(self) -> None:
        """The state was that of a checkpoint. Where it tells nothing of what is kept, its method kept nothing."""
        if self._settled is None:
            self._settled = self._fresh()

    def _here(self, part: torch.Tensor) -> torch.Tensor:
        """On the device of the training."""
        assert self._flat is not None
        return part.to(self._flat.device)


def aggregation_of(spec: AggregationSpec, seed: int) -> Aggregation | None:
    """None: the engine's own reduction does it."""
    return None if spec.is_default else Aggregation(spec, seed)


def keeps_something(state: Mapping[str, Any]) -> bool:
    """Whether a saved state of an aggregation has any gradients."""
    return any(part.any() for name, part in (state["settled"] or {}).items() if name != "q")


def norm(parts: Iterable[float]) -> float:
    """Of vectors with these norms that stand one behind the other."""
    return sqrt(sum(part * part for part in parts))


def layout_of_flat(flat: FlatLayout) -> Layout:
    """What of a model's vector is compressed."""
    parameters = zip(flat.parameters, flat.pieces, strict=False)
    return layout_of(flat.length, [(name, one.start, tuple(one.shape)) for (name, _), one in parameters])


def _places_of(pieces: Sequence[Piece], names: Collection[str]) -> Iterator[slice]:
    """Where some of the pieces are, when all stand one behind the other."""
    at = 0
    for piece in pieces:
        if piece.name in names:
            yield slice(at, at + piece.numel)
        at += piece.numel


def _method_of(spec: AggregationSpec, layout: Layout, plan: BatchPlan, hosts: Sequence[int], seed: int) -> Compressor:
    """The method of a job in one generation."""
    told = spec.compression
    densities = (*told.warmup_densities, told.density)
    methods: list[Compressor] = [compressor_of(spec, layout, density, hosts, seed) for density in densities]
    if len(methods) == 1 and not told.start_step:
        return methods[0]
    last = len(densities)
    whole = Gathering(layout, told.momentum) if told.momentum else Dense(layout)

    def stage_of(step: int) -> int:
        return 0 if step < told.start_step else min(plan.epoch_of(step) + 1, last)

    return Stages([whole, *methods], stage_of)


def compressor_of(spec: AggregationSpec, layout: Layout, density: float, hosts: Sequence[int], seed: int) -> Compressor:
    """The method that a spec names, for one generation.

    Args:    hosts: by rank, a number for the machine it is on.
    """
    told = spec.compression
    match told.method:
        case "none":
            return Dense(layout, "direct" if spec.algorithm == "auto" else spec.algorithm, spec.servers)
        case "fp16":
            return Cast(layout, torch.float16)
        case "bf16":
            return Cast(layout, torch.bfloat16)
        case "powersgd":
            return PowerSGD(layout, told.rank, seed)
        case "topk":
            return TopK(layout, density, told.momentum)
        case "gtopk":
            return GlobalTopK(layout, density)
        case "hierarchical_topk":
            return HierarchicalTopK(layout, density, hosts)
        case "onebit":
            return OneBit(layout)
        case "threshold":
            return Threshold(layout, told.threshold)
        case "sketch" | "sketched_sgd":
            return Sketch(
                layout,
                density,
                rows=told.rows,
                columns=None if told.columns == "auto" else told.columns,
                momentum=told.momentum,
                seed=seed,
                is_central=told.method == "sketched_sgd",
                pattern="tree" if spec.algorithm == "auto" else spec.algorithm,
            )
