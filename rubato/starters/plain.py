"""A small training program. Run it as it is (one worker), with local workers, or as a job:

    python train.py --config epochs=3
    rubato run train.py --workers 4
    rubato submit job.yaml --follow

The weights are the same bits in all three, whatever the worker count.
"""

import torch
from torch import nn

import rubato


def make_data(samples: int = 4096) -> torch.utils.data.TensorDataset:
    """Two interleaved spirals; put your own dataset here. All workers must see the same samples in the same order."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(samples) % 2
    radius = torch.rand(samples, generator=generator)
    angle = radius * 9 + labels * torch.pi
    points = torch.stack((radius * angle.cos(), radius * angle.sin()), 1)
    points += 0.02 * torch.randn(samples, 2, generator=generator)
    return torch.utils.data.TensorDataset(points, labels)


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    config = run.config
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.01))
    run.prepare(model=model, optimizer=optimizer, dataset=make_data())

    for step in run.steps(epochs=config.get("epochs", 20)):  # A worker that joins late starts where the job is.
        for points, labels in step:  # This worker's microbatches, and those of a worker that was lost.
            step.backward(nn.functional.cross_entropy(model(points), labels))
        optimizer.step()  # The gradients are those of the whole batch now, equal on every worker.


if __name__ == "__main__":
    rubato.main(train)
