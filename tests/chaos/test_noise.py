"""The noise of the gradients, and rates that go by it, have the same bits whatever happens to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_job import job

from rubato.testing import LocalJob

PROGRAM = """
class Model(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

def train(run):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dataset = torch.utils.data.TensorDataset(X, X.sum(1, keepdim=True))
    run.prepare(model=model, optimizer=optimizer, dataset=dataset)
    for step in run.steps(epochs=10):
        for x, y in step:
            time.sleep(0.4 * Path(run.config["home"], "hold").exists())
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"noise_every": 2},
    "lr_scaling": {"rule": "adascale", "base_size": 4, "warmup_steps": 5},
}


def noise(run: LocalJob) -> list[tuple[Any, Any]]:
    """By step."""
    return [(row["values"].get("noise_scale"), row["values"]["lr_factor"]) for row in run.rows()]


def test_it_is_the_same_whatever_the_workers(tmp_path: Path) -> None:
    for name in ("alone", "many"):
        (tmp_path / name).mkdir()
    with job(tmp_path / "alone", PROGRAM, workers=1, **SPEC) as run:
        digest, expected = run.result(), noise(run)
    hold = tmp_path / "many" / "hold"
    hold.touch()
    with job(tmp_path / "many", PROGRAM, workers=1, checkpoint={"every_steps": 5}, **SPEC) as run:
        run.wait_step(1)
        run.scale(3)
        run.wait_workers(3)
        run.wait_step(run.step + 2)
        run.kill_and_wait([1])
        run.wait_workers(3)
        hold.unlink()
        assert run.result() == digest
        assert noise(run) == expected
    known = [scale for scale, _ in expected if scale is not None]
    assert len(known) > 10
    assert len({factor for _, factor in expected}) > 10
