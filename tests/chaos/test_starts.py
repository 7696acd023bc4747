"""Workers that die before they ever train: killed from outside they are replaced, by themselves the job fails."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from invariants import Undisturbed, check
from small_job import alone, check_alone, job, write
from stopping import stop

from rubato.engine.coordinator.hangs import HangPolicy
from rubato.engine.coordinator.starting import LEAST_RETRIES
from rubato.launch import supervisor
from rubato.launch.process import ChildProcess, spawn_fresh
from rubato.testing import LocalJob

pytestmark = pytest.mark.timeout(240)

WARMING = """
def train(run):
    home = Path(run.config["home"])
    here = home / f"here-{os.getpid()}"
    here.write_text(os.environ.get("RUBATO_INCARNATION", ""))
    if (home / "hold").exists():
        until(home / "go")
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)

if __name__ == "__main__":
    rubato.main(train)
"""


def warming(home: Path) -> list[int]:
    """Pids of the processes that are in the user's code, before its first step, oldest worker first."""
    found = sorted((path.read_text(), int(path.name.split("-")[1])) for path in home.glob("here-*"))
    return [pid for incarnation, pid in found if incarnation]


def wait_warming(run: LocalJob, home: Path, count: int) -> list[int]:
    run.wait(lambda: len(warming(home)) >= count, f"{count} workers that warm up")
    return warming(home)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    home = tmp_path_factory.mktemp("alone")
    write(home, WARMING)
    return alone(home, {})


@pytest.mark.parametrize(
    ("which", "number"),
    [([0], signal.SIGKILL), ([0, 1, 2], signal.SIGKILL), ([1, 2], signal.SIGSEGV)],
    ids=["one", "all", "two by themselves"],
)
def test_who_is_killed_in_the_warm_up_is_replaced(
    tmp_path: Path, undisturbed: Undisturbed, which: list[int], number: signal.Signals
) -> None:
    (tmp_path / "hold").touch()
    with job(tmp_path, WARMING, workers=3) as run:
        pids = wait_warming(run, tmp_path, 3)
        for rank in which:
            os.kill(pids[rank], number)
        run.wait(lambda: len(run.events("worker.lost")) == len(which), "the losses")
        wait_warming(run, tmp_path, 3 + len(which))
        (tmp_path / "go").touch()
        check(run, undisturbed, fault=f"{number.name} of {len(which)} of 3 in the warm-up")
    assert {event["data"]["signal"] for event in run.events("worker.lost")} == {number.name}
    assert run.rows()[0]["workers"] == 3


def test_one_that_is_stopped_before_its_program_is_loaded_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written no word of progress: all that tells of it is that nothing does."""
    monkeypatch.setattr(HangPolicy, "slow_s", 40.0)  # which no fixed policy goes below
    stopped: list[int] = []
    turn = threading.Lock()  # workers are started by a thread each

    def spawn_stopped(*args: Any) -> ChildProcess:
        process = spawn_fresh(*args)
        with turn:
            if not stopped:
                stop(process.pid)
                stopped.append(process.pid)
        return process

    monkeypatch.setattr(supervisor, "spawn_fresh", spawn_stopped)
    monkeypatch.setattr(supervisor.ChildSupervisor, "_fork", lambda *_: None)
    config = {"steps": 400, "pace": 0.2}
    with job(tmp_path, WARMING, workers=3, config=config, limits={"hang_timeout": 20}) as run:
        run.wait(lambda: bool(run.events("worker.lost")), "the loss")
        assert {row["workers"] for row in run.rows()} == {2}, "the two others train meanwhile"
        run.wait_workers(3)
        check_alone(run, tmp_path, config, fault="SIGSTOP for ever before the program is loaded")
    assert len(run.events("worker.lost")) == 1, run.told()
    (lost,) = [event["data"] for event in run.events("worker.lost")]
    (first,) = [event["data"] for event in run.events("worker.started") if event["data"]["pid"] in stopped]
    assert lost["worker_id"] == first["worker_id"]
    assert "had said nothing 40 s after its start" in lost["cause"]


def test_one_that_is_lost_again_and_again_holds_nobody_up(tmp_path: Path) -> None:
    """The others stand by: they begin while it is waited for the next try."""
    config = {"steps": 300, "pace": 0.05}
    with job(tmp_path, KILLED_UNLESS_FIRST, workers=2, config=config) as run:
        run.wait_step(3)
        run.wait(lambda: len(run.events("worker.lost")) >= 2, "more than one try")
        assert {row["workers"] for row in run.rows()} == {1}
        (tmp_path / "healed").touch()
        run.wait_workers(2)
        check_alone(run, tmp_path, config, fault="SIGKILL in every warm-up but the first worker's")


BY_ITSELF = """
def train(run):
    home = Path(run.config["home"])
    (home / f"here-{os.getpid()}").write_text("0")
    os.kill(os.getpid(), getattr(__import__("signal"), run.config["by"]))
"""
KILLED_UNLESS_FIRST = """
def train(run):
    if os.environ["RUBATO_INCARNATION"] != "1.1" and not (Path(run.config["home"]) / "healed").exists():
        os.kill(os.getpid(), 9)
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    for step in run.steps():
        fit(run, step, model, optimizer)
"""


@pytest.mark.parametrize(("by", "failure_class"), [("SIGKILL", "infrastructure"), ("SIGSEGV", "user")])
def test_a_program_that_dies_in_every_warm_up_is_not_tried_for_ever(
    tmp_path: Path, by: str, failure_class: str
) -> None:
    with job(tmp_path, BY_ITSELF, config={"by": by}, restart={"max_restarts": 0, "backoff": {"initial": 0.1}}) as run:
        outcome = run.wait_for_end()
    assert outcome.failure is not None, run.told()
    assert (outcome.failure.failure_class, outcome.failure.reason) == (failure_class, "start_failed"), outcome
    assert by in outcome.failure.message
    assert len(warming(tmp_path)) == 2 * (1 + LEAST_RETRIES), "two workers at each try"


RAISES = """
def train(run):
    raise RuntimeError("this is wrong from the start")
"""


def test_an_exception_before_the_first_step_is_not_tried_again(tmp_path: Path) -> None:
    with job(tmp_path, RAISES) as run:
        outcome = run.wait_for_end()
    assert outcome.failure is not None
    assert (outcome.failure.failure_class, outcome.failure.reason) == ("user", "user_code_error")
    assert "this is wrong from the start" in outcome.failure.message
    assert len(run.events("worker.started")) == 2
