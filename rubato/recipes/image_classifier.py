"""Image classifier: a small convolutional network on scikit-learn's 1,797 handwritten digits.

    python image_classifier.py                                      one worker, this process
    python image_classifier.py --config epochs=20 --config lr=0.001
    rubato run image_classifier.py --workers 4                      local processes, scaled while they train

The network has BatchNorm and dropout, and the images are shifted at random: the weights are bit-identical all the same,
however many workers train and however often that changes.
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import rubato


@dataclass(frozen=True)
class Config:
    """What `config:` of a job spec and `--config` may set."""

    epochs: int = 100
    steps: int | None = None
    """Stop after so many steps, whatever the epochs."""
    lr: float = 0.002
    decay: float = 0.996
    """The learning rate is multiplied by this at every step."""
    width: int = 32
    """Channels of the first layers; the later ones have twice as many."""
    dropout: float = 0.3
    evaluate_every: int = 30
    """Steps between two measurements of the test accuracy."""


def load_digits() -> torch.Tensor:
    """(1797, 65): for each image its 8x8 pixels, from 0 to 16, and its digit.

    From the file that scikit-learn has, without importing it: that takes as long as importing torch.

    Raises: ModuleNotFoundError: scikit-learn is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits are scikit-learn's: pip install scikit-learn", name="sklearn")
    with gzip.open(Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as lines:
        return torch.tensor([[float(value) for value in line.split(",")] for line in lines])


class Digits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """8x8 images and their digits; every fifth is kept for the test, the others are shifted by up to a pixel."""

    def __init__(self, *, train: bool) -> None:
        digits = load_digits()
        # Fixed, and not by the job's seed: every run is tested on the same images.
        order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
        chosen = digits[order[torch.arange(len(order)) % 5 != 0] if train else order[::5]]
        self.images = chosen[:, :-1].reshape(-1, 1, 8, 8) / 16
        self.labels = chosen[:, -1].long()
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.train:
            # Random numbers need no care: Rubato seeds them by the epoch and the sample.
            right, down = torch.randint(3, (2,)).tolist()
            image = F.pad(image, (1, 1, 1, 1))[:, down : down + 8, right : right + 8]
        return image, self.labels[index]


def convolution(channels_in: int, channels_out: int) -> nn.Module:
    """3x3, normalised over the batch."""
    layers = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False), nn.BatchNorm2d(channels_out), nn.ReLU()
    return nn.Sequential(*layers)


def network(width: int, dropout: float) -> nn.Module:
    """(N, 1, 8, 8) images to (N, 10) logits."""
    return nn.Sequential(
        convolution(1, width),
        convolution(width, width),
        nn.MaxPool2d(2),
        convolution(width, 2 * width),
        convolution(2 * width, 2 * width),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * 2 * 2, 64),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(64, 10),
    )


def train(run: rubato.Run) -> None:
    """Train, and log the share of test images that are recognised as `accuracy`."""
    config = Config(**run.config)
    model = network(config.width, config.dropout).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, config.decay)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=Digits(train=True))
    test_set = Digits(train=False)

    def recognised(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.mean((model(images).argmax(dim=1) == labels).float())

    for step in run.steps(epochs=config.epochs, steps=config.steps):
        for images, labels in step:
            step.backward(F.cross_entropy(model(images), labels, label_smoothing=0.05))
        optimizer.step()
        scheduler.step()
        if step.every(config.evaluate_every):
            accuracy = run.evaluate(test_set, recognised)
            run.log(accuracy=accuracy, lr=optimizer.param_groups[0]["lr"])
            print(f"step {step.index + 1}: {accuracy:.2%} of the test images recognised")


if __name__ == "__main__":
    rubato.main(train)
