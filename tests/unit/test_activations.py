"""What a pass keeps for its way back, worked out by hand for small models."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch import nn

from rubato.activations import DeviceMemory, SavedTensors, follow, tensors_in

CPU = torch.device("cpu")
IN, HIDDEN, OUT = 3, 4, 2
FLOAT = torch.float32.itemsize
Pair = namedtuple("Pair", "x y")


def model_of(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(IN, HIDDEN), *more, nn.ReLU(), nn.Linear(HIDDEN, OUT))


def kept_bytes(model: nn.Module, x: torch.Tensor) -> int:
    with follow(CPU, [model], {"x": x}) as kept:
        loss = model(x).square().sum()
        kept.turn()
        loss.backward()
    return kept.most_bytes


def kept_plain(samples: int) -> int:
    """What ReLU gives, once, which the second layer takes in; and what is squared. The batch and weights are there."""
    return FLOAT * samples * (HIDDEN + OUT)


@pytest.mark.parametrize("samples", [1, 5, 64])
def test_bytes_are_those_of_what_layers_give_on(samples: int) -> None:
    assert kept_bytes(model_of(), torch.randn(samples, IN)) == kept_plain(samples)


def test_buffers_are_there_anyway_and_what_is_worked_out_of_them_is_not() -> None:
    """A normalisation keeps what comes in, and mean and deviation of each feature, however many samples there are."""
    samples = 5
    more = FLOAT * HIDDEN * (samples + 2)
    assert kept_bytes(model_of(nn.BatchNorm1d(HIDDEN)), torch.randn(samples, IN)) == kept_plain(samples) + more


def test_a_part_of_a_batch_takes_nothing_of_its_own() -> None:
    x = torch.randn(8, IN)
    with follow(CPU, [], (x, [torch.ones(1)])) as kept:
        (x[2:5].requires_grad_() * x[2:5]).sum().backward()
    assert kept.most_bytes == 0


def test_what_is_let_go_is_not_kept() -> None:
    """Two passes, one after the other, keep as much as one; both at once twice as much."""
    model, x = model_of(), torch.randn(5, IN)

    def kept(*, at_once: bool) -> int:
        with follow(CPU, [model], x) as kept:
            losses = []
            for _ in range(2):
                losses.append(model(x).square().sum())
                if not at_once:
                    losses.pop().backward()
            for loss in losses:
                loss.backward()
        return kept.most_bytes

    assert kept(at_once=False) == kept_plain(5)
    assert kept(at_once=True) == 2 * kept_plain(5)


def test_nothing_else_changes() -> None:
    """Neither gradients nor the random numbers of dropout."""
    model, x = model_of(nn.Dropout(0.5)), torch.randn(64, IN)

    def trained(*, is_followed: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(1)
        if is_followed:
            kept_bytes(model, x)
        else:
            model(x).square().sum().backward()
        return [one.grad.clone() for one in model.parameters() if one.grad is not None], torch.get_rng_state()

    (plain, plain_state), (followed, followed_state) = (trained(is_followed=one) for one in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(plain, followed, strict=True))
    assert len(followed) == 4
    assert torch.equal(plain_state, followed_state)


def test_what_is_saved_without_strides_is_let_through() -> None:
    matrix = torch.eye(3).to_sparse()
    weight = torch.randn(3, 2, requires_grad=True)
    with SavedTensors([]) as kept:
        torch.sparse.mm(matrix, weight).sum().backward()
    assert weight.grad is not None
    assert kept.most_bytes >= 0


def test_tensors_are_found_however_they_nest() -> None:
    one, two, three = (torch.zeros(1) for _ in range(3))
    found = list(tensors_in({"a": [one, "text"], "b": Pair(two, (three, None))}))
    assert [id(tensor) for tensor in found] == [id(one), id(two), id(three)]
    assert list(tensors_in(object())) == []


@pytest.mark.parametrize(
    ("forward", "whole", "kept"),
    [(1500, 1530, 500), (1500, 1900, 900 - 40), (1010, 1020, 10)],
)
def test_on_a_device_gradients_are_left_out(
    monkeypatch: pytest.MonkeyPatch, forward: int, whole: int, kept: int
) -> None:
    """Of 40 bytes; 1000 were there before. What was there before the first way back had none of them."""
    weight = torch.zeros(10, requires_grad=True)
    most = [forward]
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: most[0])
    with DeviceMemory(torch.device("cuda"), [weight]) as memory:
        memory.turn()
        weight.sum().backward()
        most[0] = whole
        memory.turn()
    assert memory.most_bytes == kept
