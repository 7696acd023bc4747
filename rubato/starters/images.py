"""Image classification: a small convolutional network, its accuracy, and a learning rate schedule.

    python train.py --config epochs=3
    rubato run train.py --workers 4
    rubato submit job.yaml --follow

The loop is said in one call (`rubato.train`); what it does step by step is in the documentation.
"""

import torch
from torch import nn

import rubato

CLASSES = 4


class Stripes(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Noisy stripes in four directions; put your own dataset here, such as torchvision.datasets.ImageFolder.

    A sample must follow from its index alone. Random augmentation is fine: torch's generator is seeded for each sample.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self.seed = samples, seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % CLASSES
        angle = torch.tensor(label * torch.pi / CLASSES)
        y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
        phase = 6.3 * torch.rand((), generator=generator)
        stripes = torch.sin(x * angle.cos() + y * angle.sin() + phase)
        image = stripes + 0.8 * torch.randn(16, 16, generator=generator)
        if torch.rand(()) < 0.5:
            image = -image  # an augmentation: with the bits of the sample's own seed
        return image.unsqueeze(0), label


def build_model(run: rubato.Run) -> nn.Module:
    """Called once the generators are seeded, so that all workers begin with the same weights."""
    width = run.config.get("width", 16)
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * width * 16, CLASSES),
    )  # fmt: skip


def accuracy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean over a batch, as evaluations want it."""
    return (output.argmax(1) == target).float().mean()


train = rubato.train(
    model=build_model,
    optimizer=lambda run, model: torch.optim.AdamW(model.parameters(), lr=run.config.get("lr", 0.003)),
    scheduler=lambda run, optimizer: torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5),
    scheduler_per="step",
    dataset=Stripes(2048, seed=1),
    loss_fn=nn.functional.cross_entropy,
    evaluate={"accuracy": rubato.Evaluation(Stripes(512, seed=2), accuracy)},
)  # epochs come from the config

if __name__ == "__main__":
    rubato.main(train)
