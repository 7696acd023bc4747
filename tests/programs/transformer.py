"""Attention with dropout, tied weights, an embedding of which parts are unused, SGD with momentum, an unused layer."""

import torch
from pace import pace
from torch import nn
from torch.nn import functional as F

import rubato
from rubato.engine import flat

flat.BUCKET_BYTES = 1024  # these models are small, and are to be exchanged in pieces as large ones are


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(23, 24)
        self.block = nn.TransformerEncoderLayer(24, 2, 40, dropout=0.1, batch_first=True)
        self.head = nn.Linear(24, 23, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Linear(3, 3)
        self.sometimes = nn.Linear(24, 24)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.block(self.embedding(tokens))
        if int(tokens.sum()) % 3 == 0:
            hidden = hidden + self.sometimes(hidden)
        return self.head(hidden)


def train(run: rubato.Run) -> None:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    generator = torch.Generator().manual_seed(5)
    data = [torch.randint(0, 20, (9,), generator=generator) for _ in range(250)]
    run.prepare(model=model, optimizer=optimizer, dataset=data)
    for step in run.steps():
        for tokens in step:
            pace(run, step)
            logits = model(tokens[:, :-1])
            step.backward(F.cross_entropy(logits.reshape(-1, 23), tokens[:, 1:].reshape(-1)))
        optimizer.step()


if __name__ == "__main__":
    rubato.main(train)
