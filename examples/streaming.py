"""Data of your own that comes as a stream: compressed files of JSON lines, read one after the other.

    python examples/streaming.py --config steps=20
    rubato run examples/streaming.py --workers 4 --config steps=200

A worker that takes over a shard opens it where the one before it stood, so no sample is left out and none comes twice.
Here the file is decompressed up to that place; a format that can seek gets there at once.
"""

import gzip
import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import rubato
from rubato.data import ShardedStream

SHARDS, LINES = 48, 100
FOLDER = Path(tempfile.gettempdir()) / f"rubato-example-stream-{SHARDS}-{LINES}"
"""Put your own here."""


def write_shards() -> None:
    """Make the files where they are missing: a wave in each line, and what it is a wave of."""
    FOLDER.mkdir(exist_ok=True)
    for number in range(SHARDS):
        path = FOLDER / f"{number:03}.jsonl.gz"
        if path.exists():
            continue
        generator = torch.Generator().manual_seed(number)
        lines = []
        for _ in range(LINES):
            frequency = 1 + 4 * torch.rand((), generator=generator).item()
            wave = [round(math.sin(frequency * point / 4), 4) for point in range(32)]
            lines.append(json.dumps({"wave": wave, "frequency": frequency}))
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
        partial.replace(path)  # whole or not there, also where two workers write it


def read(path: str, offset: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The samples of a shard from number `offset` on, always in the same order."""
    with gzip.open(path, "rt") as lines:
        for line in itertools.islice(lines, offset, None):
            sample = json.loads(line)
            yield torch.tensor(sample["wave"]), torch.tensor([sample["frequency"]])


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    write_shards()
    shards = sorted(str(path) for path in FOLDER.glob("*.jsonl.gz"))
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.config.get("lr", 0.003))
    run.prepare(model=model, optimizer=optimizer, dataset=ShardedStream(shards, read))

    for step in run.steps(steps=run.config.get("steps", 200)):  # a stream has no epochs
        for waves, frequencies in step:
            step.backward(nn.functional.mse_loss(model(waves), frequencies))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
