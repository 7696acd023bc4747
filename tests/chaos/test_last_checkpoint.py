"""The checkpoint of the end is of the state as it was when the last step was done, whatever user code does then."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from invariants import record
from small_job import expected, job

from rubato.checkpoint.manifest import open_checkpoint
from rubato.checkpoint.storage import LocalFolder
from rubato.checkpoint.stripes import read_state

CHANGES = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(42)
    run.evaluate(DATA, lambda x, y: model(x).mean(), batch=16)
    run.log(evaluated=1.0)
    (Path(run.config["home"]) / f"here-{os.getpid()}").touch()
    if run.config["held"]:
        until(Path(run.config["home"]) / "go")

if __name__ == "__main__":
    rubato.main(train)
"""


def state_of(folder: Path) -> list[torch.Tensor]:
    found = LocalFolder(folder)
    return read_state(found, open_checkpoint(found).files)[1]


@pytest.mark.parametrize("killed", [1, 2])
def test_a_loss_after_the_last_step_leaves_its_checkpoint_as_it_was(tmp_path: Path, killed: int) -> None:
    for home in (tmp_path / "undisturbed", tmp_path / "job"):
        home.mkdir()
    undisturbed = tmp_path / "undisturbed"
    with job(undisturbed, CHANGES, workers=1, config={"held": False}, checkpoint_dir=str(undisturbed / "kept")) as run:
        result = run.result()
    home = tmp_path / "job"
    with job(home, CHANGES, workers=4, config={"held": True}, checkpoint_dir=str(home / "kept")) as run:
        run.wait(lambda: len(list(home.glob("here-*"))) == 4, "all behind the last step")
        manifest = home / "kept" / "1-6" / "manifest.json"
        run.wait(manifest.exists, "the last checkpoint")
        saved = manifest.read_bytes()
        for one in run.status()["workers"][:killed]:
            os.kill(one["pid"], signal.SIGKILL)
        run.wait(lambda: len(run.events("worker.lost")) == killed, "the losses")
        (home / "go").touch()
        assert run.result() == result == (6, expected(home, {"held": False}))
        assert manifest.read_bytes() == saved
        assert not run.events("checkpoint.failed")
    record(run, f"SIGKILL of {killed} of 4 behind the last step")
    for mine, theirs in zip(state_of(home / "kept" / "1-6"), state_of(undisturbed / "kept" / "1-6"), strict=True):
        assert torch.equal(mine, theirs)


def test_a_loss_of_all_after_the_last_step_costs_no_row(tmp_path: Path) -> None:
    """The row of the last step waits for what is logged behind it: the checkpoint of that step holds it meanwhile."""
    restart = {"backoff": {"initial": 0.1}}
    with job(tmp_path, CHANGES, workers=2, config={"held": True}, restart=restart) as run:
        run.wait(lambda: len(list(tmp_path.glob("here-*"))) == 2, "all behind the last step")
        run.wait(lambda: any(event["step"] == 6 for event in run.events("checkpoint.committed")), "the last checkpoint")
        assert [row["step"] for row in run.rows()] == [1, 2, 3, 4, 5]
        for one in run.status()["workers"]:
            os.kill(one["pid"], signal.SIGKILL)
        (tmp_path / "go").touch()
        run.result()
    assert len(run.events("job.restarting")) == 1, run.told()
    rows = run.rows()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["values"]["evaluated"] == 1.0
    assert rows[-1]["values"]["loss"] > 0.0
    record(run, "SIGKILL of all behind the last step")


def test_who_begins_from_the_last_checkpoint_of_another_run_ends_there(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    results = []
    for home in (tmp_path / "first", tmp_path / "second"):
        home.mkdir()
        with job(home, CHANGES, workers=1, config={"held": False}, checkpoint_dir=kept) as run:
            results.append(run.result())
    assert results[1] == results[0]
    assert not run.rows(), "it has trained no step"
    assert (tmp_path / "kept" / "2-6" / "manifest.json").exists()
