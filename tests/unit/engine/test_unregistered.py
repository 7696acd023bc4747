from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun
from torch import nn
from torch.optim.lr_scheduler import SequentialLR, StepLR
from torch.optim.swa_utils import AveragedModel

from rubato.engine.unregistered import unregistered
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


def test_other_threads_make_tuples_meanwhile() -> None:
    """CPython refuses to end a tuple that a generator fills while something else holds it, as a list of all objects."""
    enough = threading.Event()
    refused: list[SystemError] = []
    made = 0

    def make() -> None:
        nonlocal made
        while not enough.is_set():
            try:
                made += len(tuple(each for each in range(30)))
            except SystemError as error:
                refused.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    makers = [threading.Thread(target=make) for _ in range(3)]
    try:
        for maker in makers:
            maker.start()
        optimizer = torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.01)
        scheduler = StepLR(optimizer, 2)
        for _ in range(10):
            assert "StepLR" in unregistered([])
        assert unregistered([scheduler]) == []
    finally:
        enough.set()
        for maker in makers:
            maker.join()
        sys.setswitchinterval(interval)
    assert made > 0
    assert not refused
