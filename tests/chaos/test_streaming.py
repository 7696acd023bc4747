"""Streaming DiLoCo over workers that come, go and die: all agree where they settle, and each sample counts once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invariants import check_run
from small_job import hurry, job, live_through

PROGRAM = """
def train(run):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps(epochs=12):
        fit(run, step, model, optimizer)
        if step.is_last_of_epoch:
            run.log(far=run.evaluate(DATA, lambda x, y: (model(x) - y).abs().mean()))

if __name__ == "__main__":
    rubato.main(train)
"""
SPEC: dict[str, Any] = {
    "batch": {"global_size": 24, "num_microbatches": 4},
    "reproducible": False,
    "local_updates": {"method": "streaming_diloco", "sync_every": 3, "fragments": 2, "mix": 0.25},
}
DELAYED: dict[str, Any] = {**SPEC, "local_updates": {**SPEC["local_updates"], "delay": 2}}
COUNTS_AHEAD = """
from rubato.engine.streaming import Streaming
send_ahead, AHEAD = Streaming.send_ahead, []

def counted(self, *told):
    AHEAD.append(1)
    send_ahead(self, *told)

Streaming.send_ahead = counted
"""
STEPS = 36
"""Three an epoch, the last of 16 samples."""


@pytest.mark.short
@pytest.mark.parametrize("spec", [SPEC, DELAYED], ids=["at its end", "before its end"])
def test_joins_losses_and_leaves(tmp_path: Path, spec: dict[str, Any]) -> None:
    """A loss tells what went with it; at the end all have the same state, or the job would fail."""
    with job(tmp_path, PROGRAM, workers=1, config={"pace": 0.1}, checkpoint={"every_steps": 5}, **spec) as run:
        step, _ = live_through(run, tmp_path, workers=4, lost=[2, 0], how="streaming_diloco")
        rows = run.rows()
    assert step == STEPS
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert [row["values"]["samples"] for row in rows] == [24.0, 24.0, 16.0] * 12
    assert rows[-1]["values"]["loss"] < rows[0]["values"]["loss"] / 2
    assert all(row["values"]["far"] > 0 for row in rows[2::3])


def test_what_a_lost_worker_had_not_told_is_told(tmp_path: Path) -> None:
    """Nothing is evaluated or saved in between, which would settle it."""
    program = PROGRAM.replace("if step.is_last_of_epoch:", "if False:")
    slow = {"checkpoint": {"every_steps": STEPS}, "config": {"pace": 0.1}}
    with job(tmp_path, program, workers=3, **slow, **SPEC) as run:
        run.wait_step(4)
        run.kill([2])
        run.wait(lambda: bool(run.events("gradient.lost")), "what was lost")
        hurry(tmp_path)
        step, _ = run.result()
        (told,) = run.events("gradient.lost")
        check_run(run, fault="SIGKILL of one of three, streaming_diloco")
    assert step == STEPS
    assert 0 < told["data"]["share"] < 1
    assert told["data"]["norm"] > 0
    assert "had learned by themselves and not told yet" in told["message"]


def test_fragments_travel_while_updates_are_made_and_who_dies_meanwhile_is_done_without(tmp_path: Path) -> None:
    program = COUNTS_AHEAD + PROGRAM.replace(
        "if step.is_last_of_epoch:", "run.log(ahead=len(AHEAD))\n        if False:"
    )
    with job(tmp_path, program, workers=3, config={"pace": 0.05}, checkpoint={"every_steps": STEPS}, **DELAYED) as run:
        run.wait_step(4)
        run.kill([2])
        run.wait_step(12)
        hurry(tmp_path)
        step, _ = run.result()
        rows = run.rows()
        check_run(run, fault="SIGKILL of one of three, streaming_diloco with a delay")
    assert step == STEPS
    assert [row["values"]["samples"] for row in rows] == [24.0, 24.0, 16.0] * 12
    ahead = [row["values"]["ahead"] for row in rows]
    assert ahead[3] >= 2, "but for the first step, in which nobody sends ahead"
    assert ahead[-1] - ahead[12] == STEPS - 13, "when all are there, each step's is sent ahead"


def test_a_job_goes_on_from_its_pause_with_another_number_of_workers(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, second = tmp_path / "first", tmp_path / "second"
    for home in (first, second):
        home.mkdir()
    with job(first, PROGRAM, workers=3, checkpoint_dir=str(kept), config={"pace": 0.05}, **SPEC) as run:
        run.wait_step(4)
        run.run.answer({"verb": "pause"})
        run.wait_for_end()
    with job(second, PROGRAM, workers=2, checkpoint_dir=str(kept), **SPEC) as run:
        step, _ = run.result()
        losses = [row["values"]["loss"] for row in run.rows()]
    assert step == STEPS
    assert losses[-1] < losses[0]
