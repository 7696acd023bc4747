"""Shards of unequal length without an index, one of them empty; augmentation, dropout, evaluation."""

import itertools
from collections.abc import Iterator

import torch
from pace import pace
from torch import nn
from torch.nn import functional as F

import rubato
from rubato.data import ShardedStream

LENGTHS = [40, 0, 17, 5, 33, 61, 8, 1, 23, 12, 90, 3, 29, 14]


def read(shard: int, offset: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(shard)
    rows = torch.randn(LENGTHS[shard], 13, generator=generator)
    for row in itertools.islice(rows, offset, None):
        noisy = row + 0.01 * torch.randn(13)
        yield noisy, (row.sum() > 0).long()


def train(run: rubato.Run) -> None:
    model = nn.Sequential(nn.Linear(13, 21), nn.BatchNorm1d(21), nn.ReLU(), nn.Dropout(0.2), nn.Linear(21, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    run.prepare(model=model, optimizer=optimizer, dataset=ShardedStream(range(len(LENGTHS)), read))
    test_set = [(torch.full((13,), index / 7.0), index % 2) for index in range(3)]

    def hit(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x).argmax(1) == y).float().mean()

    for step in run.steps():
        for x, y in step:
            pace(run, step)
            step.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        if step.every(7):
            run.log(accuracy=run.evaluate(test_set, hit, batch=1))


if __name__ == "__main__":
    rubato.main(train)
