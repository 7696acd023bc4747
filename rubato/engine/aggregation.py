"""The strategies in the engine: which one a job has, and what a worker keeps of the gradients that it did not tell.

What is kept (see `rubato.strategies.compressor`) belongs to the training state as the weights do, but each worker has
its own. So it is in one of two forms:

    own        from a step to the next: what follows from a step's exchange is *pending* until the step counts, and is
               dropped where it does not. Whoever counts a step has heard of all members that they have what follows
    settled    at a boundary where members come or go, or the state is saved, all tell each other what they keep: from
               here to the next step everybody has the sum, which is saved, compared and given to joiners as other
               states are. Each takes its share of it when the next step is exchanged, by the members there are then

A worker that is lost between two steps takes along what it kept; one that is lost behind a settlement takes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import torch

from rubato.data.order import BatchPlan
from rubato.data.stream import StreamPlan
from rubato.engine.entry import Key
from rubato.engine.flat import FlatLayout
from rubato.engine.state import OPTIONAL
from rubato.errors import ModelError, ProtocolError
from rubato.strategies.cast import Cast
from rubato.strategies.compressor import Compressor, State
from rubato.strategies.dense import Dense
from rubato.strategies.gtopk import GlobalTopK
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.layout import Layout, layout_of
from rubato.strategies.onebit import OneBit
from rubato.strategies.peers import Collectives
from rubato.strategies.powersgd import PowerSGD
from rubato.strategies.sketch import Sketch
from rubato.strategies.stages import Stages
from rubato.strategies.sums import sum_over
from rubato.strategies.threshold import Threshold
from rubato.strategies.topk import TopK
from rubato.wire.aggregation import AggregationSpec

(REGISTERED,) = OPTIONAL
"""The name of what is kept, in the training state."""
_GRADIENTS = ("residual", "stripe")
"""Parts of it that are gradients, in their units."""


class Aggregation:
    """How one worker's part of each step becomes the sum of all, for a job whose spec says how."""

    def __init__(self, spec: AggregationSpec, seed: int) -> None:
        self.spec = spec
        self._seed = seed
        self._layout: Layout | None = None
        self._plan: BatchPlan | None = None
        self._method: Compressor | None = None
        self._like: State = {}
        """What is kept, as its shapes and types."""
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
        self._layout = layout_of_flat(flat)
        self._plan = plan
        self.begin([0])
        assert self._method is not None
        self._like = self._settled = self._method.start(flat.empty())

    def begin(self, hosts: Sequence[int]) -> None:
        """A generation begins, whose members are on these machines.

        Members that go on with what each has of its own were not brought here by a settlement.
        """
        assert self._layout is not None
        assert self._plan is not None
        self._method = _method_of(self.spec, self._layout, self._plan, hosts, self._seed)
        self.is_disturbed = self._own is not None

    # --- a step -------------------------------------------------------------------------------------------------------

    def exchange(self, comm: Collectives, vector_L: torch.Tensor, step: int, *, are_finite: bool) -> torch.Tensor:
        """What all take for the sum of their vectors (L,), a new one; it may be asked again for the same step.

        Args:    are_finite: whether all workers' are: else they are added up as they are, and nothing is kept of them.
        Raises:  GenerationLost: a member was lost.
        """
        assert self._method is not None
        before = self._present(comm.rank, comm.world)
        if are_finite:
            total, after = self._method.exchange(comm, vector_L, before, step)
        else:
            total, after = sum_over(comm, vector_L), before
        self._pending = step, after
        return total

    def count(self, step: int, told: Mapping[str, float], *, follows: bool) -> None:
        """The step counts: what follows from its exchange is kept.

        Args:
            told: by incarnation, the norm of what each worker keeps.
            follows: this worker joins, took no part in the exchange, and keeps nothing yet.
        Raises:  ProtocolError: it took no part, but should have.
        """
        pending, self._pending = self._pending, None
        self._settled = self._own = None
        self._told = dict(told)
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
            found[name] = data[at : at + size].clone().view(like.dtype).view(like.shape).to(like.device)
            at += size
        self._settled, self._own, self.is_disturbed = found, None, False

    def state_dict(self) -> dict[str, Any]:
        """What all keep together, where they know it."""
        return {"settled": None if self._settled is None else dict(self._settled)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over. What another method has kept is dropped: a job may go on with another."""
        settled, shapes = state["settled"], {name: part.shape for name, part in self._like.items()}
        if settled is not None and {name: part.shape for name, part in settled.items()} != shapes:
            settled, self.has_dropped = self._like, True
        if settled is not None:
            settled = {name: part.to(self._like[name]) for name, part in settled.items()}
        self._settled, self._own, self._pending = settled, None, None


def aggregation_of(spec: AggregationSpec, seed: int) -> Aggregation | None:
    """None: the engine's own reduction does it."""
    return None if spec.is_default else Aggregation(spec, seed)


def norm(parts: Iterable[float]) -> float:
    """Of vectors with these norms that stand one behind the other."""
    return sqrt(sum(part * part for part in parts))


def layout_of_flat(flat: FlatLayout) -> Layout:
    """What of a model's vector is compressed."""
    parameters = zip(flat.parameters, flat.pieces, strict=False)
    return layout_of(flat.length, [(name, one.start, tuple(one.shape)) for (name, _), one in parameters])


def _method_of(spec: AggregationSpec, layout: Layout, plan: BatchPlan, hosts: Sequence[int], seed: int) -> Compressor:
    """The method of a job in one generation."""
    told = spec.compression
    densities = (*told.warmup_densities, told.density)
    methods: list[Compressor] = [compressor_of(spec, layout, density, hosts, seed) for density in densities]
    if len(methods) == 1 and not told.start_step:
        return methods[0]
    last = len(densities)

    def stage_of(step: int) -> int:
        return 0 if step < told.start_step else min(plan.epoch_of(step) + 1, last)

    return Stages([Dense(layout), *methods], stage_of)


def compressor_of(spec: AggregationSpec, layout: Layout, density: float, hosts: Sequence[int], seed: int) -> Compressor:
    """The method that a spec names, for one generation.

    Args:    hosts: by rank, a number for the machine it is on.
    """
    told = spec.compression
    match told.method:
        case "none":
            return Dense(layout, "direct" if spec.algorithm == "auto" else spec.algorithm)
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
