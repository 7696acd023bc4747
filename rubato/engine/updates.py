"""Updates belong behind the loop over a step's microbatches: what is done inside of it is done once for each that a
worker happens to have, so that the weights would depend on the number of workers. So would they where a forward pass
changes parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from rubato.engine.state import TrainingState
from rubato.errors import ModelError

_ADVICE = (
    "{call} was called inside of the loop over a step's microbatches, which goes round as often as a worker has some: "
    "move it behind that loop (`for batch in step: step.backward(...)`, and then `optimizer.step()` and "
    "`scheduler.step()`, once a step)"
)


def refuse_within(optimizers: Iterable[torch.optim.Optimizer], is_within: Callable[[], bool]) -> None:
    """From here on no optimizer makes an update inside of the loop.

    Args:    is_within: whether user code works on a microbatch now, and the update is not the engine's.
    """

    def refuse(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if is_within():
            raise ModelError(_ADVICE.format(call=f"step() of {type(optimizer).__name__}"))

    for optimizer in optimizers:
        optimizer.register_step_pre_hook(refuse)


class Schedules:
    """How often each scheduler has stepped. Schedulers know no hooks."""

    def __init__(self, registered: Iterable[object]) -> None:
        self._schedulers = [one for one in registered if isinstance(one, torch.optim.lr_scheduler.LRScheduler)]
        self._stepped = self._now()

    def check(self) -> None:
        """Raises:  ModelError: one has stepped since."""
        for one, before, now in zip(self._schedulers, self._stepped, self._now(), strict=True):
            if before != now:
                raise ModelError(_ADVICE.format(call=f"step() of {type(one).__name__}"))

    def _now(self) -> list[int]:
        return [one.last_epoch for one in self._schedulers]


class Weights:
    """The parameters during a pass over microbatches, by torch's count of what was written into each.

    What is written behind that count's back, by way of `.data`, only the comparison of digests finds.
    """

    def __init__(self, state: TrainingState) -> None:
        self._owners: dict[int, nn.Module] = {}
        """The module that has a parameter first, by its id."""
        for model in state.models.values():
            for module in model.modules():
                for parameter in module.parameters(recurse=False):
                    self._owners.setdefault(id(parameter), module)
        self._named = [(name, one) for name, one in state.named_parameters() if not self._is_uncounted(one)]
        self._tensors = [one for _, one in self._named]
        self._before: list[int] = []

    def begin(self) -> None:
        """A pass begins."""
        self._before = self._now()

    def check(self) -> None:
        """Raises:  ModelError: it has changed a parameter."""
        if (now := self._now()) == self._before:
            return
        changed = [one for one, before, count in zip(self._named, self._before, now, strict=True) if before != count]
        name, parameter = changed[0]
        others = f" (and {len(changed) - 1} others)" if len(changed) > 1 else ""
        if getattr(self._owners.get(id(parameter)), "max_norm", None) is not None:
            advice = "leave max_norm out, and scale the rows behind the loop, after optimizer.step()"
        else:
            advice = (
                "make it a buffer (self.register_buffer), whose changes are averaged over the step's microbatches, or "
                "change it behind the loop, once a step"
            )
        raise ModelError(
            f"parameter {name}{others} was changed inside of the loop over a step's microbatches, by the forward pass "
            "or by the program. Each worker goes through microbatches of its own, so the weights would depend on the "
            f"number of workers: {advice}"
        )

    def _is_uncounted(self, parameter: torch.Tensor) -> bool:
        """Whether the count says nothing: of what was made under torch.inference_mode() there is none, and what
        programs put elsewhere in a pass counts as written (`flatten_parameters` of an LSTM).
        """
        is_moved = parameter.is_cuda and isinstance(self._owners.get(id(parameter)), nn.RNNBase)
        return is_moved or parameter.is_inference()

    def _now(self) -> list[int]:
        return list(map(attrgetter("_version"), self._tensors))
