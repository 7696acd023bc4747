"""A run without a controller, in the test's own process; what it says is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rubato.data import randomness
from rubato.engine.control import Control
from rubato.engine.session import Session
from rubato.run import Run
from rubato.wire import worker as wire
from rubato.wire.batch import BatchSpec
from rubato.wire.cluster import MetricRow
from rubato.wire.spec import JobSpec, WorkersSpec, spec_to_json

ROWS = [(torch.full((3,), float(index)) / 10, torch.tensor(float(index % 3))) for index in range(20)]
"""Of what is trained on here: 20 samples, so that an epoch has two steps of 8 and one of 4."""


class Hearing(Control):
    """Keeps what would be told to a controller."""

    def __init__(self, start: wire.Start) -> None:
        super().__init__(start)
        self.said: list[wire.Message] = []

    def say(self, message: wire.Message) -> None:
        self.said.append(message)


class HeardRun(Run):
    """A run of a worker without a controller, with what it said."""

    def __init__(self, job: JobSpec) -> None:
        start = wire.Start(1, "test", "w1", "1.1", spec_to_json(job), "127.0.0.1", "")
        self.hearing = Hearing(start)
        self.session = Session(self.hearing, job, torch.device("cpu"), start.host, lambda: "code")
        super().__init__(self.session)

    @property
    def rows(self) -> list[MetricRow]:
        """One a step."""
        return list(self.hearing.rows)

    @property
    def notices(self) -> list[wire.Notice]:
        return [one for one in self.hearing.said if isinstance(one, wire.Notice)]


class AloneRun(HeardRun):
    """A run of one worker."""

    def __init__(self, *, batch: int = 8, num_microbatches: int = 4, noise_every: int = 0, **spec: Any) -> None:
        cut = BatchSpec(batch, num_microbatches, noise_every)
        super().__init__(
            JobSpec(name="test", entrypoint="main.py:train", batch=cut, workers=WorkersSpec(max=1), **spec)
        )


@contextmanager
def own_generators() -> Iterator[None]:
    """The global generators begin alike, and are afterwards as they were before."""
    before = randomness.capture()
    torch.manual_seed(0)
    try:
        yield
    finally:
        randomness.restore(before)


def prepared(run: Run, **more: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS, **more)
    return model, optimizer


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x).squeeze(1) - y).square().mean()


def train(run: Run, in_step: Callable[[Any], None] = lambda _: None, **steps: int) -> nn.Module:
    model, optimizer = prepared(run)
    for step in run.steps(**steps):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        optimizer.step()
        in_step(step)
    return model
