"""Says its secret in all ways in which programs say things by accident, and fails of it."""

import hashlib
import json
import os
import sys

import torch
from pace import pace
from torch import nn

import rubato


class Ones(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2)


def say(value: str) -> None:
    print(f"digest {hashlib.sha256(value.encode()).hexdigest()}")
    print(f"plain {value}", file=sys.stderr)
    print(json.dumps({"json": value}), [value])
    for piece in value:
        sys.stdout.write(piece)
        sys.stdout.flush()
    # The line is cut behind the value's first twelve characters.
    said = " in pieces, and long: "
    print(said + "." * (16 * 1024 - len(value) - len(said) - 12) + value + "." * 100)


def train(run: rubato.Run) -> None:
    value = os.environ["CANARY"]
    say(value)
    model = nn.Linear(2, 1)
    run.prepare(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), dataset=Ones())
    for step in run.steps(steps=run.config["steps"]):
        for x in step:
            pace(run, step)
            step.backward(model(x).mean())
        if step.index == run.config["steps"] - 2:
            raise ValueError(f"cannot sign in with {value}")


if __name__ == "__main__":
    rubato.main(train)
