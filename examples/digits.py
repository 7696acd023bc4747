"""Handwritten digits: a small convolutional network, a learning rate schedule, and the accuracy once an epoch.

python examples/digits.py --config epochs=3
rubato run examples/digits.py --workers 4
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import rubato

TEST_SAMPLES = 297


def load() -> tuple[torch.utils.data.TensorDataset, torch.utils.data.TensorDataset]:
    """Train and test: images (1, 8, 8) from 0 to 1, and labels."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = slice(TEST_SAMPLES, None), slice(TEST_SAMPLES)
    return (
        torch.utils.data.TensorDataset(images[train], labels[train]),
        torch.utils.data.TensorDataset(images[test], labels[test]),
    )


def build_model(width: int = 16) -> nn.Sequential:
    """What `examples/fine_tune.py` begins from, too: the trunk, and behind it the head."""
    trunk = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
    return nn.Sequential(trunk, nn.Linear(2 * width * 16, 10))


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    train_set, test_set = load()
    model = build_model().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.config.get("lr", 0.003))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    run.prepare(model=model, optimizer=optimizer, scheduler=schedule, dataset=train_set)

    def accuracy(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (model(images).argmax(1) == labels).float().mean()

    for epoch in run.epochs():  # steps or epochs of the config
        for step in epoch:
            for images, labels in step:
                step.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
        schedule.step()
        run.log(accuracy=run.evaluate(test_set, accuracy))


if __name__ == "__main__":
    rubato.main(train)
