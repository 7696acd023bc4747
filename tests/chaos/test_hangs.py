"""Workers that hang, stop or are starved: who is fenced, who never is; the bits are the oracle's."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from invariants import record
from redone import check_redone
from small_job import PLAIN, check_alone, expected, job

from rubato.engine.coordinator.hangs import HangPolicy
from tests.stopping import stopped

HANGING = """
import ctypes

def hang(how):
    # PyDLL keeps the interpreter lock while the function runs.
    library = ctypes.PyDLL(None) if how == "in C" else ctypes.CDLL(None)
    library.sleep(1000)

def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    mark = Path(run.config["home"]) / "hung"
    for step in run.steps():
        for x, y in step:
            hangs = step.index == 8 and step.microbatch == 5
            if hangs and not (run.config["once"] and mark.exists()):
                mark.touch()
                hang(run.config["how"])
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()

if __name__ == "__main__":
    rubato.main(train)
"""
LIMITS = {"hang_timeout": 6}


@pytest.mark.parametrize("how", [pytest.param("in C", marks=pytest.mark.short), "without the lock"])
def test_one_that_hangs_in_a_microbatch_is_fenced_and_the_event_names_the_place(tmp_path: Path, how: str) -> None:
    config = {"steps": 14, "how": how, "once": True}
    with job(tmp_path, HANGING, workers=3, config=config, limits=LIMITS) as run:
        result = run.result()
    check_redone(run)
    (lost,) = run.events("worker.lost")
    hang = lost["data"]["hang"]
    assert (hang["stage"], hang["step"], hang["microbatch"]) == ("compute", 8, 5), run.told()
    assert hang["seconds"] >= 6
    assert "microbatch 5 of step 8" in lost["message"]
    assert ("interpreter did not run" in lost["message"]) == (how == "in C")
    assert any("in hang" in line for line in lost["data"]["last_output"]), "its stacks"
    assert result == (14, expected(tmp_path, config))
    record(run, f"hang {how}")


def test_one_that_hangs_whenever_it_is_tried_fails_the_job(tmp_path: Path) -> None:
    with job(tmp_path, HANGING, workers=3, config={"steps": 14, "how": "in C", "once": False}, limits=LIMITS) as run:
        failure = run.wait_for_end().failure
    assert failure is not None
    assert (failure.failure_class, failure.reason, failure.step, failure.microbatch) == ("user", "hang", 8, 5)
    assert "run.long_phase" in failure.message
    assert any("program_" in line and "in train" in line for line in failure.last_output), failure.last_output
    lost = run.events("worker.lost")[-1]["data"]
    assert (lost["worker_id"], lost["hang"]["step"]) == (failure.worker_id, failure.step)


STOPS = """
def train(run):
    model, optimizer = build(run)
    run.prepare(model=model, optimizer=optimizer, dataset=DATA)
    home = Path(run.config["home"])
    for step in run.steps():
        for x, y in step:
            pace(run)
            if step.index == 0 and not (home / "fast").exists():
                time.sleep(2.4)  # eight times that is beyond the least deadline
            if (step.index, step.microbatch) == (5, 5) and not (home / "stopped").exists():
                (home / "stopping").write_text(str(os.getpid()))
                (home / "stopping").rename(home / "stopped")
                os.kill(os.getpid(), 19)
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
"""


def test_a_stop_is_fenced_after_a_deadline_that_the_run_has_taught(tmp_path: Path) -> None:
    """Nothing is set: a microbatch may take eight times what it took before, where that is more than the least."""
    config = {"steps": 80, "pace": 0.3}
    with job(tmp_path, STOPS, workers=4, config=config) as run:
        run.wait(lambda: (tmp_path / "stopped").exists(), "the stop")
        pid = int((tmp_path / "stopped").read_text())
        run.wait(lambda: bool(run.events("worker.lost")), "the fence")
        with suppress(ProcessLookupError):  # it is killed, and may be gone by now
            os.kill(pid, signal.SIGCONT)
        run.wait(lambda: "replace" in [event["data"]["cause"] for event in run.formed()], "the replacement")
        check_alone(run, tmp_path, config, fault="SIGSTOP for ever, and no hang_timeout is set")
    (lost,) = run.events("worker.lost")
    hang = lost["data"]["hang"]
    assert (hang["stage"], hang["step"], hang["microbatch"]) == ("compute", 5, 5), run.told()
    assert HangPolicy.stage_s < hang["limit_seconds"] < HangPolicy.slow_s, "it was not learned"
    assert hang["seconds"] >= hang["limit_seconds"]
    assert {row["workers"] for row in run.rows()[-3:]} == {4}


@contextmanager
def burner() -> Iterator[None]:
    """A process that takes all of a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_short_stops_and_busy_cores_cost_nobody(tmp_path: Path) -> None:
    config = {"steps": 60, "pace": 0.01}
    with ExitStack() as stack:
        run = stack.enter_context(job(tmp_path, PLAIN, workers=4, config=config))
        for _ in range(os.cpu_count() or 2):
            stack.enter_context(burner())
        for step, rank in zip(range(5, 50, 5), itertools.cycle(range(4))):
            run.wait_step(step)
            with stopped(run.members()[rank]["pid"]):
                stopped_at = run.step
                # The stop itself is what is tested: nothing happens that could be waited for.
                signal.sigtimedwait([], 0.2)
            run.wait_step(stopped_at + 1)
        result = run.result()
    assert not run.events("worker.lost")
    assert result == (60, expected(tmp_path, config))
