"""What a pass keeps on a device, as its allocator tells it."""

from __future__ import annotations

import torch
from torch import nn

from rubato.activations import DeviceMemory, follow

CUDA = torch.device("cuda", 0)
SIDE = 1024


def test_a_device_holds_what_layers_give_on() -> None:
    """The gradients of two large layers are left out: with few samples they would be most of it."""
    model = nn.Sequential(nn.Linear(SIDE, SIDE), nn.ReLU(), nn.Linear(SIDE, SIDE)).to(CUDA)

    def kept_bytes(samples: int) -> int:
        model.zero_grad()
        x = torch.randn(samples, SIDE, device=CUDA)
        with follow(CUDA, [model], x) as kept:
            loss = model(x).square().sum()
            kept.turn()
            loss.backward()
        assert isinstance(kept, DeviceMemory)
        return kept.most_bytes

    kept_bytes(64)  # the libraries' own memory stays
    weight, few, many = 4 * SIDE * SIDE, kept_bytes(64), kept_bytes(8192)
    given_on = 2 * 4 * SIDE
    assert 0 < few < 2 * weight
    assert given_on <= (many - few) / (8192 - 64) <= 3 * given_on
