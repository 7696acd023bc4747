"""BatchNorm, dropout, AdamW with clipping, a scheduler, random augmentation, an uneven tail, evaluation."""

import torch
from pace import pace, wait_at_the_door
from torch import nn
from torch.nn import functional as F

import rubato
from rubato.engine import flat

flat.BUCKET_BYTES = 1024  # these models are small, and are to be exchanged in pieces as large ones are


class Points(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 21, generator=generator)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + 0.01 * torch.randn(21), self.y[index]


def train(run: rubato.Run) -> None:
    wait_at_the_door(run)
    model = nn.Sequential(
        nn.Linear(21, 33),
        nn.BatchNorm1d(33),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(33, 17),
        nn.ReLU(),
        nn.Linear(17, 2),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=100_000)
    run.prepare(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        dataset=Points(1003),
        prefetch=run.config.get("prefetch", 0),
    )
    test_set = Points(101)

    def hit(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x).argmax(1) == y).float().mean()

    for step in run.steps():
        for x, y in step:
            pace(run, step)
            step.backward(F.cross_entropy(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        run.state["seen"] = run.state.get("seen", 0) + 1
        if step.every(5):
            run.log(accuracy=run.evaluate(test_set, hit, batch=13))
    run.log(final_accuracy=run.evaluate(test_set, hit, batch=13))


if __name__ == "__main__":
    rubato.main(train)
