"""What a worker tells of its gradients may be less than all, but over the steps nothing is lost or counted twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from faulty_run import SEED
from invariants import check_run
from small_job import job

# Each sample has an element of `ledger`, a matrix, whose gradient is what the sample counts in the mean over the batch.
COUNTING = """
import json

EPOCHS = 10

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 1)
        self.ledger = torch.nn.Parameter(torch.zeros(8, 8))

def train(run):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True), torch.arange(len(X)))
    run.prepare(model=model, optimizer=optimizer, dataset=dataset)
    for step in run.steps(epochs=EPOCHS):
        for x, y, ids in step:
            time.sleep(0.4 * Path(run.config["home"], "hold").exists())
            error = torch.nn.functional.mse_loss(model.line(x), y)
            step.backward(0 * error + model.ledger.flatten()[ids].mean())
        optimizer.step()
    aggregation = run._registered.get("rubato.aggregation")
    kept = (aggregation.state_dict()["settled"] if aggregation else None) or {}
    total = -model.ledger.detach().flatten() / 0.01
    for name in ("residual", "stripe"):
        if name in kept:
            total = total + kept[name][:64]  # a module's own parameters come first
    Path(run.config["home"], f"used-{os.getpid()}.json").write_text(json.dumps(total.tolist()))

if __name__ == "__main__":
    rubato.main(train)
"""
EPOCHS, SAMPLES, BATCH = 10, 64, 16
METHODS: dict[str, dict[str, Any]] = {
    "topk": {"density": 0.03},
    "gtopk": {"density": 0.03},
    "hierarchical_topk": {"density": 0.03},
    "threshold": {"threshold": 0.05},
    "onebit": {},
    "powersgd": {"rank": 1},
    "sketch": {"density": 0.03},
    "sketched_sgd": {"density": 0.03},
}


WHOLE: dict[str, dict[str, Any]] = {
    "ring": {"algorithm": "ring"},
    "tree": {"algorithm": "tree"},
    "halving_doubling": {"algorithm": "halving_doubling"},
    "server": {"algorithm": "server", "servers": 2},
    "fp16": {"compression": {"method": "fp16"}},
    "bf16": {"compression": {"method": "bf16"}},
}


def counting(home: Path, workers: int, method: str, *, on_loss: str = "continue", **spec: Any) -> Any:
    aggregation = WHOLE.get(method) or {"compression": {"method": method, "on_loss": on_loss, **METHODS[method]}}
    return job(home, COUNTING, workers=workers, reproducible=False, aggregation=aggregation, **spec)


def totals(home: Path, workers: int) -> list[list[float]]:
    """By worker and sample, how often it counts in what was applied and what is kept, together."""
    files = list(home.glob("used-*.json"))
    assert len(files) == workers
    return [json.loads(file.read_text()) for file in files]


def check_all_counted(home: Path, workers: int) -> None:
    for total in totals(home, workers):
        assert total == pytest.approx([EPOCHS / BATCH] * SAMPLES, abs=1e-4)


def scale_and_train(run: Any, workers: int) -> None:
    run.scale(workers)
    run.wait_workers(workers)
    run.wait_step(run.step + 2)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_over_joins_and_leaves_nothing_is_lost_or_counted_twice(tmp_path: Path, method: str) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 1, method) as run:
        run.wait_step(1)
        for workers in (3, 2):
            scale_and_train(run, workers)
        hold.unlink()
        run.result()
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "scale_up", "scale_down"], run.told()
    assert not run.events("gradient.lost")
    check_all_counted(tmp_path, 2)
    check_run(run, fault=f"a join and a leave, {method}")


@pytest.mark.parametrize("method", sorted(WHOLE))
def test_what_is_exchanged_whole_loses_nothing_over_joins_losses_and_leaves(tmp_path: Path, method: str) -> None:
    """What each sample counts in a batch of 16 has no more than 16 bits."""
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 1, method) as run:
        run.wait_step(1)
        scale_and_train(run, 4)
        run.kill_and_wait([0])  # of those that add up for all, too
        run.wait_step(run.step + 2)
        scale_and_train(run, 3)
        hold.unlink()
        run.result()
    causes = {event["data"]["cause"] for event in run.formed()}
    assert {"start", "scale_up", "recovery", "scale_down"} <= causes, run.told()
    assert not run.events("gradient.lost")
    check_all_counted(tmp_path, 3)
    check_run(run, fault=f"a join, SIGKILL of rank 0 and a leave, {method}")


LOST = [pytest.param("topk", marks=pytest.mark.short), *sorted({*METHODS} - {"topk"})]


@pytest.mark.parametrize("method", LOST)
def test_a_lost_worker_takes_along_no_more_than_is_told(tmp_path: Path, method: str) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 3, method) as run:
        run.wait_step(5)
        run.kill_and_wait([SEED % 3])
        run.wait(lambda: len(run.formed()) == 3, "the generation with the other worker")
        hold.unlink()
        run.result()
    (event,) = run.events("gradient.lost")
    one, *others = totals(tmp_path, 3)
    assert all(other == one for other in others)
    missing = sum((total - EPOCHS / BATCH) ** 2 for total in one) ** 0.5
    assert 0 < missing <= 1.5 * event["data"]["norm"] + 1e-4, (missing, event)
    check_run(run, fault=f"SIGKILL of one of three, {method}")


def test_rather_than_lose_what_was_kept_all_go_back(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 3, "topk", on_loss="rollback", checkpoint={"every_steps": 3}) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        run.kill([SEED % 3])
        run.wait(lambda: len(run.formed()) == 2, "a restart")
        hold.unlink()
        run.result()
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "restart"]
    assert not run.events("gradient.lost")
    killed, *others = run.events("worker.lost")
    assert killed["data"]["signal"] == "SIGKILL"
    assert all("had kept were lost, and compression.on_loss is rollback" in other["message"] for other in others)
    assert len(others) == 2
    check_all_counted(tmp_path, 3)
    check_run(run, fault="SIGKILL of one of three, topk, rollback")


def test_a_job_that_is_resumed_goes_on_with_what_was_kept(tmp_path: Path) -> None:
    """All are lost, and the newest checkpoint holds what they kept."""
    hold = tmp_path / "hold"
    hold.touch()
    with counting(tmp_path, 2, "topk", checkpoint={"every_steps": 3}) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) > 0, "a checkpoint")
        run.kill([0, 1])
        run.wait(lambda: len(run.formed()) == 2, "a restart")
        hold.unlink()
        run.result()
    assert run.formed()[-1]["data"]["cause"] == "restart"
    check_all_counted(tmp_path, 2)
    check_run(run, fault="SIGKILL of all, topk")
