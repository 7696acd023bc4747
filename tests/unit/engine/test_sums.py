"""What becomes of gradients that a program keeps, and of the memory of those that it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rubato.data.order import BatchPlan
from rubato.engine.flat import FlatLayout
from rubato.engine.reduction import Reduced
from rubato.engine.sums import Sums
from rubato.engine.tree import AnyOrder, Tree

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


def lent(one: Sums, model: nn.Linear, index: int) -> bool:
    """A step of two workers without equal bits: one pass, whose sum need not be divided. Whether the result is lent."""
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, index + 1.0)
    one.take(index, range(LEAVES), 16.0, ())
    (root,) = one.of(index).nodes.values()
    result = root.clone()
    one.deliver(index, Reduced((result,), (), b""), 16.0)
    one.flat.deliver(one.mean, ())
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(one is not None and bool((one == index + 1).all()) for one in gradients)
    return one.mean is result


def changes(model: nn.Linear, how: str) -> None:
    """What a program does with its gradients."""
    for parameter in model.parameters():
        assert parameter.grad is not None
        if how == "clips":
            torch.nn.utils.clip_grad_norm_([parameter], 0.1)
        elif how == "unseen":  # by autograd
            parameter.grad.data.mul_(0.5)


def loose() -> tuple[Sums, nn.Linear]:
    model = nn.Linear(3, 2)
    flat = FlatLayout(list(model.named_parameters()), [])
    return Sums(AnyOrder(), flat, BatchPlan(64, 16, LEAVES, seed=0)), model


def test_a_program_that_leaves_its_gradients_alone_is_lent_the_results() -> None:
    one, model = loose()
    assert [lent(one, model, index) and one.is_intact for index in range(6)] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("how", ["clips", "unseen"])
def test_one_that_changes_them_is_never(how: str) -> None:
    one, model = loose()
    for index in range(6):
        assert not lent(one, model, index)
        changes(model, how)
        assert one.is_intact, "a peer can have the last result"


def test_one_that_begins_to_change_them_spoils_one_result_and_is_lent_no_more() -> None:
    one, model = loose()
    for index in range(5):
        lent(one, model, index)
    changes(model, "clips")
    assert not one.is_intact
    for index in range(5, 8):
        assert not lent(one, model, index)
        changes(model, "clips")
        assert one.is_intact


def test_a_step_whose_sum_is_divided_is_copied() -> None:
    one, model = sums()
    for index in range(6):
        step(one, model, index, world=2)
        assert one.is_intact
