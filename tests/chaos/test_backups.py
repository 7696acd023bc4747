"""Synchronous updates by a server with backup workers: whoever comes, goes or is slow, it is the same descent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_job import check_learns_as_alone

PROGRAM = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps(epochs=12):
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"global_size": 24, "num_microbatches": 4},
    "reproducible": False,
    "local_updates": {"method": "synchronous", "sync_every": 3, "backups": 1},
}


@pytest.mark.parametrize("backups", [pytest.param(1, marks=pytest.mark.short), 0])
def test_joins_losses_and_leaves_change_nothing_of_what_is_learned(tmp_path: Path, backups: int) -> None:
    """Of a worker amid a round, of the server, and a scale-down."""
    spec = {**SPEC, "local_updates": {**SPEC["local_updates"], "backups": backups}}
    check_learns_as_alone(tmp_path, PROGRAM, spec, how="synchronous" + ("" if backups else " without backups"))
