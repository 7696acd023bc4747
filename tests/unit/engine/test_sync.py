"""Ranks are threads over real gloo on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from groups import fake_group, gloo_group, on_ranks
from torch import nn

from rubato.engine.comm import Communicator
from rubato.engine.state import TrainingState, digest_of_part
from rubato.engine.sync import Snapshot, receive_snapshot, send_snapshot
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


def share(group: Sequence[Communicator], rank: int, state: TrainingState, holders: list[int]) -> dict[str, Any]:
    """What a rank does: the holders give, the others install. Returns what was told beside the state."""
    joiners = [one for one in range(len(group)) if one not in holders]
    if rank in holders:
        snapshot = Snapshot(state, {"step": 4, "from": rank}, holders.index(rank), len(holders))
        snapshot.copy()
        send_snapshot(group[rank], snapshot, joiners)
        return {}
    received = receive_snapshot(group[rank])
    state.install(received.document, received.tensors)
    return received.extra


@pytest.mark.parametrize(
    ("world", "holders"), [(2, [0]), (2, [1]), (3, [0, 1]), (3, [2]), (4, [0, 2]), (4, [1, 2, 3]), (4, [3])]
)
def test_joiners_get_the_bytes_of_the_holders(world: int, holders: list[int]) -> None:
    expected = content(state_of(1, 4))
    states = [state_of(1, 4) if rank in holders else state_of(rank + 10, rank % 2) for rank in range(world)]
    with gloo_group(world) as group:
        told = on_ranks(world, lambda rank: share(group, rank, states[rank], holders))
    assert all(content(state) == expected for state in states)
    for rank in set(range(world)) - set(holders):
        assert told[rank] == {"step": 4, "from": holders[0]}


def test_a_joiner_can_train_on_from_what_it_got() -> None:
    states = [state_of(1, 2), state_of(7, 0)]
    group = fake_group(2)
    on_ranks(2, lambda rank: share(group, rank, states[rank], [0]))
    train_a_step(states[1])
    assert content(states[0]) != content(states[1])
    assert states[0].notes == states[1].notes == {"steps": 2, "seed": 1}


def test_what_changes_before_the_copy_is_captured_at_once() -> None:
    """Buffers, registered things and scalars may change while the share is copied; what is sent is of the boundary."""
    state, group = state_of(1, 2), fake_group(2)
    expected = content(state)
    snapshot = Snapshot(state, {}, 0, 1)
    for _, buffer in state.named_buffers():
        buffer.add_(1)
    state.optimizers[""].param_groups[0]["lr"] = 9.0
    state.registered["scheduler"].last_epoch = 99
    state.notes["steps"] = 99
    snapshot.copy()
    train_a_step(state)  # after the copy everything may change
    joiner = state_of(7, 0)

    def play(rank: int) -> None:
        if rank == 0:
            send_snapshot(group[0], snapshot, [1])
        else:
            received = receive_snapshot(group[1])
            joiner.install(received.document, received.tensors)

    on_ranks(2, play)
    assert content(joiner) == expected


def test_a_joiner_is_as_before_when_the_holder_is_lost() -> None:
    state, group = state_of(7, 1), fake_group(2)
    before = content(state)
    group[0].bury()
    with pytest.raises(GenerationLost):
        share(group, 1, state, [0])
    assert content(state) == before


def train_a_step(state: TrainingState) -> None:
    for parameter in state.models["a"].parameters():
        parameter.grad = torch.ones_like(parameter)
    state.optimizers[""].step()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_shares_of_a_digest_tell_where_states_differ(parts: int) -> None:
    one, other = state_of(1, 4), state_of(1, 4)
    shares = [digest_of_part(*one.encode(), part, parts) for part in range(parts)]
    assert shares == [digest_of_part(*other.encode(), part, parts) for part in range(parts)]
    with torch.no_grad():
        next(iter(other.models["a"].parameters())).view(-1)[0] += 1
    differing = [part for part in range(parts) if shares[part] != digest_of_part(*other.encode(), part, parts)]
    assert differing == [0]


@pytest.mark.parametrize("size", [1, 24, 100])
def test_a_state_of_many_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("rubato.engine.sync.PIECE_BYTES", size)
    states = [state_of(1 if rank in (0, 2) else 9, steps=2) for rank in range(4)]
    fakes = fake_group(4)
    on_ranks(4, lambda rank: share(fakes, rank, states[rank], [0, 2]))
    assert content(states[1]) == content(states[3]) == content(states[0])
