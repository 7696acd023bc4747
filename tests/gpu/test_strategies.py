"""Strategies whose vectors are on a device give what they give in the memory of the CPU."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from groups import fake_group, on_ranks

from rubato.engine.aggregation import compressor_of
from rubato.engine.comm import Communicator
from rubato.strategies.layout import layout_of
from rubato.wire.aggregation import AggregationSpec, Algorithm, CompressionSpec, Method
from tests.gpu.test_communicator import CUDA, device_group

LAYOUT = layout_of(
    160, [("a.weight", 16, (6, 9)), ("a.bias", 80, (6,)), ("b.weight", 96, (3, 4, 2)), ("c", 128, (1, 5))]
)
WORLD, STEPS = 3, 2
SPECS = {
    **{name: AggregationSpec(algorithm=name) for name in get_args(Algorithm)},
    **{
        name: AggregationSpec(compression=CompressionSpec(name, density=0.1, rank=2, threshold=0.5))
        for name in get_args(Method)
    },
}


def totals(spec: AggregationSpec, group: list[Communicator], device: torch.device) -> list[torch.Tensor]:
    """What all take for the sums of some steps, equal on all."""
    compressor = compressor_of(spec, LAYOUT, 0.1, [0] * WORLD, seed=0)
    vectors = torch.randn(STEPS, WORLD, LAYOUT.length, generator=torch.Generator().manual_seed(0)).to(device)

    def play(rank: int) -> list[torch.Tensor]:
        state, found = compressor.start(vectors[0, rank]), []
        for step in range(STEPS):
            total, state = compressor.exchange(group[rank], vectors[step, rank].clone(), state, step)
            found.append(total)
        return found

    by_rank = on_ranks(WORLD, play)
    for found in by_rank:
        assert all(torch.equal(one, first) for one, first in zip(found, by_rank[0], strict=True))
        assert all(one.device.type == device.type for one in found)
    return by_rank[0]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_on_a_device(name: str) -> None:
    expected = totals(SPECS[name], list(fake_group(WORLD)), torch.device("cpu"))
    with device_group(WORLD) as group:
        found = totals(SPECS[name], group, CUDA)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu"])
@pytest.mark.parametrize("name", sorted(SPECS))
def test_what_is_expected_of_a_device(name: str, device: str) -> None:
    for total in totals(SPECS[name], list(fake_group(WORLD)), torch.device(device)):
        assert total.shape == (LAYOUT.length,)
        assert torch.isfinite(total).all()
