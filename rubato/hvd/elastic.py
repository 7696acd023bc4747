"""Horovod's elastic pattern: `TorchState`, `@hvd.elastic.run`, `state.commit()`.

The engine keeps the state that these were made for: a script is not started again when workers come and go. So they
hold the script's values and do no more; a worker that joins, and a job that goes on from a checkpoint, is given the
values as they were when the present pass over the data began.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sized
from typing import Any

from torch.utils.data import Sampler

from rubato.hvd.script import present


class TorchState:
    """Model, optimizer, and values of the script's own (numbers, strings, tensors) as attributes.

    Args:    model, optimizer: what is trained.  values: at the begin of the job.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        self.model = model
        self.optimizer = optimizer
        self._names = tuple(values)
        for name, value in values.items():
            setattr(self, name, value)
        present().states.append(self)

    def values(self) -> dict[str, Any]:
        """What is the script's own, but for what the engine or PyTorch keeps."""
        found = {name: getattr(self, name) for name in self._names}
        return {name: value for name, value in found.items() if not hasattr(value, "state_dict")}

    def take(self, values: dict[str, Any]) -> None:
        """Go on from these."""
        for name, value in values.items():
            setattr(self, name, value)

    def commit(self) -> None:
        """Nothing: the engine can repeat a step, and writes checkpoints of its own."""

    save = restore = sync = check_host_updates = commit

    def register_reset_callbacks(self, callbacks: Any) -> None:
        """They are never called: a script sees one rank from its begin to its end."""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is: losses and joins happen below it."""

    @functools.wraps(func)
    def call(state: TorchState, *args: Any, **kwargs: Any) -> Any:
        return func(state, *args, **kwargs)

    return call


class ElasticSampler(Sampler[int]):
    """All samples: the order, and who reads which, is the engine's.

    Args:    dataset: has a length.  shuffle, seed: not looked at.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.dataset)))

    def __len__(self) -> int:
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Nothing: each epoch has an order of its own."""

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Nothing: the engine knows what was read."""

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing."""
