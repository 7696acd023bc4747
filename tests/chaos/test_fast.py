"""`reproducible: false`: other bits, but every sample counts exactly once, whatever happens to the workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invariants import record
from redone import check_redone
from small_job import job

# Each sample has an element of `ledger`, whose gradient is what the sample counts in the mean over the batch.
COUNTING = """
import json

EPOCHS = 10

def train(run):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    model.ledger = torch.nn.Parameter(torch.zeros(len(X)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True), torch.arange(len(X)))
    run.prepare(model=model, optimizer=optimizer, dataset=dataset)
    for step in run.steps(epochs=EPOCHS):
        passes = 0
        for x, y, ids in step:
            passes += 1
            time.sleep(0.4 * Path(run.config["home"], "hold").exists())
            step.backward(torch.nn.functional.mse_loss(model(x), y) + model.ledger[ids].mean())
        run.log(passes=passes)
        optimizer.step()
    used = (-model.ledger.detach() / 0.01).tolist()
    Path(run.config["home"], f"used-{os.getpid()}.json").write_text(json.dumps(used))

if __name__ == "__main__":
    rubato.main(train)
"""
EPOCHS, SAMPLES, BATCH = 10, 64, 16


def counting(home: Path, workers: int) -> Any:
    return job(home, COUNTING, workers=workers, reproducible=False)


def check_ledger(home: Path, workers: int) -> None:
    """Each sample is in the weights once an epoch, by 1/16 each time."""
    files = list(home.glob("used-*.json"))
    assert len(files) == workers
    for file in files:
        assert json.loads(file.read_text()) == pytest.approx([EPOCHS / BATCH] * SAMPLES, rel=1e-4)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_makes_one_pass_a_step_over_the_same_samples(tmp_path: Path, workers: int) -> None:
    with counting(tmp_path, workers) as run:
        assert run.result()[0] == EPOCHS * SAMPLES // BATCH
    rows = run.rows()
    assert {row["values"]["passes"] for row in rows} == {1.0}
    assert {row["values"]["samples"] for row in rows} == {BATCH}
    check_ledger(tmp_path, workers)


@pytest.mark.short
def test_no_sample_is_lost_or_doubled_by_a_kill_a_join_and_a_leave(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 3) as run:
        run.wait_step(1)
        run.wait(lambda: bool(run.formed()), "the first generation")
        run.kill_and_wait([1])
        # A generation that has not committed a step yet is told of only if it does: the scaling would take its place.
        run.wait(lambda: len(run.formed()) == 3, "the generation with the other worker")
        run.scale(2)
        run.wait_workers(2)
        hold.unlink()
        run.result()
    causes = [event["data"]["cause"] for event in run.formed()]
    assert causes == ["start", "recovery", "replace", "scale_down"], run.told()
    check_ledger(tmp_path, 2)
    check_redone(run)
    record(run, "a kill, a join and a leave, reproducible: false")
