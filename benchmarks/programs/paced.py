"""A perceptron whose passes take a time of their own per sample, as on devices that leave the cores free."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rubato

WIDTHS = 512, 512, 256, 10
SAMPLES = 4_096


class Timed(torch.autograd.Function):
    """Waits on both ways."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds * len(x)
        time.sleep(ctx.seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Layer(nn.Module):
    """Linear, and as long as it is told."""

    def __init__(self, inputs: int, outputs: int, seconds: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Timed.apply(self.linear(x).relu(), self._seconds)  # type: ignore[no-untyped-call]
        return out


def train(run: rubato.Run) -> None:
    """Noise to noise."""
    seconds = run.config["sample_s"] / (len(WIDTHS) - 1)
    model = nn.Sequential(*(Layer(one, other, seconds) for one, other in pairwise(WIDTHS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    dataset = TensorDataset(torch.randn(SAMPLES, WIDTHS[0]), torch.randint(WIDTHS[-1], (SAMPLES,)))
    run.prepare(model, optimizer, dataset)
    for step in run.steps(steps=run.config["steps"]):
        for x, y in step:
            step.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
