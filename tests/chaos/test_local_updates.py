"""Replicas that train by themselves belong to microbatches: the bits are the same whatever happens to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faulty_run import SEED
from small_job import job, live_through

PROGRAM = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA, prefetch=run.config.get("prefetch", 0))
    for step in run.steps(epochs=12):
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"global_size": 24, "num_microbatches": 4},
}


@pytest.mark.parametrize("method", [pytest.param("diloco", marks=pytest.mark.short), "local_sgd"])
def test_the_bits_are_the_same_whatever_the_workers(tmp_path: Path, method: str) -> None:
    """Alone; and with joins, a loss amid a replica's updates, and a scale-down."""
    spec = {**SPEC, "local_updates": {"method": method, "sync_every": 3}}
    for name in ("alone", "many"):
        (tmp_path / name).mkdir()
    with job(tmp_path / "alone", PROGRAM, workers=1, **spec) as run:
        digest = run.result()
        losses = [row["values"]["loss"] for row in run.rows()]
    assert losses[-1] < losses[0] / 2
    home = tmp_path / "many"
    with job(home, PROGRAM, workers=1, config={"pace": 0.1}, checkpoint={"every_steps": 3}, **spec) as run:
        assert live_through(run, home, workers=3, lost=[SEED % 3], how=method) == digest
        assert [row["values"]["loss"] for row in run.rows()] == losses
