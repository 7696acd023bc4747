"""The outer optimizer is torch's."""

from __future__ import annotations

import pytest
import torch

from rubato.strategies.local_updates import Outer

NUMEL = 24


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("is_nesterov", [True, False])
def test_the_outer_optimizer_is_torchs(momentum: float, is_nesterov: bool) -> None:
    if is_nesterov and not momentum:
        is_nesterov = False  # torch refuses it, and it would change nothing
    parameter = torch.nn.Parameter(torch.ones(NUMEL, dtype=torch.float64))
    torchs = torch.optim.SGD([parameter], lr=0.7, momentum=momentum, nesterov=is_nesterov)
    outer = Outer(0.7, momentum, is_nesterov)
    weights, gathered = parameter.detach().clone(), torch.zeros(NUMEL, dtype=torch.float64) if momentum else None
    for step in range(5):
        way = torch.randn(NUMEL, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        parameter.grad = way
        torchs.step()
        weights -= 0.7 * outer.direction(way, gathered)
        torch.testing.assert_close(weights, parameter.detach())
