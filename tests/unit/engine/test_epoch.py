"""`run.epochs`: the steps of `run.steps`, with something behind each pass over the dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import AloneRun, loss_of, prepared, train
from torch import nn

from rubato.engine.epoch import Epoch
from rubato.errors import ModelError
from rubato.run import Run

pytestmark = pytest.mark.usefixtures("generators")


def train_by_epochs(run: Run, behind: Callable[[Any], None] = lambda _: None, epochs: int | None = None) -> nn.Module:
    model, optimizer = prepared(run)
    for epoch in run.epochs(epochs):
        for step in epoch:
            for x, y in step:
                step.backward(loss_of(model, x, y))
            optimizer.step()
        behind(epoch)
    return model


def test_epochs_have_the_same_steps_with_something_behind_each() -> None:
    by_steps = train(AloneRun(), epochs=2)
    torch.manual_seed(0)
    run = AloneRun()
    by_epochs = train_by_epochs(run, lambda epoch: run.log(behind=epoch.index), 2)
    run.finish()
    assert torch.equal(by_epochs.weight, by_steps.weight)
    assert [row.values["epoch"] for row in run.rows] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]
    assert [row.values.get("behind") for row in run.rows] == [None, None, 0.0, None, None, 1.0]


@pytest.mark.parametrize(("config", "behind"), [({}, [0]), ({"epochs": 2}, [0, 1]), ({"steps": 4}, [0, 1])])
def test_the_last_epoch_ends_with_the_job(config: dict[str, int], behind: list[int]) -> None:
    run, passed = AloneRun(config=config), []
    train_by_epochs(run, lambda epoch: passed.append(epoch.index))
    assert passed == behind
    assert run.finish()


def test_what_is_behind_an_epoch_belongs_to_its_last_step() -> None:
    """Until the next epoch is asked for, that step has not committed: what changes then is part of it."""
    run, committed = AloneRun(), []
    train_by_epochs(run, lambda _: committed.append(run.session.step), 2)
    assert committed == [2, 5]


def test_whoever_comes_amid_an_epoch_has_the_rest_of_it() -> None:
    run = AloneRun()
    model, optimizer = prepared(run)
    steps = run.steps(2)

    def train_on(step: Any) -> int:
        for x, y in step:
            step.backward(loss_of(model, x, y))
        optimizer.step()
        return int(step.index)

    assert train_on(next(steps)) == 0
    late = Epoch(next(steps), steps)
    assert [train_on(step) for step in late] == [1, 2]
    late.check_done()


def break_an_epoch(run: Run) -> None:
    model, _ = prepared(run)
    for epoch in run.epochs(2):
        for step in epoch:
            for x, y in step:
                step.backward(loss_of(model, x, y))
            break


def an_epoch_twice(run: Run) -> None:
    train_by_epochs(run, lambda epoch: list(epoch))


def a_step_without_its_microbatches(run: Run) -> None:
    prepared(run)
    for epoch in run.epochs():
        for _ in epoch:
            pass


@pytest.mark.parametrize(
    ("program", "advice"),
    [
        (break_an_epoch, r"epoch 0 ended before its steps.*\(`for step in epoch:`\), without break"),
        (an_epoch_twice, "epoch 0 can be gone through once.*next epoch of run.epochs"),
        (a_step_without_its_microbatches, "step 0 ended before its microbatches were exhausted"),
    ],
)
def test_a_mistake_is_told_with_advice(program: Callable[[Run], object], advice: str) -> None:
    with pytest.raises(ModelError, match=advice):
        program(AloneRun())
