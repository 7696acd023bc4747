"""What becomes of gradients that a program keeps, and of the memory of those that it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rubato.data.order import BatchPlan
from rubato.engine.flat import FlatLayout
from rubato.engine.reduction import Reduced
from rubato.engine.sums import Sums
from rubato.engine.tree import Tree

LEAVES = 4


def sums() -> tuple[Sums, nn.Linear]:
    model = nn.Linear(3, 2)
    flat = FlatLayout(list(model.named_parameters()), [])
    return Sums(Tree.of(LEAVES), flat, BatchPlan(64, 16, LEAVES, seed=0)), model


def step(one: Sums, model: nn.Linear, index: int, world: int) -> None:
    """A step whose gradients are all `index + 1`, as one worker or one of several has it."""
    for leaf in range(LEAVES):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, index + 1.0)
        one.take(index, range(leaf, leaf + 1), 4.0, ())
    (root,) = one.of(index).nodes.values()
    chunks = (root,) if world == 1 else tuple(root.clone().chunk(world))
    one.deliver(index, Reduced(chunks, (), b""), 16.0)
    one.flat.deliver(one.mean, ())


@pytest.mark.parametrize("world", [1, 2, 3])
def test_gradients_that_are_kept_stay_as_they_are(world: int) -> None:
    one, model = sums()
    kept: list[list[torch.Tensor | None]] = []
    for index in range(6):
        step(one, model, index, world)
        kept.append([parameter.grad for parameter in model.parameters()])
    for index, gradients in enumerate(kept):
        for gradient in gradients:
            assert gradient is not None
            assert bool((gradient == index + 1).all())


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("keeps", [False, True])
def test_nothing_is_made_anew_but_for_what_is_kept(world: int, keeps: bool) -> None:
    one, model = sums()
    previous: list[torch.Tensor | None] = []
    made = 0

    def empty(flat: FlatLayout = one.flat) -> torch.Tensor:
        nonlocal made
        made += 1
        return FlatLayout.empty(flat)

    one.flat.empty = empty  # type: ignore[method-assign]
    for index in range(20):
        if index == 3:
            made = 0
        step(one, model, index, world)
        previous = [parameter.grad for parameter in model.parameters()] if keeps else []
    assert made <= (17 if keeps else 0)
    del previous
