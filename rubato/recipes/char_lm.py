"""Character language model: a small GPT that learns to write Python from the source of Python's standard library.

    python char_lm.py                                   one worker, this process
    python char_lm.py --config layers=4 --config width=128
    rubato run char_lm.py --workers 4                   local processes, scaled while they train

The text is that of the Python that runs it: nothing is downloaded, and all workers must run the same Python.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import rubato

CHARACTERS = 128
"""ASCII; every other character is read as '?'."""


@dataclass(frozen=True)
class Config:
    """What `config:` of a job spec and `--config` may set."""

    epochs: int = 3
    steps: int | None = None
    """Stop after so many steps, whatever the epochs."""
    lr: float = 0.003
    warmup_steps: int = 20
    """Steps over which the learning rate rises."""
    width: int = 64
    layers: int = 2
    heads: int = 4
    context: int = 32
    """Characters the model sees."""
    dropout: float = 0.1
    max_characters: int = 1_000_000
    """Of the text; the last twentieth is kept for validation."""
    evaluate_every: int = 50
    """Steps between two measurements of the validation loss."""


def read_text(max_characters: int) -> torch.Tensor:
    """The top-level modules of the standard library, in the order of their names, as character codes."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    codes = bytearray()
    for file in files:
        codes += file.read_text(encoding="utf-8").encode("ascii", "replace")
        if len(codes) >= max_characters:
            break
    if not codes:
        raise FileNotFoundError(f"no Python source in {Path(os.__file__).parent}: this Python ships without it")
    return torch.frombuffer(codes[:max_characters], dtype=torch.uint8).long()


class Windows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Consecutive windows of a text: the characters seen, and the one that follows each of them."""

    def __init__(self, text: torch.Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index * self.context : (index + 1) * self.context + 1]
        return window[:-1], window[1:]


# Shapes: N windows, T characters of context, D width, H heads.


class Block(nn.Module):
    """Attention to what came before, then a perceptron; both are added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, D) to (N, T, D)."""
        x = x + self.dropout(self.attend(self.before_attention(x)))
        update: torch.Tensor = self.dropout(self.perceptron(self.before_perceptron(x)))
        return x + update

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Mix every position with those before it."""
        n, t, d = x.shape
        query, key, value = self.query_key_value(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # (N, H, T, D / H)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(n, t, d))
        return result


class GPT(nn.Module):
    """A stack of blocks between one embedding used both ways."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.characters = nn.Embedding(CHARACTERS, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, CHARACTERS, bias=False)
        self.head.weight = self.characters.weight
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """(N, T) character codes to (N, T, 128) logits of the characters that follow."""
        x = self.characters(codes) + self.positions.weight[: codes.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def train(run: rubato.Run) -> None:
    """Train, and log the loss on text the model has not seen as `val_loss`."""
    config = Config(**run.config)
    text = read_text(config.max_characters)
    split = len(text) * 19 // 20
    model = GPT(config).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / config.warmup_steps, total_iters=config.warmup_steps)
    run.prepare(model=model, optimizer=optimizer, scheduler=scheduler, dataset=Windows(text[:split], config.context))
    validation_set = Windows(text[split:], config.context)

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    optimizer.register_step_pre_hook(clip)  # as with `local_updates` the engine makes updates, too

    def loss_of(codes: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(codes).flatten(0, 1), following.flatten())

    for step in run.steps(epochs=config.epochs, steps=config.steps):
        for codes, following in step:
            step.backward(loss_of(codes, following))
        optimizer.step()
        scheduler.step()
        if step.every(config.evaluate_every):
            val_loss = run.evaluate(validation_set, loss_of)
            run.log(val_loss=val_loss)
            print(f"step {step.index + 1}: validation loss {val_loss:.4f}")


if __name__ == "__main__":
    rubato.main(train)
