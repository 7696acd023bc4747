"""Whole runs whose workers share one GPU: killed, scaled, and equal to one worker bit by bit.

They run on the CPU as well, so that a machine without a GPU sees whether they do what they say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_job

from rubato.testing import LocalJob

pytestmark = pytest.mark.timeout(300)

STEPS = 40
PROGRAM = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(64, 1)
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        for x, y in step:
            pace(run)
            assert x.device.type == y.device.type == run.config["device"]
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        assert {one.grad.device.type for one in model.parameters()} == {run.config["device"]}
        optimizer.step()
"""


def job(folder: Path, device: str, workers: int, *, pace: float = 0.0) -> LocalJob:
    config = {"steps": STEPS, "device": device, "pace": pace}
    run = small_job.job(folder, PROGRAM, workers=workers, config=config, device=device)
    assert isinstance(run, LocalJob)
    return run


@pytest.fixture(scope="module", params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def expected(device: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str]:
    """Step and digest of one worker that nothing happens to."""
    with job(tmp_path_factory.mktemp("alone"), device, 1) as run:
        return run.result()


def test_bits_do_not_depend_on_the_worker_count(tmp_path: Path, device: str, expected: tuple[int, str]) -> None:
    with job(tmp_path, device, 3) as run:
        assert run.result() == expected
    assert {row["workers"] for row in run.rows()} == {3}


def test_a_kill_and_a_scaling_change_no_bit(tmp_path: Path, device: str, expected: tuple[int, str]) -> None:
    with job(tmp_path, device, 2, pace=0.1) as run:
        run.wait_step(3)
        run.kill_and_wait([1])
        run.scale(3)
        run.wait_workers(3)
        small_job.hurry(tmp_path)
        assert run.result() == expected
    assert [event["data"]["signal"] for event in run.events("worker.lost")] == ["SIGKILL"]
    assert [event["data"]["workers"] for event in run.formed()] == [2, 1, 2, 3]
