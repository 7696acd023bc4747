"""Workers tell each other the bytes that the planner predicts, whatever their number and the way they train.

Workers are threads here, and messages are counted; `test_bytes_of_jobs` counts packets.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from planned import BATCH, CLASSES, FEWEST, INPUTS, MODEL, WAYS, is_as_planned, planned
from together import TogetherRun, together
from torch import nn

from rubato.wire.spec import parse_spec

pytestmark = pytest.mark.usefixtures("generators")

STEPS = 4
ROWS = [
    (torch.randn(INPUTS, generator=torch.Generator().manual_seed(index)), torch.tensor(index % CLASSES))
    for index in range(BATCH["global_size"])
]
COMPRESSED: dict[str, dict[str, Any]] = {
    "topk with momentum": {"method": "topk", "density": 0.05, "momentum": 0.9},
    "sketch with momentum": {"method": "sketch", "density": 0.05, "momentum": 0.9},
}
EVERY_WAY: dict[str, dict[str, Any]] = {
    **WAYS,
    **{name: {"reproducible": False, "aggregation": {"compression": one}} for name, one in COMPRESSED.items()},
}
SHORT = {(way, 3) for way in ("asynchronous", "layer_separation", "streaming_diloco")}
"""Not `long`: those whose bytes are sent in another way each."""
CASES = [
    pytest.param(way, workers, marks=() if (way, workers) in SHORT else pytest.mark.long)
    for way in EVERY_WAY
    for workers in (2, 3, 4)
    if workers >= FEWEST.get(way, 2)
]


def model_of() -> nn.Module:
    torch.manual_seed(1)
    made: dict[str, Any] = {"torch": torch}
    exec(MODEL, made)
    model: nn.Module = made["model_of"]()
    return model


@pytest.mark.parametrize(("way", "workers"), CASES)
def test_a_step_sends_what_is_planned(way: str, workers: int) -> None:
    spec = parse_spec(
        {
            "name": "test",
            "entrypoint": "main.py:train",
            "batch": BATCH,
            "workers": {"initial": workers, "min": workers, "max": workers},
            **EVERY_WAY[way],
        }
    )
    sent = []

    def train(run: TogetherRun, model: nn.Module) -> None:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters())
        if "momentum" in way:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.prepare(model=model, optimizer=optimizer, dataset=ROWS)
        counts = []
        for step in run.steps(steps=STEPS):
            counts.append(run.sent_bytes)
            for x, y in step:
                step.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()
        sent.append((counts[-1] - counts[1]) / (STEPS - 2))

    together(spec, model_of, train)
    assert len(sent) == workers
    assert is_as_planned(max(sent), spec), (planned(spec), sorted(sent))
