"""Where a worker's time goes: what it computes, the samples that it reads, and what it waits for the others.

Workers are threads here, and whoever is slow sleeps: `test_separation` of the chaos tests has processes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

import pytest
import torch
from alone import loss_of
from together import TogetherRun, together
from torch import nn

from rubato.wire.spec import parse_spec

pytestmark = pytest.mark.usefixtures("generators")

UPDATES, STEPS = 3, 5
PAUSE_S = 0.1
"""At least: an update is one forward pass of all layers, by one worker or two, and one look at the samples."""
ALL_S = UPDATES * PAUSE_S
SEPARATED = {"method": "layer_separation", "cut": "head"}


class Pause(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self._seconds)
        return x


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def __len__(self) -> int:
        return 2 * UPDATES

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._pause_s)
        return torch.full((3,), float(index)), torch.tensor(float(index % 3))


def times(workers: int, slow: str, local: dict[str, Any]) -> dict[int, dict[str, float]]:
    """By rank, the least of each value of its rows: a wait is in all of them, what else a busy machine does in some."""
    spec = parse_spec(
        {
            "name": "test",
            "entrypoint": "main.py:train",
            "batch": {"global_size": 2 * UPDATES, "num_microbatches": 2},
            "workers": {"initial": workers, "min": workers, "max": workers},
            "reproducible": False,
            "local_updates": {"sync_every": UPDATES, **local},
        }
    )
    found: dict[int, dict[str, float]] = {}

    def model_of() -> nn.Module:
        torch.manual_seed(1)
        front = nn.Sequential(nn.Linear(3, 4), Pause(PAUSE_S if slow == "front" else 0.0))
        head = nn.Sequential(nn.Linear(4, 1), Pause(PAUSE_S if slow == "head" else 0.0))
        return nn.Sequential(OrderedDict(front=front, head=head))

    def train(run: TogetherRun, model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.prepare(model=model, optimizer=optimizer, dataset=Samples(PAUSE_S / 2 if slow == "data" else 0.0))
        for step in run.steps(steps=STEPS):
            for x, y in step:
                step.backward(loss_of(model, x, y))
            optimizer.step()
        rows = [row.values for row in run.rows]
        assert all(row["compute_seconds"] + row["data_seconds"] <= row["step_seconds"] for row in rows)
        found[run.session.rank] = {name: min(row[name] for row in rows) for name in rows[0]}

    together(spec, model_of, train)
    assert sorted(found) == list(range(workers))
    assert all(one["step_seconds"] >= ALL_S for one in found.values()), found
    return found


@pytest.mark.parametrize(
    ("local", "workers", "slow", "rank"),
    [
        (SEPARATED, 2, "front", 1),
        (SEPARATED, 2, "head", 0),
        (SEPARATED, 2, "data", 1),
        (SEPARATED, 1, "data", 0),
        ({"method": "synchronous"}, 2, "front", 1),
        ({"method": "synchronous"}, 2, "data", 1),
        ({"method": "asynchronous"}, 2, "front", 1),
        ({"method": "local_sgd"}, 1, "data", 0),
    ],
    ids=lambda one: one["method"] if isinstance(one, dict) else str(one),
)
def test_what_one_worker_does_is_waited_for_by_the_other(
    local: dict[str, Any], workers: int, slow: str, rank: int
) -> None:
    """Rank 0 leads, and has the layers behind the cut or makes the updates."""
    found = times(workers, slow, local)
    is_of = {
        (other, name): values[name] >= ALL_S / 2
        for other, values in found.items()
        for name in ("compute_seconds", "data_seconds")
    }
    expected = rank, "data_seconds" if slow == "data" else "compute_seconds"
    assert [key for key, value in is_of.items() if value] == [expected], found
    assert found[rank][expected[1]] >= ALL_S
