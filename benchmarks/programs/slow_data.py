"""A small classifier whose samples cost time to read: waiting, or computing."""

import time

import torch
from torch import nn
from torch.nn import functional as F

import rubato


class SlowSamples(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, kind: str, sample_s: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(4096, 256, generator=generator)
        self.y = (self.x.sum(1) > 0).long()
        self.kind, self.sample_s = kind, sample_s

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.kind == "wait":
            time.sleep(self.sample_s)
        else:
            ends = time.thread_time() + self.sample_s  # of this thread's own, however busy the machine is
            while time.thread_time() < ends:
                pass
        return self.x[index] + 0.01 * torch.randn(256), self.y[index]


def train(run: rubato.Run) -> None:
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = SlowSamples(run.config["kind"], run.config["sample_ms"] / 1000)
    run.prepare(model=model, optimizer=optimizer, dataset=data, prefetch=run.config["prefetch"])
    for step in run.steps():
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
