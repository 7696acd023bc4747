"""Real processes and signals; after every disturbance the result is byte-equal to an undisturbed worker's."""

from __future__ import annotations

import functools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from churn import check_effects, churn
from local_job import LocalJob, oracle
from redone import check_redone

STEPS = 60
BATCH, MICROBATCHES = 96, 12
WORKERS = {"initial": 1, "min": 1, "max": 4}


@functools.cache
def expected(program: str) -> str:
    return oracle(program, config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES)


def job(home: Path, program: str = "classifier", *, workers: int = 1, **spec: Any) -> LocalJob:
    return LocalJob(
        home,
        program,
        config={"steps": STEPS},
        batch={"global_size": BATCH, "num_microbatches": MICROBATCHES},
        workers={**WORKERS, "initial": workers},
        **spec,
    )


def check(run: LocalJob, program: str = "classifier") -> None:
    """The same bits, every step committed once, one row a step; a loss costs at most one."""
    assert run.result() == (STEPS, expected(program))
    assert [row["step"] for row in run.rows()] == list(range(1, STEPS + 1)), run.told()
    check_redone(run)


@pytest.mark.parametrize("program", ["classifier", "transformer"])
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_bits_do_not_depend_on_the_worker_count(tmp_path: Path, program: str, workers: int) -> None:
    with job(tmp_path, program, workers=workers) as run:
        check(run, program)


@pytest.mark.parametrize("program", [pytest.param("classifier", marks=pytest.mark.short), "transformer"])
def test_scaling_while_it_trains(tmp_path: Path, program: str) -> None:
    with job(tmp_path, program) as run:
        run.wait_step(3)
        for workers in (4, 2, 3):
            run.scale(workers)
            run.wait_workers(workers)
            run.wait_step(run.step + 3)
        check(run, program)
    formed = run.formed()
    assert [event["data"]["workers"] for event in formed] == [1, 4, 2, 3]
    assert all(event["data"]["paused_seconds"] < 5 for event in formed[1:])


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        ("classifier", (0,)),
        ("classifier", (1, 3)),
        pytest.param("classifier", (0, 1, 2), marks=pytest.mark.short),
        ("transformer", (1, 2, 3)),
    ],
)
def test_sigkill_of_some(tmp_path: Path, program: str, ranks: tuple[int, ...]) -> None:
    with job(tmp_path, program, workers=4) as run:
        run.wait_step(10)
        run.kill(ranks)
        check(run, program)
    assert len(run.events("worker.lost")) == len(ranks)
    recovered = [event["data"] for event in run.formed() if event["data"]["cause"] == "recovery"]
    assert recovered
    assert not run.events("job.restarting")


@pytest.mark.short
def test_sigkill_of_all_resumes_from_the_manifest(tmp_path: Path) -> None:
    with job(tmp_path, workers=3, checkpoint={"every_steps": 7}) as run:
        run.wait(lambda: bool(run.events("checkpoint.committed")), "a checkpoint")
        run.wait_step(20)
        run.kill(range(3))
        run.wait(lambda: bool(run.events("job.restarting")), "the restart")
        assert run.result() == (STEPS, expected("classifier"))
    check_redone(run)
    steps = {row["step"]: row for row in run.rows()}
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert len(run.events("job.restarting")) == 1


@pytest.mark.short
def test_a_kill_during_the_repair(tmp_path: Path) -> None:
    with job(tmp_path, workers=4) as run:
        run.wait_step(10)
        before = {one["pid"] for one in run.members()}
        first = run.kill([1])
        run.wait(lambda: not before.issubset({one["pid"] for one in run.status()["workers"]}), "the loss")
        survivors = [rank for rank, one in enumerate(run.members()) if one["pid"] in before - set(first)]
        run.kill(survivors[:1])
        check(run)
    assert len(run.events("worker.lost")) == 2


def test_a_kill_while_others_join(tmp_path: Path) -> None:
    with job(tmp_path, workers=2) as run:
        run.wait_step(5)
        run.scale(4)
        run.wait(lambda: any(one["state"] == "standby" for one in run.status()["workers"]), "a joiner that stands by")
        run.kill([0])
        check(run)
    assert len(run.events("worker.lost")) == 1


def test_a_joiner_that_dies_disturbs_nobody(tmp_path: Path) -> None:
    with job(tmp_path, workers=2) as run:
        run.wait_step(5)
        run.scale(3)

        def joiner() -> list[int]:
            return [one["pid"] for one in run.status()["workers"] if one["rank"] is None and one["pid"]]

        run.wait(lambda: bool(joiner()), "a joiner")
        os.kill(joiner()[0], signal.SIGKILL)
        run.wait_workers(3)
        check(run)
    assert [event["data"]["cause"] for event in run.formed()] == ["start", "scale_up"]


@pytest.mark.parametrize("seed", [pytest.param(1, marks=pytest.mark.short), 2, 3])
def test_churn(tmp_path: Path, seed: int) -> None:
    """Seeded scalings, kills, stops and checkpoints, a few steps apart; `make soak` does it for as long as you like."""
    with job(tmp_path, workers=2, restart={"max_restarts": 100, "backoff": {"initial": 0.1}}) as run:
        done = []
        for deed in churn(run, random.Random(seed), until=STEPS - 15):
            print(f"seed {seed}, {deed.told}")
            done.append(deed)
        assert run.result()[1] == expected("classifier")
    check_effects(run, done)
    check_redone(run)
