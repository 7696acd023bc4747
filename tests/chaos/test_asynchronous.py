"""Asynchronous updates of workers that come, go and die: each sample counts once, and their log gives those bits."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from faulty_run import HANG_S
from invariants import check_run
from small_job import hurry, job, live_through

from rubato.checkpoint.manifest import find_latest
from rubato.engine.serving import read_log

PROGRAM = """
def train(run):
    torch.manual_seed(0)
    norm = torch.nn.Unflatten(1, (1, 8)), torch.nn.BatchNorm1d(1), torch.nn.Flatten()  # of batches of one, too
    inner = torch.nn.Dropout(0.1), torch.nn.Tanh()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), *norm, *inner, torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA, prefetch=run.config.get("prefetch", 0))
    for step in run.steps(epochs=12):
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""
BATCH = {"global_size": 24, "num_microbatches": 4}
STEPS = 36
"""Three an epoch, the last of 16 samples."""
SLOW = {"pace": 0.05}


def spec(**local: Any) -> dict[str, Any]:
    return {
        "batch": BATCH,
        "reproducible": False,
        "local_updates": {"method": "asynchronous", "sync_every": 6, **local},
    }


def last_checkpoint(run: Any) -> str:
    found = find_latest(run.run.checkpoints, lambda path, cause: pytest.fail(cause))
    assert found is not None
    return str(found[0])


def check_replay(run: Any, home: Path, *, first: int = 0, begins: Path | None = None, **local: Any) -> list[list[Any]]:
    """Every ticket of every round once; and one worker that makes the updates again has the same digest.

    Args:    first: the step at which they begin.  begins: the checkpoints that it goes on from, where there are any.
    """
    step, digest = run.result()
    assert step == STEPS
    checkpoint = last_checkpoint(run)
    log = read_log(checkpoint)
    assert {index: sorted(one.ticket for one in made) for index, made in log.items()} == {
        index: list(range(6)) for index in range(first, STEPS)
    }
    home.mkdir()
    begins = None if begins is None else str(begins)
    with job(home, PROGRAM, workers=1, checkpoint_dir=begins, **spec(replay=checkpoint, **local)) as again:
        assert again.result() == (step, digest)
    return list(log.values())


@pytest.mark.short
@pytest.mark.parametrize("local", [{}, {"staleness": 1, "damping": True}], ids=["asp", "ssp, damped"])
def test_joins_losses_and_leaves(tmp_path: Path, local: dict[str, Any]) -> None:
    """Of a worker amid a round, of the server, and a scale-down."""
    with job(tmp_path, PROGRAM, workers=1, config=SLOW, checkpoint={"every_steps": 3}, **spec(**local)) as run:
        live_through(run, tmp_path, workers=4, lost=[2, 0], how=f"asynchronous{', bounded' if local else ''}")
        log = check_replay(run, tmp_path / "again", **local)
        rows = run.rows()
    assert rows[-1]["values"]["loss"] < rows[0]["values"]["loss"] / 2
    stale = [row["values"]["staleness_max"] for row in rows]
    assert len(stale) == STEPS
    assert stale == [max(index - one.version for index, one in enumerate(made)) for made in log]
    assert max(stale) > 0
    assert stale[0] == 0


def test_a_worker_that_hangs_amid_a_round_is_fenced(tmp_path: Path) -> None:
    with job(tmp_path, PROGRAM, workers=3, config=SLOW, limits={"hang_timeout": HANG_S}, **spec()) as run:
        run.wait_step(3)  # an epoch: from here on no batch is the first of its size, which may take minutes
        run.kill([1], signal.SIGSTOP)
        run.wait(lambda: bool(run.events("worker.lost")), "the stopped worker fenced")
        run.wait_workers(3)
        hurry(tmp_path)
        check_replay(run, tmp_path / "again")
        check_run(run, fault="SIGSTOP of one of three for ever, asynchronous")
    assert "hang" in run.events("worker.lost")[0]["message"] or run.events("worker.lost")[0]["data"].get("hung")


def test_a_job_goes_on_from_a_checkpoint_with_its_log(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first, second = tmp_path / "first", tmp_path / "second"
    for home in (first, second):
        home.mkdir()
    with job(first, PROGRAM, workers=3, checkpoint_dir=str(kept), config=SLOW, **spec()) as run:
        run.wait_step(4)
        run.run.answer({"verb": "pause"})
        run.wait_for_end()
    with job(second, PROGRAM, workers=2, checkpoint_dir=str(kept), **spec()) as run:
        check_replay(run, tmp_path / "again")


def test_a_job_begins_and_ends_with_another_method(tmp_path: Path) -> None:
    """The log begins where the updates became asynchronous, and is left out where they no longer are."""
    kept, before = tmp_path / "kept", tmp_path / "before"
    others = {**spec(), "local_updates": {"method": "local_sgd", "sync_every": 6}}
    homes = [tmp_path / name for name in ("first", "second", "third")]
    for home in homes:
        home.mkdir()
    with job(homes[0], PROGRAM, workers=2, checkpoint_dir=str(kept), config=SLOW, **others) as run:
        run.wait_step(4)
        run.run.answer({"verb": "pause"})
        run.wait_for_end()
        first = run.step
    assert 4 <= first < STEPS
    shutil.copytree(kept, before)
    with job(homes[1], PROGRAM, workers=3, checkpoint_dir=str(kept), **spec()) as run:
        check_replay(run, tmp_path / "again", first=first, begins=before)
        ended = run.result()
    with job(homes[2], PROGRAM, workers=1, checkpoint_dir=str(kept), **others) as run:
        assert run.result() == ended, "it goes on from the last step, behind which there is nothing to do"


def test_reading_ahead_is_left_out_and_hurts_nothing(tmp_path: Path) -> None:
    with job(tmp_path, PROGRAM, workers=3, config={"prefetch": 1}, **spec()) as run:
        check_replay(run, tmp_path / "again")
