"""Sizes that divide nothing, weights of its own, and an evaluation smaller than the workers are many."""

import torch
from pace import pace
from torch import nn

import rubato


def train(run: rubato.Run) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(run.config["samples"], 7, generator=generator)
    data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
    few = torch.utils.data.TensorDataset(rows[:2], rows[:2].sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(7, 19), nn.Tanh(), nn.Linear(19, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=data)

    def error(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x) - y).abs().mean()

    for step in run.steps():
        for x, y in step:
            pace(run, step)
            positive = (y > 0).float()
            loss = ((model(x) - y).square() * positive).sum() / positive.sum().clamp(min=1)
            step.backward(loss, weight=float(positive.sum()))
        optimizer.step()
        # What was measured decides, so that a wrong bit of it would show in the weights.
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1.0 + run.evaluate(few, error, batch=1) + run.evaluate(data, error, batch=5))


if __name__ == "__main__":
    rubato.main(train)
