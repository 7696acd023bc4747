"""The strategies in the engine: which one a job has, and what a worker keeps of the gradients that it did not tell.

What is kept (see `rubato.strategies.compressor`) belongs to the training state as the weights do, but each worker has
its own, until it is settled (`keeping`): from there to the next step everybody has the sum. Each takes its share of it
when the next step is exchanged, by the members there are then.

What is kept is in the units of the mean gradient, whatever a GradScaler makes of it and whatever the program weighs its
microbatches by. What is kept of a parameter that no
microbatch of a step has touched, and a gradient that is not finite, are left out of the step's exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from rubato.data.order import BatchPlan
from rubato.data.stream import StreamPlan
from rubato.engine.flat import FlatLayout
from rubato.engine.keeping import Keeping, from_row, to_row
from rubato.engine.reduction import is_finite
from rubato.errors import ProtocolError, SpecMismatch
from rubato.strategies.cast import Cast
from rubato.strategies.compressor import OF_OTHERS, WARM, Compressor, State
from rubato.strategies.dense import Dense, Gathering
from rubato.strategies.gtopk import GlobalTopK
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.layout import Layout, Piece, carry_over, end_to_end, layout_of, layout_of_table
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
_MEAN = "mean"
"""Units of what is kept: those of the step's mean gradient."""
MAX_PLACES = 2**31


class Aggregation(Keeping):
    """The gradients' way, of a spec with an `aggregation`."""

    registered = REGISTERED
    what = "what all workers had kept back of the gradients"
    saved = "what the checkpoint had kept of gradients"
    parts_states = False

    def __init__(self, spec: AggregationSpec, seed: int) -> None:
        super().__init__()
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

    def check_optimizers(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """See `Keeping`. Momentum would count twice."""
        if not self.spec.compression.momentum:
            return
        for optimizer in optimizers:
            if any(group.get("momentum") or group.get("betas") for group in optimizer.param_groups):
                raise SpecMismatch(
                    "aggregation.compression.momentum gathers momentum before the exchange, and "
                    f"{type(optimizer).__name__} would once more behind it: use SGD without momentum, or leave "
                    "compression.momentum out"
                )

    def prepare(self, flat: FlatLayout, plan: BatchPlan) -> None:
        """See `Keeping`."""
        if self.spec.compression.warmup_densities and isinstance(plan, StreamPlan):
            raise SpecMismatch("a stream has no epochs, and aggregation.compression.warmup_densities are one an epoch")
        method = self.spec.compression.method
        self._flat, self._plan = flat, plan
        self._layout = layout_of_flat(flat)
        if method in PLACED and self._layout.numel >= MAX_PLACES:
            raise SpecMismatch(
                f"aggregation.compression.method: {method} names places among less than 2**31 elements, and the model "
                f"has {self._layout.numel}; use powersgd or onebit"
            )
        self.begin([0], counts=False)
        self._settled = self._fresh()
        self._like = {name: part.to("meta") for name, part in self._settled.items()}

    def begin(self, hosts: Sequence[int], *, counts: bool) -> None:
        """See `Keeping`."""
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
        """See `Keeping`. All take the same."""
        assert self._method is not None
        before = self._present(comm.rank, comm.world)
        if not are_finite:
            self._pending = step, before
            return sum_over(comm, vector_L), False
        factor = self.scale * (self.whole or 1.0)  # of a step in which nothing counts, what was kept may travel
        total, after = self._method.exchange(comm, self._scaled(vector_L, 1 / factor), before, step)
        total = self._scaled(total, factor)
        assert self._flat is not None
        if not is_finite(total[: self._flat.gradients]):
            self._pending = step, before
            return total, False
        self._leave_untouched(total, before, after)
        self._pending = step, after
        return total, True

    def _scaled(self, vector_L: torch.Tensor, factor: float) -> torch.Tensor:
        """With its gradients multiplied; the power of two of a GradScaler changes no digit of them."""
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
        for name in after.keys() & {*self._method.own, OF_OTHERS}:
            for piece in _pieces_of(self._layout, name):
                if piece.name in untouched:
                    after[name][piece.start : piece.stop] = before[name][piece.start : piece.stop]

    def count(self, step: int, *, follows: bool) -> None:
        """See `Keeping`."""
        pending, self._pending = self._pending, None
        self._settled = self._own = None
        if follows:
            return
        if pending is None or pending[0] != step:
            raise ProtocolError(f"step {step} counts, but this worker has not exchanged it")
        self._own = pending[1]

    @property
    def kept(self) -> float:
        """See `Keeping`."""
        after = {} if self._pending is None else self._pending[1]
        return sum(_norm(after[name]) for name in _GRADIENTS if name in after)

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
        """See `Keeping`."""
        return self._settled is not None or not self._like

    def settle(self, comm: Collectives) -> torch.Tensor:
        """See `Keeping`."""
        assert self._method is not None
        assert self._own is not None
        settled = self._method.settle(comm, self._own)
        return to_row([settled[name] for name in sorted(settled)])

    def take(self, row: torch.Tensor) -> None:
        """See `Keeping`."""
        names = sorted(self._like)
        parts = from_row(row, [self._like[name] for name in names])
        self._settled = {name: self._here(part) for name, part in zip(names, parts, strict=True)}
        self._own, self.is_disturbed, self._told = None, False, {}

    def state_dict(self) -> dict[str, Any]:
        """See `Keeping`. Of which parameters it is, is told with it."""
        state: dict[str, Any] = {"settled": None if self._settled is None else dict(self._settled), "unit": _MEAN}
        if self._settled:
            assert self._layout is not None
            state["pieces"] = self._layout.table
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Keeping`."""
        self._settled = self._own = self._pending = None
        self._told = {}
        if state["settled"] is not None:
            self._settled, self.dropped = self._fitting(state)

    def _fitting(self, state: dict[str, Any]) -> tuple[State, float]:
        """What this method goes on with, of a saved state that has something settled; and the share that it drops."""
        assert self._layout is not None
        saved, settled = state["settled"], self._fresh()
        # Older releases tell of no parameters: those of now, where their number of elements agrees.
        before = layout_of_table(state["pieces"]) if "pieces" in state else self._layout
        names = saved.keys() - WARM
        is_like = names == settled.keys() - WARM and all(
            len(saved[name]) == sum(piece.numel for piece in _pieces_of(before, name)) for name in names
        )
        if not is_like or state.get("unit") != _MEAN:  # in the first checkpoints it was the sum's
            return settled, float(keeps_something(state))
        dropped = whole = 0.0
        for name in sorted(names):
            pieces = _pieces_of(before, name), _pieces_of(self._layout, name)
            dropped += carry_over(saved[name], pieces[0], settled[name], pieces[1])
            whole += _norm(saved[name])
        for name in settled.keys() & saved.keys() & WARM:
            if before.table == self._layout.table and saved[name].shape == settled[name].shape:
                settled[name].copy_(saved[name])
        return settled, dropped / whole if dropped else 0.0

    def resume(self) -> None:
        """See `Keeping`. Where it tells nothing of what is kept, its method kept nothing."""
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
    return any(part.any() for name, part in (state["settled"] or {}).items() if name not in WARM)


def layout_of_flat(flat: FlatLayout) -> Layout:
    """What of a model's vector is compressed."""
    parameters = zip(flat.parameters, flat.pieces, strict=False)
    return layout_of(flat.length, [(name, one.start, tuple(one.shape)) for (name, _), one in parameters])


def _pieces_of(layout: Layout, name: str) -> list[Piece]:
    """Where they are in a part of what is kept, which has this name."""
    return end_to_end(layout.others if name == OF_OTHERS else layout.pieces)


def _norm(part: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(part))


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
