"""The four models of the oracle, each with what makes it hard: a function of the run, ready to train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import rubato
from rubato.engine import flat

flat.BUCKET_BYTES = 1024  # these models are small, and are to be exchanged in pieces as large ones are

Loss = Callable[..., torch.Tensor]
SAMPLES = 250


def _numbers() -> torch.Generator:
    return torch.Generator().manual_seed(5)


class Classifier(nn.Module):
    """Any body over points; 250 samples leave an uneven tail."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), y)


class Language(nn.Module):
    """Attention with dropout, tied weights, a layer that only some microbatches reach, another that none does."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(43, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.2, batch_first=True) if attends else nn.Identity()
        self.sometimes = nn.Linear(16, 16)
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(16, 43, bias=False)
        if attends:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.block(self.embedding(tokens[:, :-1]))
        if int(tokens.sum()) % 3 == 0:
            hidden = hidden + self.sometimes(hidden)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def mlp() -> nn.Module:
    width = int(Path(__file__).with_name("width.txt").read_text())  # not in the code: workers may find another one
    return Classifier(nn.Sequential(nn.Linear(48, width), nn.Tanh(), nn.Linear(width, 2)))


def cnn() -> nn.Module:
    body = nn.Sequential(nn.Unflatten(1, (3, 4, 4)), nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.ReLU(), nn.Flatten())
    return Classifier(nn.Sequential(body, nn.Dropout(0.2), nn.Linear(28, 2)))


def wide() -> nn.Module:
    """Of 0.8 MB: large enough for a link to be slow."""
    return Classifier(nn.Sequential(nn.Linear(48, 4000), nn.Tanh(), nn.Linear(4000, 2)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "wide": wide,
    "mlp": mlp,
    "cnn": cnn,
    "transformer": lambda: Language(attends=True),
    "embedding": lambda: Language(attends=False),
}


def prepare(run: rubato.Run) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Build what `config.model` names, and say so."""
    name = run.config["model"]
    model = MODELS[name]()
    optimizer: torch.optim.Optimizer
    if name in ("mlp", "transformer"):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    if name in ("mlp", "cnn", "wide"):
        x = torch.randn(SAMPLES, 48, generator=_numbers())
        data: object = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
    else:
        data = [torch.randint(0, 20, (9,), generator=_numbers()) for _ in range(SAMPLES)]
    run.prepare(model=model, optimizer=optimizer, dataset=data)
    return model, optimizer
