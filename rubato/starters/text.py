"""A small transformer that learns to write text, character by character.

    python train.py --config steps=20
    rubato run train.py --workers 4
    rubato submit job.yaml --follow

It reads `text.txt` beside this file where there is one, else its own source.
"""

from pathlib import Path

import torch
from torch import nn

import rubato


class Characters(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of the text as numbers, and the same pieces one character further on: what is to be said next."""

    def __init__(self, text: str, length: int) -> None:
        self.letters = sorted(set(text))
        number = {letter: index for index, letter in enumerate(self.letters)}
        self.text_N = torch.tensor([number[letter] for letter in text])
        self.length = length

    def __len__(self) -> int:
        return len(self.text_N) - self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.text_N[index : index + self.length + 1]
        return piece[:-1], piece[1:]


class Writer(nn.Module):
    """Embedding, blocks that look at what came before, and a guess at what comes next."""

    def __init__(self, letters: int, length: int, width: int, blocks: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.next = nn.Linear(width, letters)

    def forward(self, letters_BT: torch.Tensor) -> torch.Tensor:
        """Scores (batch, length, letters) of what comes after each letter."""
        length = letters_BT.shape[1]
        is_hidden_TT = torch.ones(length, length, dtype=torch.bool, device=letters_BT.device).triu(1)
        seen_BTC = self.blocks(self.letter(letters_BT) + self.place[:length], mask=is_hidden_TT)
        scores_BTL: torch.Tensor = self.next(seen_BTC)
        return scores_BTL


def train(run: rubato.Run) -> None:
    """Rubato calls this on every worker."""
    config = run.config
    file = Path(__file__).with_name("text.txt")
    text = (file if file.exists() else Path(__file__)).read_text(encoding="utf-8")
    dataset = Characters(text, length=config.get("length", 64))
    model = Writer(len(dataset.letters), dataset.length, config.get("width", 64), config.get("blocks", 2))
    model = model.to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.003))
    warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    run.prepare(model=model, optimizer=optimizer, scheduler=warm_up, dataset=dataset)

    for step in run.steps():  # steps or epochs of the config
        for letters_BT, following_BT in step:
            scores_BTL = model(letters_BT)
            step.backward(nn.functional.cross_entropy(scores_BTL.flatten(0, 1), following_BT.flatten()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()


if __name__ == "__main__":
    rubato.main(train)
