"""Runs a Horovod script as a training program: its passes over a DataLoader are the job's epochs.

The script leads, and the engine answers where it asks for a batch:

    first batch        model, optimizer, schedulers and data set are prepared, and the steps begin
    each batch         a microbatch of this worker; `optimizer.step()` only notes that the script wants the update
    behind the last    of a step, the gradients of all workers are summed, and the optimizer updates once
    end of a pass      the epoch's last step; what the script does before its next pass still belongs to it

A worker that joins in epoch e goes through the script from its begin like any other, but its first e passes are empty.
What the script changed meanwhile (schedulers, values) is set back, when it arrives, to what the others gave it. What it
does between its passes it does in these, too, so those that were over when the worker was started it goes through
before it stands by: the others do not wait for them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate
from torch.utils.data.distributed import DistributedSampler

from rubato.data.order import BatchPlan
from rubato.engine.step import Step
from rubato.errors import ModelError, ProtocolError
from rubato.run import Run

if TYPE_CHECKING:
    from rubato.hvd.elastic import TorchState

VALUES = "rubato.hvd"
"""Where `run.state` keeps the values of the script's TorchState."""


class Script:
    """One Horovod script in its training process."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.is_initialized = False
        self.model: nn.Module | None = None
        self.optimizer: Any = None
        """A `DistributedOptimizer`, once the script has made one."""
        self.states: list[TorchState] = []
        self.is_in_batch = False
        """Whether the script works on a training batch."""
        self.is_due = False
        """Whether it called `optimizer.step()` for it."""
        self._loader: Any = None
        self._steps: Iterator[Step] | None = None
        self._next: Step | None = None
        """The step that the next pass begins with; it is asked for when that begins."""
        self._passes = 0
        self._passes_before = 0
        """Those that are empty in any case: they were over when this worker was started. The last one never is."""
        self._between = contextlib.ExitStack()
        """Holds the long phase between two empty passes."""
        self._is_in_pass = False
        self._catches_up = False
        self._schedulers: list[LRScheduler] = []
        self._given: tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]] = ([], [], [])
        """Options of the optimizer, schedulers and values as they were when the steps began here."""

    # --- what the script does -----------------------------------------------------------------------------------------

    def is_training(self) -> bool:
        """Whether a loop over a DataLoader that begins now is one over training batches."""
        return self.model is not None and self.model.training and torch.is_grad_enabled()

    def log(self, name: str, value: torch.Tensor) -> None:
        """Add a value to the row of the present step."""
        if self._steps is not None and not self._catches_up:
            self.run.log(**{name: float(value)})

    def batches(self, loader: Any) -> Iterator[Any]:
        """One pass of the script over its training data.

        Raises:
            ModelError: what the loader, the loop or the number of passes would change; the message says what to do.
        """
        self._between.close()
        self._check_left()
        number = self._passes
        self._begin_pass(loader)
        step = self._next
        self._passes += 1
        is_before = number < self._passes_before
        if step is None and not is_before:
            self._check_passes(number)
            return
        self._catches_up = is_before or (step is not None and number < step.epoch)
        if self._catches_up or step is None:
            self.optimizer.count_as_updated()
            self._between.enter_context(self.run.long_phase("catching up"))
            return
        if number > step.epoch:  # all are lost, and the job goes on from a checkpoint of an epoch before
            raise ProtocolError(
                f"this worker's script is in pass {number + 1} of the epochs, and the job went back to epoch "
                f"{step.epoch + 1}: another one takes its place"
            )
        self._arrive()
        self._is_in_pass = True
        assert self._steps is not None
        while True:
            yield from self._batches_of(step)
            self.optimizer.update()
            if step.is_last_of_epoch:
                break
            step = next(self._steps)
        self._next, self._is_in_pass = None, False

    def finish(self) -> None:
        """The script has returned: end the steps.  Raises:  ModelError: it was too early."""
        self._between.close()
        if self._steps is None:
            raise ModelError(
                "the script returned without training: make a hvd.DistributedOptimizer, and go through a DataLoader "
                "with the model in train mode"
            )
        self._check_left()
        if self._next is not None or next(self._steps, None) is not None:
            raise ModelError(
                f"the script went through its training data {self._passes} times, and the job is not over: its "
                f"config says {self._length()}; let both say the same. To stop early by what was learnt takes Rubato's "
                "own loop, which has run.stop()"
            )

    # --- passes and batches -------------------------------------------------------------------------------------------

    def _begin_pass(self, loader: Any) -> None:
        if self._loader is None:
            self._prepare(loader)
        if loader.dataset is not self._loader.dataset or loader.batch_size != self._loader.batch_size:
            raise ModelError(
                "the script trains on a second DataLoader; a job has one data set and one batch. If it is evaluated "
                "there, do it under model.eval() or torch.no_grad()"
            )
        if self._passes < self._passes_before:
            return
        if self._steps is None:
            self._begin_steps()
        elif self._next is None:
            self._keep_values()
            self._next = next(self._steps, None)

    def _prepare(self, loader: Any) -> None:
        run = self.run
        if not {"epochs", "steps"} & run.config.keys():
            raise ModelError(
                "the job's config says neither epochs nor steps, and only the script knows: give it the same number "
                "(--config epochs=10). A script that reads its command line gets it as --epochs 10"
            )
        check_loader(loader, run.batch_size)
        if any(issubclass(type(one), torch.amp.GradScaler) and one.is_enabled() for one in gc.get_objects()):
            raise ModelError(
                "a GradScaler needs the gradients of the whole batch: use bfloat16, which needs none, or Rubato's own "
                "loop with run.prepare(scaler=...)"
            )
        collate = None if loader.collate_fn is default_collate else loader.collate_fn
        assert self.model is not None
        run.prepare(
            model=self.model,
            optimizer=self.optimizer,
            dataset=loader.dataset,
            collate=collate,
            prefetch=loader.num_workers,
        )
        self._schedulers = find_schedulers(self.optimizer)
        for scheduler in self._schedulers:
            run.register(f"hvd.{type(scheduler).__name__}", scheduler)
        self._keep_values()
        self._loader = loader
        session = run._session
        plan = BatchPlan(len(loader.dataset), run.batch_size, session.num_microbatches, session.spec.seed)
        last_step = run._total_steps(plan, None, None) - 1  # in whose pass also who comes too late stands by
        self._passes_before = plan.epoch_of(min(session.control.start.last_step, last_step))

    def _begin_steps(self) -> None:
        run = self.run
        self._steps = run.steps()
        self._next = next(self._steps, None)
        values = run.state.get(VALUES, [])
        self._given = copy.deepcopy((self._options(), [one.state_dict() for one in self._schedulers], values))

    def _arrive(self) -> None:
        """This worker's script stands where the others' do: give it what they had."""
        options, schedulers, values = self._given
        if self._passes > 1 and options:
            for group, former in zip(self.optimizer.param_groups, options, strict=True):
                for key, value in former.items():
                    group[key] = group[key].fill_(value) if isinstance(group[key], torch.Tensor) else value
            for scheduler, state in zip(self._schedulers, schedulers, strict=True):
                scheduler.load_state_dict(state)
        for one, mine in zip(self.states, values, strict=False):
            one.take(mine)
        self._given = ([], [], [])

    def _keep_values(self) -> None:
        if self.states and not self._catches_up:
            self.run.state[VALUES] = [state.values() for state in self.states]

    def _batches_of(self, step: Step) -> Iterator[Any]:
        for batch in step:
            before = self._options()
            self.is_in_batch, self.is_due = True, False
            try:
                with losses_told_to(step):
                    yield batch
            finally:
                self.is_in_batch = False
            if not self.is_due:
                raise ModelError(
                    "the script went on to its next batch without optimizer.step(). Gradients need not be accumulated "
                    "here: make the batch as large as it is to count, and cut it by batch.num_microbatches"
                )
            if self._options() != before:
                raise ModelError(
                    "an option of the optimizer (its learning rate?) was changed in the loop over batches, of which "
                    "workers go through different numbers. Change it between two epochs, or once an update: "
                    "optimizer.register_step_post_hook(lambda *_: scheduler.step())"
                )

    def _options(self) -> list[dict[str, Any]]:
        """Of each group of parameters; tensors as they are now."""
        return [
            {key: float(one) if isinstance(one, torch.Tensor) else one for key, one in group.items() if key != "params"}
            for group in self.optimizer.param_groups
        ]

    def _check_left(self) -> None:
        if self._is_in_pass:
            raise ModelError(
                "the script left its loop over training batches by break; go through all of them. To stop early takes "
                "Rubato's own loop, which has run.stop()"
            )

    def _check_passes(self, number: int) -> None:
        if "steps" not in self.run.config and number >= self.run.config["epochs"]:
            raise ModelError(
                f"the script begins pass {number + 1} over its training data, and the job's config says "
                f"{self._length()}; let both say the same"
            )

    def _length(self) -> str:
        key = "steps" if "steps" in self.run.config else "epochs"
        return f"{key}={self.run.config[key]}"


# --- what belongs to the script ---------------------------------------------------------------------------------------


def check_loader(loader: Any, global_size: int) -> None:
    """Raises:  ModelError: the loader deals out samples otherwise than the engine does."""
    if loader.batch_size != global_size:
        raise ModelError(
            f"the training DataLoader has batch_size={loader.batch_size}, and the job's batch is {global_size} "
            "samples; the script is one rank here, so both are the samples of one update, whatever the number of "
            "workers. Let them say the same: batch_size in the script, batch.global_size in the spec "
            "(`rubato run --batch N`)"
        )
    # Exactly these: what is derived from one may choose.
    sampler, kind = loader.sampler, type(loader.sampler)
    is_usual = kind in (RandomSampler, SequentialSampler, DistributedSampler) or kind.__name__ == "ElasticSampler"
    if not is_usual or len(sampler) != len(loader.dataset) or getattr(sampler, "replacement", False):
        how = f" of {len(sampler)} from {len(loader.dataset)} samples" if is_usual else ""
        how += ", with replacement" if getattr(sampler, "replacement", False) else ""
        raise ModelError(
            f"the training DataLoader has a {kind.__name__}{how}; the engine chooses the order itself, each "
            "sample once an epoch. Put what is to be chosen into the data set (torch.utils.data.Subset)"
        )


def find_model(optimizer: torch.optim.Optimizer) -> nn.Module:
    """The outermost module that holds all parameters of the optimizer.

    Raises:  ModelError: there is none, or more than one.
    """
    wanted = {id(one) for group in optimizer.param_groups for one in group["params"]}
    gc.collect()  # what was dropped in a cycle is alive until then
    modules: list[nn.Module] = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    holders = [one for one in modules if wanted <= {id(parameter) for parameter in one.parameters()}]
    inner = {id(part) for one in holders for part in one.modules() if part is not one}
    outer = [one for one in holders if id(one) not in inner]
    if len(outer) != 1:
        names = ", ".join(type(one).__name__ for one in outer) or "none"
        raise ModelError(
            f"the modules that hold all parameters of the optimizer: {names}; say which one is trained: "
            "hvd.DistributedOptimizer(optimizer, model=model)"
        )
    return outer[0]


def find_schedulers(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """The learning rate schedulers of the optimizer that are in no other one, by the names of their classes.

    Raises:  ModelError: two of one class, which no worker could tell apart.
    """
    found = [one for one in gc.get_objects() if issubclass(type(one), LRScheduler) and one.optimizer is optimizer]
    inner = {id(part) for one in found for value in vars(one).values() if isinstance(value, list) for part in value}
    outer = sorted((one for one in found if id(one) not in inner), key=lambda one: type(one).__name__)
    names = [type(one).__name__ for one in outer]
    if len(set(names)) < len(names):
        raise ModelError(
            f"two schedulers of one class ({', '.join(names)}): join them in a SequentialLR or ChainedScheduler"
        )
    return outer


@contextlib.contextmanager
def losses_told_to(step: Step) -> Iterator[None]:
    """Let `loss.backward()` be `step.backward(loss)`, so that the loss is charted and its sum begins early."""
    plain = torch.Tensor.backward

    def backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        torch.Tensor.backward = plain  # type: ignore[method-assign]
        try:
            if args or kwargs or loss.numel() != 1:
                plain(loss, *args, **kwargs)  # type: ignore[no-untyped-call]
            else:
                step.backward(loss)
        finally:
            torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]

    torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.backward = plain  # type: ignore[method-assign]


# --- running one ------------------------------------------------------------------------------------------------------

_present: list[Script] = []
"""The one that runs in this process, if any."""


def present() -> Script:
    """Raises:  ModelError: no script runs."""
    if not _present:
        raise ModelError(
            "this Horovod script was not started by Rubato: put it into a function without arguments and start that, "
            "`rubato run FILE.py:main --workers 4` or `rubato submit FILE.py:main`"
        )
    return _present[-1]


def as_program(main: Callable[[], Any]) -> Callable[[Run], None]:
    """A training program of a Horovod script's function; while it runs, DataLoaders that train are the engine's."""

    @functools.wraps(main)
    def train(run: Run) -> None:
        script = Script(run)
        plain, arguments = DataLoader.__iter__, sys.argv
        # A partial, or an object that is called, has no code of its own.
        file = getattr(getattr(main, "__code__", None), "co_filename", arguments[0])

        def iterate(loader: Any) -> Any:
            return script.batches(loader) if script.is_training() else plain(loader)

        _present.append(script)
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        sys.argv = [file, *command_line(run.config)]
        try:
            main()
            script.finish()
        finally:
            DataLoader.__iter__, sys.argv = plain, arguments  # type: ignore[method-assign]
            _present.remove(script)

    return train


def command_line(config: dict[str, Any]) -> list[str]:
    """The job's config as a script's arguments: {"base_lr": 0.1, "verbose": True} -> --base-lr 0.1 --verbose.

    `steps` is not among them: it is the engine's, and ends the job whatever the script's loop says.
    """
    words: list[str] = []
    for key, value in config.items():
        if key == "steps" or value is False or value is None:
            continue
        words.append("--" + key.replace("_", "-"))
        words += [] if value is True else [str(value)]
    return words
