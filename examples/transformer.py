"""A transformer in the style of Hugging Face, from scratch: a config, outputs with a loss, sentences that are padded.

    python examples/transformer.py --config steps=20
    rubato run examples/transformer.py --workers 4 --config steps=200

It learns lines of Python's own standard library, byte by byte. Lines differ in length, so microbatches hold different
numbers of tokens: `weight=` makes the step's gradient the mean over its tokens, whoever computed which microbatch.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import rubato

PADDING, END, BYTES = 256, 257, 258
IGNORED = -100
"""A label that counts nothing."""


@dataclass
class WriterConfig:
    """Sizes of the model."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    length: int = 96
    dropout: float = 0.1


@dataclass
class WriterOutput:
    """What the model gives."""

    scores: torch.Tensor
    """Of what comes after each token: (batch, length, tokens)."""
    loss: torch.Tensor | None = None
    """The mean over all labels that count."""


class WriterModel(nn.Module):
    """A decoder; embedding and output share their weights."""

    def __init__(self, config: WriterConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(BYTES, config.width)
        self.place = nn.Embedding(config.length, config.width)
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, config.dropout, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, BYTES, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> WriterOutput:
        """Scores of (batch, length) tokens, and the loss where there are labels."""
        length = input_ids.shape[1]
        places = torch.arange(length, device=input_ids.device)
        is_hidden = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        seen = self.layers(self.token(input_ids) + self.place(places), mask=is_hidden)
        scores = self.head(self.norm(seen))
        if labels is None:
            return WriterOutput(scores)
        return WriterOutput(scores, nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten()))


class Lines(torch.utils.data.Dataset[torch.Tensor]):
    """Lines of source code as bytes, each with its end."""

    def __init__(self, text: str, length: int) -> None:
        kept = [line.encode()[: length - 1] for line in text.splitlines() if line.strip()]
        self.lines = [torch.tensor([*line, END]) for line in kept]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.lines[index]


def collate(lines: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Inputs and labels, padded to the longest; each label is the next token."""
    padded = nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=PADDING)
    labels = padded[:, 1:].masked_fill(padded[:, 1:] == PADDING, IGNORED)
    return {"input_ids": padded[:, :-1], "labels": labels}


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    config = WriterConfig(**run.config.get("model", {}))
    text = Path(json.__file__).read_text(encoding="utf-8")  # put your own here
    dataset = Lines(text, config.length)
    model = WriterModel(config).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.config.get("lr", 0.003), weight_decay=0.01)
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    run.prepare(model=model, optimizer=optimizer, scheduler=warm_up, dataset=dataset, collate=collate)

    for step in run.steps():  # steps or epochs of the config
        for batch in step:
            loss = model(**batch).loss
            step.backward(loss, weight=float((batch["labels"] != IGNORED).sum()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()


if __name__ == "__main__":
    rubato.main(train)
