"""Whole runs whose workers share one GPU: killed, scaled, and equal to one worker bit by bit."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from local_job import LocalJob

pytestmark = pytest.mark.timeout(300)

STEPS = 40
PROGRAM = """
import time
from pathlib import Path
import torch
import rubato

torch.manual_seed(0)
X = torch.randn(400, 20)
DATA = torch.utils.data.TensorDataset(X, (X.sum(1) > 0).long())

def train(run):
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(64, 2)
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        for x, y in step:
            assert x.is_cuda
            step.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        time.sleep(run.config.get("pace", 0.0))
"""


def job(folder: Path, workers: int, **config: Any) -> LocalJob:
    program = folder / "on_gpu.py"
    program.write_text(PROGRAM)
    return LocalJob(
        folder / "home",
        program,
        config={"steps": STEPS, **config},
        batch={"global_size": 96, "num_microbatches": 12},
        workers={"initial": workers, "min": 1, "max": 4},
        device="cuda",
    )


@functools.cache
def expected(folder: Path) -> tuple[int, str]:
    (folder / "alone").mkdir()
    with job(folder / "alone", 1) as run:
        found: tuple[int, str] = run.result()
        return found


def test_bits_do_not_depend_on_the_worker_count(tmp_path: Path) -> None:
    (tmp_path / "three").mkdir()
    with job(tmp_path / "three", 3) as run:
        assert run.result() == expected(tmp_path)


def test_a_kill_and_a_scaling_change_no_bit(tmp_path: Path) -> None:
    (tmp_path / "disturbed").mkdir()
    with job(tmp_path / "disturbed", 2, pace=0.3) as run:
        run.wait_step(3)
        run.kill_and_wait([1])
        run.scale(3)
        run.wait_workers(3)
        assert run.result() == expected(tmp_path)
    assert torch.cuda.is_available()
