"""Models whose passes take a time of their own per sample, as on devices that leave the cores free."""

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
IMAGE, CLASSES = (3, 32, 32), 100
FLAT, HIDDEN = 32 * 2 * 2, 640


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


class Convolutional(nn.Module):
    """A hundredth of AlexNet: 23,000 parameters in front, which take the time, and 557,000 behind the cut."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(12, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(FLAT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        told = Timed.apply(self.features(x), self._seconds)  # type: ignore[no-untyped-call]
        out: torch.Tensor = self.classifier(told)
        return out


def train(run: rubato.Run) -> None:
    """A perceptron, noise to noise."""
    seconds = run.config["sample_s"] / (len(WIDTHS) - 1)
    model = nn.Sequential(*(Layer(one, other, seconds) for one, other in pairwise(WIDTHS)))
    _fit(run, model, torch.randn(SAMPLES, WIDTHS[0]), WIDTHS[-1])


def train_convolutional(run: rubato.Run) -> None:
    """Convolutional layers and a classifier, noise to noise."""
    images = torch.randn(SAMPLES, *IMAGE)
    _fit(run, Convolutional(run.config["sample_s"]), images, CLASSES)


def _fit(run: rubato.Run, model: nn.Module, samples: torch.Tensor, classes: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    run.prepare(model, optimizer, TensorDataset(samples, torch.randint(classes, (len(samples),))))
    for step in run.steps(steps=run.config["steps"]):
        for x, y in step:
            step.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
