"""Ranks are threads over real gloo on this machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from groups import fake_group, gloo_group, on_ranks
from torch import nn

from rubato.engine.state import TrainingState
from rubato.engine.sync import share_state
from rubato.errors import GenerationLost


def state_of(seed: int, steps: int) -> TrainingState:
    """Odd sizes, integer and empty buffers, bfloat16 and float64, optimizer and scheduler state."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7), nn.Linear(7, 1, bias=False))
        other = nn.Linear(3, 1, dtype=torch.float64)
        small = nn.Linear(1, 1, dtype=torch.bfloat16)
        model.register_buffer("nothing", torch.zeros(0, dtype=torch.int64))
        optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters(), *small.parameters()])
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
        for _ in range(steps):
            x = torch.randn(5, 3)
            loss = model(x).square().mean() + other(x.double()).mean() + small(x[:, :1].bfloat16()).mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
    models = {"a": model, "b": other, "c": small}
    return TrainingState(models, {"": optimizer}, {"scheduler": scheduler}, {"steps": steps, "seed": seed})


def content(state: TrainingState) -> tuple[str, list[bytes]]:
    document, tensors = state.encode()
    raw = [tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return json.dumps(document, sort_keys=True), raw


@pytest.mark.parametrize(
    ("world", "holders"), [(2, [0]), (2, [1]), (3, [0, 1]), (3, [2]), (4, [0, 2]), (4, [1, 2, 3]), (4, [3])]
)
def test_joiners_get_the_bytes_of_the_holders(world: int, holders: list[int]) -> None:
    expected = content(state_of(1, 4))
    states = [state_of(1, 4) if rank in holders else state_of(rank + 10, rank % 2) for rank in range(world)]

    def play(rank: int) -> dict[str, Any]:
        return share_state(group[rank], states[rank], holders, {"step": 4, "from": rank})

    with gloo_group(world) as group:
        told = on_ranks(world, play)
    assert all(content(state) == expected for state in states)
    for rank, extra in enumerate(told):
        assert extra == {"step": 4, "from": rank if rank in holders else holders[0]}


def test_a_joiner_can_train_on_from_what_it_got() -> None:
    states = [state_of(1, 2), state_of(7, 0)]
    group = fake_group(2)
    on_ranks(2, lambda rank: share_state(group[rank], states[rank], [0], {}))
    optimizer = states[1].optimizers[""]
    for parameter in states[1].models["a"].parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert states[0].quick_digest() != states[1].quick_digest()
    assert states[0].notes == states[1].notes == {"steps": 2, "seed": 1}


def test_a_joiner_is_as_before_when_the_holder_is_lost() -> None:
    state, group = state_of(7, 1), fake_group(2)
    before = content(state)
    group[0].bury()
    with pytest.raises(GenerationLost):
        share_state(group[1], state, [0], {})
    assert content(state) == before
