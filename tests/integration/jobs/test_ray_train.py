"""An unmodified train function of Ray Train on a real Ray: scaled, killed, led anew, paused, cancelled, failed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rubato.client import Worker
from tests.running_home import PROGRAMS, ClusterJob, RunningHome

pytestmark = pytest.mark.timeout(600)
EPOCHS = 5
EXAMPLES = Path(__file__).parents[3] / "examples"


def submit(home: RunningHome, scratch: Path, workers: int = 1, **spec: Any) -> ClusterJob:
    return home.submit(
        PROGRAMS,
        "ray_train.py:train_func",
        scratch,
        backend="ray_train",
        config={"epochs": EPOCHS, **spec.pop("config", {})},
        workers={"initial": workers, "min": 1, "max": 2},
        env={"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1"},
        checkpoint={"keep_last": 2},
        **spec,
    )


def test_train_functions_run_as_jobs(running: RunningHome, tmp_path: Path) -> None:
    job = submit(running, tmp_path)
    check_scaled(job)
    check_end(job)


@pytest.mark.long
def test_train_functions_survive_a_kill_and_a_pause(running: RunningHome, tmp_path: Path) -> None:
    job = submit(running, tmp_path)
    check_scaled(job)
    check_killed(job)
    check_paused_and_resumed(job)
    check_end(job)


@pytest.mark.long
def test_train_functions_survive_the_loss_of_their_controller(running: RunningHome, tmp_path: Path) -> None:
    job = submit(running, tmp_path)
    check_scaled(job)
    check_controller_killed(job)
    check_end(job)


@pytest.mark.long
def test_train_functions_fail_and_are_cancelled(running: RunningHome, tmp_path: Path) -> None:
    """Two jobs at a time: starting a driver of Ray Train takes long, and mostly waits."""
    raising = submit(running, tmp_path, config={"raise_at": 2}, restart={"max_restarts": 0})
    unwanted = submit(running, tmp_path)
    check_cancelled(unwanted)
    check_failed(raising)


@pytest.mark.long
def test_the_example_trains(running: RunningHome, tmp_path: Path) -> None:
    spec = yaml.safe_load((EXAMPLES / "ray_train_digits.yaml").read_text())
    entrypoint = spec.pop("entrypoint")
    job = running.submit(EXAMPLES, entrypoint, tmp_path, can_be_held=False, **{**spec, "config": {"epochs": 3}})
    ended = job.finish()
    assert (ended.status, ended.step) == ("succeeded", 3)
    assert [row.values["accuracy"] > 0.5 for row in running.client.metrics(job.id)][-1]


def check_scaled(job: ClusterJob) -> None:
    """From one worker to two, by a restart that is told beforehand."""
    client = job.home.client
    job.wait_step(3)
    wished = client.scale(job.id, 2)
    assert wished.scaling_restarts
    assert "That restarts the job from its newest checkpoint (step " in (wished.message or "")
    job.wait_formed(2)
    began, scaled = job.formed()
    assert (began.data["cause"], scaled.data["cause"], scaled.data["from_workers"]) == ("start", "scale_up", 1)
    assert (scaled.step or 0) > 3
    assert scaled.data["paused_seconds"] > 0


def check_killed(job: ClusterJob) -> None:
    """The second worker; the job goes on from its newest checkpoint."""
    _, second = job.wait_members(2)
    assert second.pid is not None
    wait_for_first_lines(job, [second])
    os.kill(second.pid, signal.SIGKILL)
    job.wait(lambda: job.formed()[-1].data["cause"] == "recovery", "a recovery")
    (lost,) = [event for event in job.events("worker.lost") if event.data["worker_id"] == second.worker_id]
    assert "its process ended" in lost.data["cause"]


def wait_for_first_lines(job: ClusterJob, workers: Sequence[Worker]) -> None:
    """What they, or their controller, had within the last fraction of a second would be lost with it."""
    ids = {worker.worker_id for worker in workers}
    job.wait(lambda: ids <= {line.worker_id for line in job.home.client.logs(job.id)}, "their first lines")


def check_controller_killed(job: ClusterJob) -> None:
    """It takes its driver along, and the next attempt goes on from the newest checkpoint."""
    members = job.wait_members(2)
    wait_for_first_lines(job, members)
    reached = job.now().step
    os.kill(job.controller_pid, signal.SIGKILL)
    job.wait(lambda: job.formed()[-1].attempt == 2, "a group of the second attempt")
    again = job.formed()[-1]
    assert (again.data["cause"], again.data["workers"]) == ("restart", 2)
    assert (again.step or 0) > reached, "each step is checkpointed: none that was told before is trained again"
    assert not [one for one in members if (Path("/proc") / str(one.pid)).exists()]


def check_paused_and_resumed(job: ClusterJob) -> None:
    """No process is left meanwhile."""
    client = job.home.client
    client.pause(job.id)
    job.wait(lambda: job.now().status == "paused", "a pause")
    processes = {event.data["pid"] for event in job.events("worker.started")}
    assert not [pid for pid in processes if (Path("/proc") / str(pid)).exists()]
    client.resume(job.id)
    job.wait(lambda: job.formed()[-1].data["cause"] == "restart", "a restart")


def check_end(job: ClusterJob) -> None:
    """It goes on to its end; each step has one row, and what is listed is there."""
    client = job.home.client
    ended = job.finish()
    assert (ended.status, ended.result) == ("succeeded", {"step": ended.step, "digest": ""})
    rows = list(client.metrics(job.id))
    assert [row.step for row in rows] == list(range(1, ended.step + 1))
    assert [row.values["epoch"] for row in rows] == [float(row.step) for row in rows]
    assert [one.step for one in client.checkpoints(job.id)][:2] == [ended.step, ended.step - 1]
    folders = [event.data["path"] for event in job.events("checkpoint.committed")][-2:]
    assert all((job.checkpoints / folder / "state.pt").is_file() for folder in folders)
    said = {(line.rank, line.line) for line in client.logs(job.id) if line.stream == "stdout" and line.worker_id}
    assert (0, "rank 0 of 1 goes on behind epoch 0") in said
    behind = (job.formed()[1].step or 0) - 1
    assert {(rank, f"rank {rank} of 2 goes on behind epoch {behind}") for rank in (0, 1)} <= said


def check_failed(job: ClusterJob) -> None:
    """By an exception of its function, whose traceback is told."""
    job.wait(lambda: job.now().is_final, "an end")
    ended, failure = job.now(), job.now().failure or {}
    assert ended.status == "failed"
    assert (failure["failure_class"], failure["reason"], failure["rank"]) == ("user", "user_code_error", 0)
    assert "ValueError: epoch 2 cannot be trained" in failure["message"]
    assert 'ray_train.py", line' in failure["traceback"]


def check_cancelled(job: ClusterJob) -> None:
    """It leaves no worker."""
    (worker,) = job.wait_members(1)
    job.home.client.cancel(job.id)
    assert job.finish().status == "cancelled"
    assert not (Path("/proc") / str(worker.pid)).exists()
