"""The noise of the gradients, and rates that go by it, have the same bits whatever happens to the workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faulty_run import SEED
from small_job import job, live_through

from rubato.testing import LocalJob

PROGRAM = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps(epochs=10):
        fit(run, step, model, optimizer)

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
    home = tmp_path / "many"
    with job(home, PROGRAM, workers=1, config={"pace": 0.4}, checkpoint={"every_steps": 5}, **SPEC) as run:
        assert live_through(run, home, workers=3, lost=[SEED % 3], how="noise and rates by it") == digest
        assert noise(run) == expected
    known = [scale for scale, _ in expected if scale is not None]
    assert len(known) > 10
    assert len({factor for _, factor in expected}) > 10
