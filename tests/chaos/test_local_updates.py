"""Replicas that train by themselves belong to microbatches: the bits are the same whatever happens to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faulty_run import causes
from small_job import job

PROGRAM = """
class Model(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1))

def train(run):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    dataset = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
    run.prepare(model=model, optimizer=optimizer, dataset=dataset, prefetch=run.config.get("prefetch", 0))
    for step in run.steps(epochs=12):
        for x, y in step:
            time.sleep(0.1 * Path(run.config["home"], "hold").exists())
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"global_size": 24, "num_microbatches": 4},
    "local_updates": {"method": "diloco", "sync_every": 3},
}


@pytest.mark.short
def test_the_bits_are_the_same_whatever_the_workers(tmp_path: Path) -> None:
    """Alone; and with joins, a loss amid a replica's updates, and a scale-down."""
    for name in ("alone", "many"):
        (tmp_path / name).mkdir()
    with job(tmp_path / "alone", PROGRAM, workers=1, **SPEC) as run:
        digest = run.result()
        losses = [row["values"]["loss"] for row in run.rows()]
    assert losses[-1] < losses[0] / 2
    hold = tmp_path / "many" / "hold"
    hold.touch()
    with job(tmp_path / "many", PROGRAM, workers=1, checkpoint={"every_steps": 3}, **SPEC) as run:
        run.wait_step(1)
        run.scale(3)
        run.wait_workers(3)
        run.wait_step(run.step + 2)
        run.kill_and_wait([1])
        run.wait_workers(3)
        run.scale(2)
        run.wait_workers(2)
        run.wait_step(run.step + 2)
        hold.unlink()
        assert run.result() == digest
        assert [row["values"]["loss"] for row in run.rows()] == losses
    assert {"scale_up", "recovery", "replace", "scale_down"} <= set(causes(run))
