"""The workload of the benchmarks: an MLP of 10 million parameters, SGD, global batch 256, one thread a worker."""

import torch
from torch import nn
from torch.nn import functional as F

import rubato

WIDTH = 1780


def model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
        nn.Linear(WIDTH, WIDTH // 2), nn.ReLU(), nn.Linear(WIDTH // 2, 10),
    )  # fmt: skip


class Noise(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, count: int = 4096) -> None:
        self.x = torch.randn(count, 784, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], index % 10


def train(run: rubato.Run) -> None:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    run.prepare(model=network, optimizer=optimizer, dataset=Noise())
    for step in run.steps():
        for x, y in step:
            step.backward(F.cross_entropy(network(x), y))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
