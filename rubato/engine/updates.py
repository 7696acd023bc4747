"""Updates belong behind the loop over a step's microbatches: what is done inside of it is done once for each that a
worker happens to have, so that the weights would depend on the number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

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
