"""A pass over microbatches changes no parameters; nor does the warm-up leave changed ones behind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from alone import ROWS, AloneRun
from torch import nn

from rubato.data.order import BatchPlan
from rubato.data.source import MapSource
from rubato.engine.state import TrainingState
from rubato.engine.warmup import warm_up
from rubato.errors import ModelError
from rubato.run import Run
from rubato.wire.local_updates import LocalUpdatesSpec

pytestmark = pytest.mark.usefixtures("generators")

IDS = [(torch.tensor([index % 5]), torch.tensor(1.0)) for index in range(20)]


class Codebook(nn.Module):
    """Its codes follow what it sees."""

    def __init__(self, *, is_buffer: bool = False, is_frozen: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        codes = torch.ones(3)
        if is_buffer:
            self.register_buffer("codes", codes)
        else:
            self.codes = nn.Parameter(codes, requires_grad=not is_frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.codes.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.linear(x + self.codes)  # type: ignore[no-any-return]


def go(run: Run, model: nn.Module, rows: Any = ROWS, **prepare: Any) -> nn.Module:
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=rows, **prepare)
    for step in run.steps(steps=2):
        for x, y in step:
            step.backward((model(x).mean() - y.mean()).square())
        optimizer.step()
    return model


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_parameter_that_the_forward_pass_changes_is_named(is_frozen: bool) -> None:
    with pytest.raises(ModelError, match=r"parameter codes was changed inside of the loop.*make it a buffer"):
        go(AloneRun(), Codebook(is_frozen=is_frozen))


def test_an_embedding_that_scales_its_rows_is_told_what_to_do() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(3, 1))
    with pytest.raises(ModelError, match=r"parameter 0\.weight was changed .*leave max_norm out, and scale the rows"):
        go(AloneRun(), model, IDS)


def test_several_are_counted() -> None:
    with pytest.raises(ModelError, match=r"parameter 0\.codes \(and 1 others\)"):
        go(AloneRun(), nn.Sequential(Codebook(), nn.Linear(1, 3), Codebook()))


def clamp(run: Run, *, is_inside: bool) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
    for step in run.steps(steps=3):
        for x, y in step:
            step.backward((model(x).mean() - y.mean()).square())
            if is_inside:
                model.weight.detach().clamp_(-1, 1)
        optimizer.step()
        model.weight.detach().clamp_(-1, 1)


def test_a_program_that_changes_weights_between_microbatches_is_told() -> None:
    with pytest.raises(ModelError, match=r"parameter weight was changed .*or change it behind the loop, once a step"):
        clamp(AloneRun(), is_inside=True)


def test_buffers_and_what_is_done_behind_the_loop_are_nobodys_concern() -> None:
    assert not torch.equal(go(AloneRun(), Codebook(is_buffer=True)).codes, torch.ones(3))
    run = AloneRun()
    clamp(run, is_inside=False)
    assert run.finish()


def test_replicas_change_their_own() -> None:
    go(AloneRun(local_updates=LocalUpdatesSpec("local_sgd", 2)), Codebook(is_frozen=False))


@pytest.mark.parametrize("local_updates", [LocalUpdatesSpec(), LocalUpdatesSpec("local_sgd", 2)])
def test_a_frozen_backbone_made_under_inference_mode_trains_and_is_taken_over(local_updates: LocalUpdatesSpec) -> None:
    def build() -> nn.Sequential:
        with torch.inference_mode():
            backbone = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).requires_grad_(False).eval()
        return nn.Sequential(backbone, nn.Linear(3, 1))

    model, joiner = build(), build()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    go(AloneRun(local_updates=local_updates), model)
    changed = {name for name, one in model.state_dict().items() if not torch.equal(one, before[name])}
    assert changed == {"1.weight", "1.bias"}
    document, tensors = TrainingState({"": model}, {}, {}, {}).capture()
    TrainingState({"": joiner}, {}, {}, {}).install(document, tensors)
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in joiner.state_dict().items())


def test_the_warm_up_leaves_parameters_as_they_were() -> None:
    model = Codebook()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.linear.parameters(), lr=0.01)
    state = TrainingState({"": model}, {"": optimizer}, {}, {})
    seen: list[float] = []
    model.register_forward_hook(lambda *_: seen.append(model.codes.sum().item()))
    warm_up(state, MapSource(ROWS, None, BatchPlan(len(ROWS), 8, 4, 0)), torch.device("cpu"))
    assert seen
    assert not math.isclose(seen[0], 3.0), "it was changed meanwhile"
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
