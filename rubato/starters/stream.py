"""Data that comes in shards and has no index: files of lines that are read one after the other.

    python train.py --config steps=20
    rubato run train.py --workers 4
    rubato submit job.yaml --follow

A worker that takes over, after a loss or a resize, opens a shard where the one before it stood: no sample is left out.
"""

from collections.abc import Iterator

import torch
from torch import nn

import rubato
from rubato.data import ShardedStream

SHARDS = [f"shard-{number}" for number in range(64)]
"""Put your own here, such as sorted(glob("data/*.jsonl")): a few times as many as microbatches, of similar size."""
LINES = 500


def read(shard: str, offset: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The samples of a shard from number `offset` on, always in the same order. For files of lines:

    with open(shard) as lines:
        for line in itertools.islice(lines, offset, None):
            yield encode(json.loads(line))
    """
    for number in range(offset, LINES):
        generator = torch.Generator().manual_seed(SHARDS.index(shard) * LINES + number)
        x = torch.randn(8, generator=generator)
        yield x, (x[:4] * x[4:]).sum().unsqueeze(0)


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    config = run.config
    width = config.get("width", 128)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    model = model.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.003))
    run.prepare(model=model, optimizer=optimizer, dataset=ShardedStream(SHARDS, read))

    for step in run.steps(steps=config.get("steps", 200)):  # a stream has no epochs
        for inputs, target in step:
            step.backward(nn.functional.mse_loss(model(inputs), target))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
