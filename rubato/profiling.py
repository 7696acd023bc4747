"""How long the parts of a step take on this machine, layer by layer: what the planner predicts from.

A process of its own trains a few steps with passes of one size (`python -m rubato.profiling`, a request on its standard
input), and says on its standard output what it saw. `planner.measured` puts several sizes together.

A *layer* is a module with parameters of its own; of modules around layers only what goes in and out is looked at. The
clock runs through a pass from layer to layer, so that what lies between two of them (activations, the loss) counts for
the one before it on the way forward, and for the one behind it on the way back. On a GPU every look at the clock waits
for the device.

One more pass, whose time does not count, tells what it keeps for its way back.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TextIO

import torch
from torch import nn

from rubato.activations import DeviceMemory, SavedTensors, follow
from rubato.data.randomness import seed_all
from rubato.data.source import Source
from rubato.engine.aggregation import compressor_of, layout_of_flat
from rubato.engine.control import Control
from rubato.engine.flat import FlatLayout
from rubato.engine.replicas import OptimizerPlace
from rubato.engine.session import Session
from rubato.engine.state import TrainingState
from rubato.engine.step import Step
from rubato.errors import UserError
from rubato.planner.measured import Passes, Seen, codec_settings
from rubato.planner.methods import merges
from rubato.planner.profile import MAX_SPREAD
from rubato.program import load_entrypoint, prepare_torch
from rubato.run import Run
from rubato.strategies.compressor import Compressor, Piecewise
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Alone, Collectives
from rubato.strategies.selection import INDEX, pack
from rubato.wire import worker as wire
from rubato.wire.aggregation import CORRECTED, AggregationSpec, CompressionSpec, Method
from rubato.wire.batch import BatchSpec
from rubato.wire.codec import to_json
from rubato.wire.local_updates import LocalUpdatesSpec
from rubato.wire.spec import JobSpec, WorkersSpec, parse_spec, spec_to_json

WARM_STEPS, MEASURED_STEPS = 2, 7
CODEC_ROUNDS = 3
MERGED = 4
"""Workers whose lists are merged."""
CODECS: tuple[Method, ...] = (
    "fp16",
    "bf16",
    "powersgd",
    "topk",
    "gtopk",
    "onebit",
    "sketch",
    "sketched_sgd",
)


class _Enough(BaseException):
    """All steps are measured: out of the user's loop, past what catches exceptions there."""


class _Control(Control):
    """Nobody leads."""

    def say(self, message: wire.Message) -> None:
        """Nobody listens."""
        if isinstance(message, wire.Committed):
            self.rows.clear()


class Stopwatch:
    """Times of the layers of one pass at a time."""

    def __init__(self, models: dict[str, nn.Module], device: torch.device) -> None:
        self._device = device
        self.shapes: dict[str, tuple[tuple[int, ...], ...]] = {}
        self.order: list[str] = []
        """Layers as a forward pass comes by."""
        self.widths: dict[str, tuple[int, int]] = {}
        """Elements that come into a layer and go out, of a whole pass; 0 for what is not one tensor."""
        self.around: dict[str, tuple[int, int]] = {}
        """The same of modules with layers in them."""
        self.types: dict[str, tuple[int, int]] = {}
        """Bytes of an element that comes into a layer or such a module, and of one that goes out."""
        self._last = 0.0
        self._layer = ""
        self._times: dict[tuple[str, str], float] = {}
        seen: set[int] = set()
        for prefix, model in models.items():
            for name, module in model.named_modules(prefix=prefix):
                own = [one for one in module.parameters(recurse=False) if one.requires_grad and id(one) not in seen]
                if not own:
                    if name and any(True for _ in module.parameters()):
                        module.register_forward_hook(self._went_through(name))
                    continue
                seen.update(map(id, own))
                self.shapes[name] = tuple(tuple(one.shape) for one in own)
                module.register_forward_hook(self._passed(name))
                for one in own:
                    one.register_post_accumulate_grad_hook(self._accumulated(name))

    def now(self) -> float:
        """Seconds; what was asked of the device is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def begin(self) -> None:
        """A pass begins."""
        self._times, self._last, self._layer = {}, self.now(), ""

    def turn(self) -> None:
        """The way back begins: what was between the last layer and the loss counts for that layer."""
        if self._layer:
            self._credit("forward", self._layer)
        self._layer = ""

    def end(self) -> dict[tuple[str, str], float]:
        """The pass is over. By direction and layer, seconds."""
        if self._layer:
            self._credit("backward", self._layer)
        return self._times

    def _passed(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if name not in self.order:
                self.order.append(name)
                self.widths[name] = _elements(*inputs), _elements(output)
                self.types[name] = _element_bytes(*inputs), _element_bytes(output)
            self._credit("forward", name)

        return hook

    def _went_through(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            self.around.setdefault(name, (_elements(*inputs), _elements(output)))
            self.types.setdefault(name, (_element_bytes(*inputs), _element_bytes(output)))

        return hook

    def _accumulated(self, name: str) -> Callable[..., None]:
        return lambda *_: self._credit("backward", name)

    def _credit(self, direction: str, name: str) -> None:
        now = self.now()
        self._times[direction, name] = self._times.get((direction, name), 0.0) + now - self._last
        self._last, self._layer = now, name


class _ProfiledStep(Step):
    """One step, watched.

    Args:    is_timed: else what its pass keeps is counted instead.
    """

    def __init__(self, session: Session, source: Source, scaler: Any, watch: Stopwatch, *, is_timed: bool) -> None:
        super().__init__(session, source, scaler)
        self._watch, self.is_timed = watch, is_timed
        self._kept: SavedTensors | DeviceMemory | None = None
        self.times: dict[tuple[str, str], float] = {}
        self.kept_bytes = 0
        self.reduced_at = 0.0

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            if not self.is_timed:
                with follow(self._session.device, self._session.state.models.values(), batch) as self._kept:
                    yield batch
                self.kept_bytes = self._kept.most_bytes
                continue
            self._watch.begin()
            yield batch
            self.times = self._watch.end()
        self.reduced_at = self._watch.now()

    def backward(self, loss: torch.Tensor, *, weight: float | None = None) -> None:
        """See `Step`."""
        if self._kept is None:
            self._watch.turn()
        else:
            self._kept.turn()
        super().backward(loss, weight=weight)


class _ProfiledRun(Run):
    """A run that ends when enough steps are measured."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.passes: list[dict[tuple[str, str], float]] = []
        self.updates_s: list[float] = []
        self.watch: Stopwatch | None = None
        self.kept_bytes: int | None = None
        """By a pass for its way back; None: not counted yet."""

    @property
    def is_timed(self) -> bool:
        """Whether enough passes are."""
        return len(self.passes) == MEASURED_STEPS

    def _go_through(self, source: Source, scaler: Any) -> Iterator[Step]:
        session = self._session
        self.watch = watch = Stopwatch(session.state.models, session.device)
        while session.step < session.total_steps:
            step = _ProfiledStep(session, source, scaler, watch, is_timed=not self.is_timed)
            self._step = step
            yield step
            step.check_reduced()
            ended = watch.now()
            if not step.is_timed:
                self.kept_bytes = step.kept_bytes
                raise _Enough
            if step.index >= WARM_STEPS:
                self.passes.append(step.times)
                self.updates_s.append(ended - step.reduced_at)
            session.commit(self._row(step, 1.0))


def measure(spec: JobSpec, samples: int, *, with_codecs: bool) -> Passes:
    """Train a few steps with passes of so many samples, in this process.

    Raises:  UserError: the program ends before enough steps are seen.  Whatever the program raises.
    """
    compression = spec.aggregation.compression
    batch, workers = BatchSpec(samples, 1), WorkersSpec(initial=1, min=1, max=1)
    spec = replace(spec, batch=batch, workers=workers, aggregation=AggregationSpec(), local_updates=LocalUpdatesSpec())
    device = prepare_torch(spec)
    start = wire.Start(1, "profile", "w1.1", "1.1", spec_to_json(spec), "127.0.0.1", "")
    train, code = load_entrypoint(spec)
    session = Session(_Control(start), spec, device, start.host, code.digest)
    run = _ProfiledRun(session)
    seed_all(spec.seed, "setup")
    try:
        train(run)
    except _Enough:
        pass
    except RuntimeError:
        if not run.is_timed:  # else autograd cannot tell what it saves, as inside of torch.func
            raise
    if not run.is_timed:
        raise UserError(
            f"the program ended after {session.step} steps of {samples} samples; {WARM_STEPS + MEASURED_STEPS} are "
            "needed: give it more epochs or steps in config"
        )
    assert run.watch is not None
    _, tensors = session.state.encode()
    flat = session.flat
    layout = layout_of_flat(flat)
    codec_s, merge_s = (
        codecs(layout, compression, spec.seed, flat.empty()) if with_codecs and layout.numel else ({}, {})
    )
    return Passes(
        samples,
        tuple(_layers(run.watch, run.passes, samples)),
        statistics.median(run.updates_s),
        sum(tensor.numel() for _, tensor in flat.parameters),
        sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        device.type,
        codec_s,
        merge_s,
        codec_settings(compression) if codec_s else {},
        {name: tuple(elements // samples for elements in told) for name, told in run.watch.around.items()},
        spread_of([sum(one.values()) for one in run.passes]),
        flat.dtype.itemsize,
        {name: run.watch.types[name] for name in run.watch.around},
        averaged_bytes(session.state),
        run.kept_bytes,
        code.files() if spec.recipe is None else {},
    )


def averaged_bytes(state: TrainingState) -> int:
    """Of the vector in which `local_updates` would tell all of a state, optimizers having made an update.

    What `engine.replicas` finds out with a copy of them is there already.
    """
    kept = [
        OptimizerPlace(str(key), optimizer, parameter, key, value.to("meta"), value.device)
        for optimizer in state.optimizers.values()
        for parameter, held in optimizer.state.items()
        for key, value in held.items()
        if isinstance(value, torch.Tensor) and parameter.requires_grad
    ]
    plain = [one for one in kept if one.own.layout is torch.strided and not one.own.is_complex()]
    layout = FlatLayout(state.named_parameters(), [*state.buffers, *plain])
    return layout.length * layout.dtype.itemsize


def spread_of(times: Sequence[float]) -> float:
    """cv, by the median distance from the median, which for normal times is 0.6745 standard deviations."""
    middle = statistics.median(times)
    return min(MAX_SPREAD, statistics.median(abs(one - middle) for one in times) / 0.6745 / middle) if middle else 0.0


def _elements(*tensors: Any) -> int:
    return tensors[0].numel() if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor) else 0


def _element_bytes(*tensors: Any) -> int:
    """Where it is not one tensor, those of the usual type."""
    is_one = len(tensors) == 1 and isinstance(tensors[0], torch.Tensor)
    return int(tensors[0].element_size()) if is_one else torch.float32.itemsize


def _layers(watch: Stopwatch, passes: Sequence[dict[tuple[str, str], float]], samples: int) -> Iterator[Seen]:
    missed = [name for name in watch.shapes if name not in watch.order]
    for name in (*watch.order, *missed):
        forward_s, backward_s = (
            statistics.median(one.get((way, name), 0.0) for one in passes) for way in ("forward", "backward")
        )
        came_in, went_out = (elements // samples for elements in watch.widths.get(name, (0, 0)))
        usual = torch.float32.itemsize
        sizes = watch.types.get(name, (usual, usual))
        yield Seen(name, watch.shapes[name], forward_s, backward_s, came_in, went_out, *sizes)


class Crowd:
    """Rank 0 of several workers, of whom each other one tells a list of entries; what else they tell is zeros.

    Args:    lists: by rank, the list of each, as bytes.
    """

    rank = 0

    def __init__(self, lists: Sequence[torch.Tensor], device: torch.device) -> None:
        self.world, self.device, self._lists = len(lists), device, lists

    def pass_messages(
        self, received: Sequence[tuple[int, torch.Tensor]], sent: Sequence[tuple[int, torch.Tensor]]
    ) -> None:
        """They are there at once."""
        for rank, out in received:
            if out.dtype == torch.uint8 and out.numel() == self._lists[rank].numel():
                out.copy_(self._lists[rank])
            else:
                out.zero_()

    def confirm(self) -> None:
        """They have received it."""

    def all_reduce(self, total: torch.Tensor) -> None:
        """They have zeros."""


def codecs(
    layout: Layout, told: CompressionSpec, seed: int, like: torch.Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """By method, seconds an element that is compressed: to and fro; and to merge another one's list.

    Args:
        told: density, rank, rows, columns and momentum of all methods.
        like: a vector of the layout; its type and device count.
    """
    device = like.device
    generator = torch.Generator(device).manual_seed(seed)
    vector = torch.randn(layout.length, device=device, generator=generator).to(like)
    codec_s: dict[str, float] = {}
    merge_s: dict[str, float] = {}
    for method in CODECS:
        momentum = told.momentum if method in CORRECTED else 0.0
        one = replace(told, method=method, momentum=momentum, warmup_densities=(), start_step=0, on_loss="continue")
        spec = AggregationSpec(compression=one)
        compressor = compressor_of(spec, layout, told.density, [0], seed)
        alone_s = _exchange_s(compressor, Alone(device), vector)
        codec_s[method] = alone_s / layout.numel
        merged = merges(method, MERGED)
        if merged:
            assert isinstance(compressor, Piecewise)
            sent = compressor.compressed_bytes(1, 2, vector.element_size(), 0) or 0
            count = sent // (INDEX.itemsize + vector.element_size())
            lists = [_entries(layout.numel, count, vector, generator) for _ in range(MERGED)]
            crowd_s = _exchange_s(compressor, Crowd(lists, device), vector)
            merge_s[method] = max(0.0, crowd_s - alone_s) / merged / layout.numel
    return codec_s, merge_s


def _entries(numel: int, count: int, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """So many of the compressed elements, as they travel."""
    places = torch.randperm(numel, device=like.device, generator=generator)[:count].sort().values
    return pack(places, torch.randn(count, device=like.device, generator=generator).to(like.dtype))


def _exchange_s(compressor: Compressor, comm: Collectives, vector: torch.Tensor) -> float:
    """Seconds of one."""
    state, times = compressor.start(vector), []
    for number in range(1 + CODEC_ROUNDS):
        began = time.perf_counter()
        _, state = compressor.exchange(comm, vector, state, number)
        if vector.device.type == "cuda":
            torch.cuda.synchronize(vector.device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def main(asked: TextIO = sys.stdin, answer: TextIO = sys.stdout) -> None:
    """Answer one request: a JSON object with `spec`, `samples` and `with_codecs`."""
    request = json.load(asked)
    sys.stdout = sys.stderr  # what the program prints is not the answer
    spec = parse_spec(request["spec"], strict=False)
    try:
        seen = measure(spec, request["samples"], with_codecs=request["with_codecs"])
    except UserError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    json.dump(to_json(seen), answer)


if __name__ == "__main__":
    main()
