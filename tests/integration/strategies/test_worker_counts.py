"""Jobs of one to five workers, a thread each: whatever their number, and where they stop, they learn alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import loss_of
from together import Saved, TogetherRun, together
from torch import nn

from rubato.wire.spec import parse_spec

pytestmark = pytest.mark.usefixtures("generators")

WORLDS = [1, 2, 3, 4, 5]
MICROBATCHES, UPDATES, BATCH = 10, 2, 40
ROWS = [
    (torch.randn(3, generator=torch.Generator().manual_seed(index)), torch.tensor(float(index % 3)))
    for index in range(108)
]
"""Three rounds an epoch, the last of 28 samples: of seven microbatches."""
STEPS, SAVED_AT = 8, 4
SOMETIMES = 0, 3, 7
"""Steps in which a layer is used that is not in all others: once between an exchange of its fragment and the
checkpoint, and not again before the next exchange of it."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(3, 4)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        self.sometimes = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(self.inlet(x))
        return out


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return Model()


def plain_of() -> nn.Module:
    """Without buffers, of which each worker has those of its own samples."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def descent(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def trained(
    world: int,
    made: Callable[[], nn.Module],
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    saved: Saved | None = None,
    **fields: Any,
) -> tuple[nn.Module, dict[int, Saved]]:
    """With so many workers, from a checkpoint or the beginning."""
    spec = {
        "name": "test",
        "entrypoint": "main.py:train",
        "workers": {"initial": world, "min": world, "max": world},
        "batch": {"global_size": BATCH, "num_microbatches": MICROBATCHES},
        **fields,
    }

    def train(run: TogetherRun, model: nn.Module) -> None:
        stepper = optimizer(model)
        run.prepare(model=model, optimizer=stepper, dataset=ROWS)
        for step in run.steps(steps=STEPS):
            for x, y in step:
                loss = loss_of(model, x, y)
                if isinstance(model, Model) and step.index in SOMETIMES:
                    loss = loss + model.sometimes(x).square().mean()
                step.backward(loss)
            stepper.step()

    return together(parse_spec(spec), made, train, saved)


def content(model: nn.Module) -> list[bytes]:
    return [one.detach().numpy().tobytes() for one in model.state_dict().values()]


def check_close(one: nn.Module, other: nn.Module, tolerance: float) -> None:
    for mine, others in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), others.detach(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("method", [pytest.param("local_sgd", marks=pytest.mark.long), "diloco"])
def test_replicas_have_the_same_bits_whatever_the_number_of_workers(method: str) -> None:
    """`test_replicas` says which: those of rounds by hand."""
    local = {"method": method, "sync_every": UPDATES}
    found = [trained(world, model_of, adam, local_updates=local)[0] for world in WORLDS]
    assert content(found[0]) != content(model_of())
    assert all(content(one) == content(found[0]) for one in found[1:])


@pytest.mark.parametrize("world", [*(pytest.param(world, marks=pytest.mark.long) for world in WORLDS[:-1]), WORLDS[-1]])
def test_a_stream_of_one_fragment_without_mixing_is_diloco_of_a_microbatch_for_each_worker(world: int) -> None:
    """Where optimizers keep nothing that would be averaged."""
    streamed, whole = (
        trained(
            world,
            plain_of,
            descent,
            batch={"global_size": 4 * UPDATES * world, "num_microbatches": world},
            local_updates={"method": method, "sync_every": UPDATES},
            reproducible=False,
        )[0]
        for method in ("streaming_diloco", "diloco")
    )
    check_close(streamed, whole, 1e-5)
    assert content(whole) != content(plain_of())


@pytest.mark.long
@pytest.mark.parametrize("local", [{"method": "synchronous"}, {"method": "layer_separation", "cut": "2"}])
def test_where_one_leads_the_others_the_updates_are_those_of_one_worker(local: dict[str, Any]) -> None:
    told = {"reproducible": False, "local_updates": {**local, "sync_every": UPDATES}}
    found = [trained(world, plain_of, adam, **told)[0] for world in WORLDS]
    for one in found[1:]:
        check_close(one, found[0], 1e-4)


STREAM = {"method": "streaming_diloco"}
LOCAL: dict[str, dict[str, Any]] = {
    "local_sgd": {"method": "local_sgd"},
    "diloco": {"method": "diloco"},
    "a stream": STREAM,
    "a stream of three": {**STREAM, "fragments": 3},
    "a mixed stream of three": {**STREAM, "fragments": 3, "mix": 0.5},
    "synchronous": {"method": "synchronous"},
    "layer_separation": {"method": "layer_separation", "cut": "body"},
}
GATHERED: dict[str, dict[str, Any]] = {
    "topk": {"method": "topk", "density": 0.1},
    "momentum in topk": {"method": "topk", "density": 0.1, "momentum": 0.9},
    "momentum in a sketch": {"method": "sketch", "density": 0.1, "momentum": 0.9},
}
KINDS: dict[str, dict[str, Any]] = {
    "in the order of the tree": {"reproducible": True},
    "in any order": {},
    **{name: {"local_updates": {**one, "sync_every": UPDATES}} for name, one in LOCAL.items()},
    **{name: {"aggregation": {"compression": one}} for name, one in GATHERED.items()},
}


SHORT = {(kind, 3) for kind in ("in any order", "diloco", "a mixed stream of three", "momentum in topk")}
"""Not `long`: one of each kind of state."""
CASES = [
    pytest.param(kind, world, marks=() if (kind, world) in SHORT else pytest.mark.long)
    for kind in KINDS
    for world in (1, 2, 3)
]


@pytest.mark.parametrize(("kind", "world"), CASES)
def test_what_stops_at_a_checkpoint_goes_on_as_if_it_had_not(kind: str, world: int) -> None:
    """Outer momentum, what all share of fragments, whose turn it is, residuals with their momentum: all is saved."""
    told: dict[str, Any] = {"reproducible": False, "checkpoint": {"every_steps": SAVED_AT}, **KINDS[kind]}
    optimizer = descent if "momentum" in kind else adam
    whole, saved = trained(world, model_of, optimizer, **told)
    assert sorted(saved) == [SAVED_AT, STEPS]
    resumed, others = trained(world, model_of, optimizer, saved[SAVED_AT], **told)
    assert sorted(others) == [STEPS]
    assert content(resumed) == content(whole)
