from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun
from torch import nn
from torch.optim.lr_scheduler import SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from rubato.run import Run
from rubato.wire.events import EventKind

pytestmark = pytest.mark.usefixtures("generators")


class Holder:
    """What people write around a list of schedulers."""

    def __init__(self, *parts: Any) -> None:
        self.parts = {"all": list(parts)}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def forgotten(prepare: Callable[[Run, nn.Module, torch.optim.Optimizer], Any]) -> list[str]:
    """What a run tells that has prepared, where `prepare` did that and returned what it holds."""
    run = AloneRun()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held = prepare(run, model, optimizer)
    more = {} if run._prepared else {"model": model, "optimizer": optimizer, "dataset": ROWS}
    if more:
        run.prepare(**more)
    next(run.steps())
    del held
    told = [notice for notice in run.notices if notice.kind == EventKind.UNREGISTERED]
    assert all("run.register" in notice.message for notice in told)
    return [thing for notice in told for thing in notice.data["things"]]


def test_what_nobody_registered_is_told() -> None:
    scaler = torch.amp.GradScaler
    assert forgotten(lambda *_: scaler("cpu")) == ["GradScaler"]
    assert forgotten(lambda run, model, optimizer: StepLR(optimizer, 2)) == ["StepLR"]
    assert forgotten(lambda run, model, _: (AveragedModel(model), scaler("cpu"))) == ["AveragedModel", "GradScaler"]


def test_what_is_registered_prepared_or_off_is_not_told() -> None:
    def registered(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        run.register("average", AveragedModel(model))
        run.register("parts", Holder(StepLR(optimizer, 2), torch.amp.GradScaler("cpu")))

    def given(run: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        chain = SequentialLR(optimizer, [StepLR(optimizer, 2), StepLR(optimizer, 3)], milestones=[4])
        scaler = torch.amp.GradScaler("cpu")
        run.prepare(model=model, optimizer=optimizer, dataset=ROWS, scheduler=chain, scaler=scaler)

    assert forgotten(registered) == []
    assert forgotten(given) == []
    assert forgotten(lambda *_: torch.amp.GradScaler("cpu", enabled=False)) == []


def test_what_was_dropped_is_not_told() -> None:
    """What is in a cycle lives on until garbage is looked for."""

    def dropped(_: Run, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scheduler = StepLR(optimizer, 2)
        scheduler.owner = Holder(scheduler)  # type: ignore[attr-defined]

    gc.disable()
    try:
        assert forgotten(dropped) == []
    finally:
        gc.enable()
