"""Measure links: what the network between the workers of a job carries, for `rubato plan --links-of`.

    rubato submit --recipe measure-links --name links --workers 4
    rubato plan job.yaml --links-of links

It trains next to nothing; its metrics are the latency, the bandwidth, and what each way to add up gradients takes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import TensorDataset

import rubato


@dataclass(frozen=True)
class Config:
    """What `config:` of a job spec and `--config` may set."""

    rounds: int = 5
    """How many times all is measured; `rubato plan` takes the medians."""


def train(run: rubato.Run) -> None:
    """Measure once a step. Steps with one worker, or in which one is lost, measure nothing."""
    config = Config(**run.config)
    model = nn.Linear(1, 1).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run.prepare(model, optimizer, TensorDataset(torch.zeros(run.batch_size, 1)))
    for step in run.steps(steps=config.rounds):
        for (x,) in step:
            step.backward(model(x).mean())
        optimizer.step()
        run.log(**run.measure_links())


if __name__ == "__main__":
    rubato.main(train)
