"""Ranks are threads; the oracle is one process that has all layers and all samples."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from groups import FakeCommunicator, fake_group, on_ranks

from rubato.strategies.layer_separation import Asking, Roles, answer, sum_gradients
from rubato.strategies.sizes import elements_sent

SIDE, CHANNELS, HIDDEN, CLASSES = 6, 2, 32, 4
INPUTS = CHANNELS * 4 * 4
STEPS = 8


def made(*layers: torch.nn.Module) -> torch.nn.Module:
    return torch.nn.Sequential(*layers).double()


with torch.random.fork_rng():
    torch.manual_seed(0)
    FRONT = made(torch.nn.Conv2d(1, CHANNELS, 3), torch.nn.Tanh(), torch.nn.Flatten())
    BACK = made(torch.nn.Linear(INPUTS, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, CLASSES))


def sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def samples(step: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(count, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def alone(count: int) -> list[torch.Tensor]:
    ends = deepcopy(FRONT), deepcopy(BACK)
    parameters = [one for end in ends for one in end.parameters()]
    optimizer = sgd(parameters)
    for step in range(STEPS):
        x, y = samples(step, count)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ends[1](ends[0](x)), y).backward()
        optimizer.step()
    return parameters


def separated(roles: Roles, counts: list[int]) -> tuple[list[list[torch.Tensor]], list[FakeCommunicator]]:
    world = len(roles.front) + len(roles.keepers)
    group = fake_group(world)

    def one(rank: int) -> list[torch.Tensor]:
        comm, is_conv = group[rank], roles.is_conv(rank)
        layers = deepcopy(FRONT if is_conv else BACK)
        behind = Asking(comm, roles, CLASSES) if is_conv else None
        parameters = list(layers.parameters())
        optimizer = sgd(parameters)
        for step in range(STEPS):
            optimizer.zero_grad()
            if behind is not None:
                x, y = samples(step, sum(counts))
                low = sum(counts[:rank])
                mine = slice(low, low + counts[rank])
                loss = torch.nn.functional.cross_entropy(behind(layers(x[mine])), y[mine], reduction="sum")
                (loss / sum(counts)).backward()
            else:
                answer(comm, roles, layers, counts, INPUTS, torch.float64)
            sum_gradients(comm, roles, parameters)
            optimizer.step()
        return [parameter.detach() for parameter in parameters]

    return on_ranks(world, one), group


@pytest.mark.parametrize(("conv", "fc"), [(1, 1), (2, 1), (3, 1), (4, 2), (3, 2), (2, 3)])
def test_it_is_synchronous_sgd_over_all_samples(conv: int, fc: int) -> None:
    counts = [3 + rank for rank in range(conv)]
    expected = alone(sum(counts))
    front_parts = len(list(FRONT.parameters()))
    done, _ = separated(Roles.counted(conv, fc), counts)
    for rank, parameters in enumerate(done):
        wanted = expected[:front_parts] if rank < conv else expected[front_parts:]
        for found, right in zip(parameters, wanted, strict=True):
            torch.testing.assert_close(found, right.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("conv", "fc"), [(3, 1), (3, 2)])
def test_what_is_behind_the_cut_stays_there(conv: int, fc: int) -> None:
    counts = [4] * conv
    roles = Roles.counted(conv, fc)
    _, group = separated(roles, counts)
    front_numel = sum(one.numel() for one in FRONT.parameters())
    back_numel = sum(one.numel() for one in BACK.parameters())
    for rank in range(conv):
        told = 4 * (INPUTS + CLASSES) + elements_sent("direct", rank, conv, front_numel)
        assert group[rank].sent_bytes == 8 * STEPS * told
    for rank in range(conv, conv + fc):
        asked = len(roles.asked_by(rank))
        told = asked * 4 * (INPUTS + CLASSES) + elements_sent("direct", rank - conv, fc, back_numel)
        assert group[rank].sent_bytes == 8 * STEPS * told


def test_every_conv_worker_has_an_fc_worker() -> None:
    roles = Roles.counted(5, 2)
    assert [roles.asks(rank) for rank in range(5)] == [5, 6, 5, 6, 5]
    assert [roles.asked_by(rank) for rank in (5, 6)] == [[0, 2, 4], [1, 3]]
    assert [list(roles.group(rank)) for rank in (0, 6)] == [[0, 1, 2, 3, 4], [5, 6]]
