"""`DistributedOptimizer`: the script's optimizer, whose `step` in a batch waits for the end of the engine's step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from rubato.errors import ModelError
from rubato.hvd.script import find_model, present

Average, Sum, Min, Max, Adasum = "Average", "Sum", "Min", "Max", "Adasum"


class Compression:
    """Horovod's choices; gradients travel as they are in any case."""

    none = "none"
    fp16 = "fp16"


def DistributedOptimizer(  # noqa: N802 (Horovod's name)
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    model: nn.Module | None = None,
) -> torch.optim.Optimizer:
    """Make this the optimizer of the job; it stays the same object.

    Args:
        optimizer: any but those that evaluate the loss several times a step.
        op: `Average` only.
        model: what is trained, where it cannot be told from the parameters (ours, not Horovod's).
        named_parameters, compression, backward_passes_per_step, num_groups, groups, sparse_as_dense: not looked at;
            names are the model's, and gradients are summed once a step, exactly.
    Returns: the optimizer. `step()` in the loop over batches asks for the update, which comes once the microbatches of
        all workers are summed; hooks of the optimizer are called then.
    Raises:
        ModelError: another operation or set of processes, a second optimizer, or no single model.
    """
    script = present()
    if op != Average or gradient_predivide_factor != 1.0:
        raise ModelError(
            f"hvd.DistributedOptimizer(op={op}, gradient_predivide_factor={gradient_predivide_factor}): "
            "gradients are the mean over the global batch; leave both out, and scale the learning rate instead"
        )
    if process_set is not None:
        raise ModelError("hvd.DistributedOptimizer(process_set=...): a job is one set of workers; leave it out")
    if script.optimizer is not None:
        raise ModelError(
            "hvd.DistributedOptimizer was called twice; several optimizers need Rubato's own loop: "
            "run.prepare(optimizer={'a': ..., 'b': ...})"
        )
    script.model = find_model(optimizer) if model is None else model
    vars(optimizer).pop("step", None)  # a scheduler's wrapper around the former one; `update` says what it would
    cls = type(optimizer)
    optimizer.__class__ = type(f"Distributed{cls.__name__}", (_Deferred, cls), {})
    assert isinstance(optimizer, _Deferred)
    script.optimizer = optimizer
    return optimizer


class _Deferred(torch.optim.Optimizer):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Ask for the update of this step.  Raises:  ModelError: outside of the loop over batches; a closure."""
        if closure is not None:
            raise ModelError(
                "optimizer.step(closure) evaluates the loss again; call loss.backward() and step() without"
            )
        script = present()
        if not script.is_in_batch:
            raise ModelError(
                "optimizer.step() was called outside of a loop over a DataLoader. The engine deals out the batches: "
                "write `for batch in loader:` around it, with the model in train mode"
            )
        script.is_due = True

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # schedulers are not to wrap it, or warn
    step.hooked = True  # type: ignore[attr-defined]  # nor torch, with a state that is loaded: hooks are for updates

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As usual; behind `step()` the gradients stay, for they are not summed yet."""
        if not (present().is_in_batch and present().is_due):
            super().zero_grad(set_to_none)

    def update(self) -> None:
        """The update itself, with the gradients of the whole batch."""
        self.count_as_updated()
        super().step()

    def count_as_updated(self) -> None:
        """Schedulers need not warn that they come before the first update: it was here, or on those before us."""
        self._opt_called = True

    def synchronize(self) -> None:
        """Raises:  ModelError: gradients of the whole batch are never there inside the loop."""
        raise ModelError(
            "optimizer.synchronize() is not to be had: inside the loop there are gradients of a microbatch only. "
            "What clips those of the whole batch is a function that returns nothing: `def clip(*_): "
            "clip_grad_norm_(model.parameters(), 1.0)`, and optimizer.register_step_pre_hook(clip)"
        )

    skip_synchronize = synchronize
