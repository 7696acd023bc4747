"""How long the parts of a step take on this machine, layer by layer: what the planner predicts from.

A process of its own trains a few steps with passes of one size (`python -m rubato.profiling`, a request on its standard
input), and says on its standard output what it saw. `planner.measured` puts several sizes together.

A *layer* is a module with parameters of its own. The clock runs through a pass from layer to layer, so that what lies
between two of them (activations, the loss) counts for the one before it on the way forward, and for the one behind it
on the way back. On a GPU every look at the clock waits for the device.
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

from rubato.data.randomness import seed_all
from rubato.data.source import Source
from rubato.engine.aggregation import compressor_of, layout_of_flat
from rubato.engine.control import Control
from rubato.engine.session import Session
from rubato.engine.step import Step
from rubato.errors import UserError
from rubato.planner.measured import Passes, Seen
from rubato.program import load_entrypoint, prepare_torch
from rubato.run import Run
from rubato.strategies.layout import Layout
from rubato.strategies.peers import Alone
from rubato.wire import worker as wire
from rubato.wire.aggregation import AggregationSpec, CompressionSpec, Method
from rubato.wire.batch import BatchSpec
from rubato.wire.codec import to_json
from rubato.wire.local_updates import LocalUpdatesSpec
from rubato.wire.spec import JobSpec, WorkersSpec, parse_spec, spec_to_json

WARM_STEPS, MEASURED_STEPS = 2, 7
CODEC_ROUNDS = 3
CODECS: tuple[Method, ...] = (
    "fp16",
    "bf16",
    "powersgd",
    "topk",
    "gtopk",
    "threshold",
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
        self._last = 0.0
        self._layer = ""
        self._times: dict[tuple[str, str], float] = {}
        seen: set[int] = set()
        for prefix, model in models.items():
            for name, module in model.named_modules(prefix=prefix):
                own = [one for one in module.parameters(recurse=False) if one.requires_grad and id(one) not in seen]
                if not own:
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
            self._credit("forward", name)

        return hook

    def _accumulated(self, name: str) -> Callable[..., None]:
        return lambda *_: self._credit("backward", name)

    def _credit(self, direction: str, name: str) -> None:
        now = self.now()
        self._times[direction, name] = self._times.get((direction, name), 0.0) + now - self._last
        self._last, self._layer = now, name


class _ProfiledStep(Step):
    """One step, watched."""

    def __init__(self, session: Session, source: Source, scaler: Any, watch: Stopwatch) -> None:
        super().__init__(session, source, scaler)
        self._watch = watch
        self.times: dict[tuple[str, str], float] = {}
        self.reduced_at = 0.0

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self._watch.begin()
            yield batch
            self.times = self._watch.end()
        self.reduced_at = self._watch.now()

    def backward(self, loss: torch.Tensor, *, weight: float | None = None) -> None:
        """See `Step`."""
        self._watch.turn()
        super().backward(loss, weight=weight)


class _ProfiledRun(Run):
    """A run that ends when enough steps are measured."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.passes: list[dict[tuple[str, str], float]] = []
        self.updates_s: list[float] = []
        self.watch: Stopwatch | None = None

    def _go_through(self, source: Source, scaler: Any) -> Iterator[Step]:
        session = self._session
        self.watch = watch = Stopwatch(session.state.models, session.device)
        while session.step < session.total_steps:
            step = _ProfiledStep(session, source, scaler, watch)
            self._step = step
            yield step
            step.check_reduced()
            ended = watch.now()
            if step.index >= WARM_STEPS:
                self.passes.append(step.times)
                self.updates_s.append(ended - step.reduced_at)
            if len(self.passes) == MEASURED_STEPS:
                raise _Enough
            session.commit(self._row(step, 1.0))


def measure(spec: JobSpec, samples: int, *, with_codecs: bool) -> Passes:
    """Train a few steps with passes of so many samples, in this process.

    Raises:  UserError: the program ends before enough steps are seen.  Whatever the program raises.
    """
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
    else:
        raise UserError(
            f"the program ended after {session.step} steps of {samples} samples; {WARM_STEPS + MEASURED_STEPS} are "
            "needed: give it more epochs or steps in config"
        )
    assert run.watch is not None
    _, tensors = session.state.encode()
    flat = session.flat
    return Passes(
        samples,
        tuple(_layers(run.watch, run.passes, samples)),
        statistics.median(run.updates_s),
        sum(tensor.numel() for _, tensor in flat.parameters),
        sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        device.type,
        codecs(layout_of_flat(flat), spec.seed, device) if with_codecs else {},
    )


def _elements(*tensors: Any) -> int:
    return tensors[0].numel() if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor) else 0


def _layers(watch: Stopwatch, passes: Sequence[dict[tuple[str, str], float]], samples: int) -> Iterator[Seen]:
    missed = [name for name in watch.shapes if name not in watch.order]
    for name in (*watch.order, *missed):
        forward_s, backward_s = (
            statistics.median(one.get((way, name), 0.0) for one in passes) for way in ("forward", "backward")
        )
        came_in, went_out = (elements // samples for elements in watch.widths.get(name, (0, 0)))
        yield Seen(name, watch.shapes[name], forward_s, backward_s, came_in, went_out)


def codecs(layout: Layout, seed: int, device: torch.device) -> dict[str, float]:
    """By method, seconds an element that is compressed: into what travels and back, on this device."""
    if not layout.numel:
        return {}
    vector = torch.randn(layout.length, device=device, generator=torch.Generator(device).manual_seed(seed))
    found: dict[str, float] = {}
    for method in CODECS:
        spec = AggregationSpec(compression=CompressionSpec(method))
        compressor = compressor_of(spec, layout, spec.compression.density, [0], seed)
        state, times = compressor.start(vector), []
        for number in range(1 + CODEC_ROUNDS):
            began = time.perf_counter()
            _, state = compressor.exchange(Alone(device), vector, state, number)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times.append(time.perf_counter() - began)
        found[method] = min(times[1:]) / layout.numel
    return found


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
