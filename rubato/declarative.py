"""`rubato.train`: the usual training loop, said in one call instead of written.

train = rubato.train(
    model=lambda run: Net(run.config.get("width", 64)),
    optimizer=lambda run, model: torch.optim.AdamW(model.parameters(), lr=1e-3),
    dataset=train_set,
    loss_fn=torch.nn.functional.cross_entropy,
    evaluate={"accuracy": rubato.Evaluation(test_set, accuracy)},
    epochs=10,
)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from rubato.data.fetch import Collate
from rubato.data.stream import ShardedStream
from rubato.engine.epoch import Epoch
from rubato.engine.step import Step
from rubato.errors import ModelError
from rubato.run import Run

TrainFunction = Callable[[Run], None]
Precision = Literal["float32", "bfloat16", "float16"]
_DTYPES: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Evaluation:
    """A value to watch: the mean of a function over a dataset.

    Args:
        dataset: map-style.
        fn: `fn(output, target)`, where the last part of a batch is the target; returns the mean over the batch.
        batch: samples in one call.
    """

    dataset: Any
    fn: Callable[[Any, Any], Any]
    batch: int = 256


class Callback:
    """What a program does besides; override what is needed. Every worker calls it, so all must do the same."""

    def on_start(self, run: Run, model: nn.Module) -> None:
        """Model and optimizer are there; what influences training is registered here."""

    def on_step(self, run: Run, step: Step, model: nn.Module) -> None:
        """The optimizer has updated the model. `run.log` adds to this step's row."""

    def on_epoch(self, run: Run, epoch: Epoch, model: nn.Module) -> None:
        """Behind the last step of an epoch, and part of it."""

    def on_end(self, run: Run, model: nn.Module) -> None:
        """Behind the last step of the job; what changes the model here is in no checkpoint."""


def train(
    *,
    model: Callable[[Run], nn.Module],
    optimizer: Callable[[Run, nn.Module], torch.optim.Optimizer],
    dataset: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor],
    scheduler: Callable[[Run, torch.optim.Optimizer], Any] | None = None,
    scheduler_per: Literal["step", "epoch"] = "step",
    evaluate: Mapping[str, Evaluation] | None = None,
    clip_grad_norm: float | None = None,
    precision: Precision = "float32",
    callbacks: Sequence[Callback] = (),
    epochs: int | None = None,
    steps: int | None = None,
    collate: Collate | None = None,
    prefetch: int = 0,
) -> TrainFunction:
    """A training function for the usual loop: `train = rubato.train(...)`, then `rubato.main(train)`.

    Args:
        model: builds the model. It is called once the generators are seeded, so that all workers begin alike.
        optimizer: builds the optimizer for it.
        dataset: map-style, a `rubato.data.ShardedStream`, or a function of the run that opens one.
        loss_fn: `loss_fn(output, target)`, the mean over the microbatch. A batch is a tuple or list whose last part is
            the target; the parts before go to the model.
        scheduler: builds the learning rate scheduler; stepped after each step, or each epoch.
        evaluate: values by name, logged behind each epoch (with `steps` of a stream: behind the last one).
        clip_grad_norm: the greatest norm of the whole gradient.
        precision: of autocast; float16 scales the loss.
        callbacks: called in this order.
        epochs, steps, collate, prefetch: as of `run.steps` and `run.prepare`.
    Raises:
        ModelError: an argument cannot be used as it is; the message says what to do.
    """
    for name, build in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
        _check_builder(name, build)
    if scheduler_per not in ("step", "epoch"):
        raise ModelError(f"scheduler_per is 'step' or 'epoch', got {scheduler_per!r}")
    if precision != "float32" and precision not in _DTYPES:
        raise ModelError(f"precision is 'float32', 'bfloat16' or 'float16', got {precision!r}")

    def run_training(run: Run) -> None:
        built = model(run).to(run.device)
        loop = _Loop(run, built, optimizer(run, built), loss_fn, precision, clip_grad_norm)
        schedule = scheduler(run, loop.optimizer) if scheduler else None
        run.prepare(
            model=built,
            optimizer=loop.optimizer,
            dataset=dataset(run) if _is_opener(dataset) else dataset,
            scheduler=schedule,
            scaler=loop.scaler,
            collate=collate,
            prefetch=prefetch,
        )
        for callback in callbacks:
            callback.on_start(run, built)
        for epoch in run.epochs(epochs, steps):
            for step in epoch:
                loop.train_on(step)
                if schedule is not None and scheduler_per == "step":
                    schedule.step()
                for callback in callbacks:
                    callback.on_step(run, step, built)
            if schedule is not None and scheduler_per == "epoch":
                schedule.step()
            run.log(**{name: loop.evaluate(one) for name, one in (evaluate or {}).items()})
            for callback in callbacks:
                callback.on_epoch(run, epoch, built)
        for callback in callbacks:
            callback.on_end(run, built)

    return run_training


@dataclass
class _Loop:
    run: Run
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[[Any, Any], torch.Tensor]
    precision: Precision
    clip_grad_norm: float | None

    def __post_init__(self) -> None:
        is_scaled = self.precision == "float16"
        self.scaler = torch.amp.GradScaler(self.run.device.type) if is_scaled else None
        if self.clip_grad_norm is not None:  # in a hook, as with `local_updates` the engine makes updates, too
            self.optimizer.register_step_pre_hook(self._clip)

    def train_on(self, step: Step) -> None:
        for batch in step:
            with self._autocast():
                loss = self.loss_fn(*self._forward(batch))
            step.backward(loss)
        if self.scaler is None:
            self.optimizer.step()
        else:
            if self.clip_grad_norm is not None:
                self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def _clip(self, *_: Any) -> None:
        assert self.clip_grad_norm is not None
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)

    def evaluate(self, what: Evaluation) -> float:
        def of_batch(*batch: Any) -> Any:
            with self._autocast():
                return what.fn(*self._forward(batch))

        return self.run.evaluate(what.dataset, of_batch, what.batch)

    def _forward(self, batch: Any) -> tuple[Any, Any]:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            raise ModelError(
                f"rubato.train needs batches of inputs and a target, not {type(batch).__name__}: let the dataset "
                "return (input, target), or write the loop yourself: def train(run): ..."
            )
        *inputs, target = batch
        return self.model(*inputs), target

    def _autocast(self) -> torch.autocast:
        dtype = _DTYPES.get(self.precision)
        return torch.autocast(self.run.device.type, dtype=dtype, enabled=dtype is not None)


def _is_opener(dataset: Any) -> bool:
    return callable(dataset) and not isinstance(dataset, ShardedStream) and not hasattr(dataset, "__getitem__")


def _check_builder(name: str, build: Any) -> None:
    if build is None:
        return
    if isinstance(build, (nn.Module, type)) or not callable(build):
        what = build.__name__ if isinstance(build, type) else type(build).__name__
        of = {"model": "run", "optimizer": "run, model", "scheduler": "run, optimizer"}[name]
        raise ModelError(
            f"rubato.train needs a function that builds the {name}, not {what} itself: "
            f"{name}=lambda {of}: ... It is called when the generators are seeded, so that all workers begin alike"
        )
