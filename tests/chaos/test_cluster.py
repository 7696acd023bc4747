"""What a real cluster may lose; afterwards the bits are the oracle's, and no event or metric row is missing."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.invariants import record_cluster
from tests.moments import ENDING, MOMENTS, SAVING, newest_checkpoint, reached
from tests.running_home import STEPS, RunningHome
from tests.stopping import stopped
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("when", MOMENTS)
def test_the_ray_head_is_lost_and_the_job_resumes_from_its_checkpoint(
    running: RunningHome, tmp_path: Path, digest: str, when: str
) -> None:
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": 1 if when == SAVING else 5})
    members = job.wait_members(2)
    saved = job.wait_events("checkpoint.committed", 2)[-1].step or 0
    with reached(job, when):
        begun, step = datetime.now(UTC), STEPS if when == ENDING else job.now().step
        os.kill(running.process("ray").pid, signal.SIGKILL)
        for one in members:
            job.wait(lambda pid=one.pid: not Path(f"/proc/{pid}").exists(), "end of the workers")
    job.check(digest)
    assert job.now().attempt == 2
    resumed = next(event for event in job.formed() if event.attempt == 2)
    assert resumed.step is not None
    assert resumed.step > saved, "an older checkpoint than one that was told of"
    assert not job.events("checkpoint.corrupt")
    again = max(0, step - resumed.step + 1)
    # At the end workers train on without their controller: nobody else has the rows of those steps.
    until = begun if when == ENDING else None
    fault = f"SIGKILL of the Ray head, {when}"
    record_cluster(job, fault, "test_cluster.py", since=begun, steps_again=again, trained_until=until)


def test_a_cancel_while_the_ray_head_is_gone_wins(running: RunningHome, tmp_path: Path) -> None:
    """Whether the cluster or the cancel comes first: it is resumed nowhere."""
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": 5})
    job.wait_events("checkpoint.committed")
    job.wait_events("generation.formed")
    ray = running.process("ray")
    with stopped(running.process("keeper").pid):  # else it would start another one at once
        os.kill(ray.pid, signal.SIGKILL)
        running.client.cancel(job.id)
    running.wait_restarted("ray", ray)
    job.check_cancelled()
    assert {event.attempt for event in job.formed()} == {1}


def test_rows_that_no_service_took_come_with_the_checkpoint(running: RunningHome, tmp_path: Path, digest: str) -> None:
    """All that held them is lost at once, and nobody computes those steps again."""
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": 5})
    members = job.wait_members(2)
    job.wait_events("checkpoint.committed")
    with stopped(running.process("service").pid):
        before = newest_checkpoint(job)
        wait_for(lambda: newest_checkpoint(job) >= before + 10, "checkpoints that the service has not heard of", 120)
        begun = datetime.now(UTC)
        os.kill(running.process("ray").pid, signal.SIGKILL)
        for one in members:
            wait_for(lambda pid=one.pid: not Path(f"/proc/{pid}").exists(), "the end of the workers", 120)
    job.check(digest)
    resumed = next(event for event in job.formed() if event.attempt == 2)
    assert (resumed.step or 0) > before + 10
    record_cluster(job, "SIGKILL of the Ray head while the service stands still", "test_cluster.py", since=begun)


def test_the_service_is_stopped_for_longer_than_the_lease(running: RunningHome, tmp_path: Path, digest: str) -> None:
    job = running.classifier(tmp_path, workers=2)
    members = job.wait_members(2)
    job.wait_step(3)
    begun = datetime.now(UTC)
    with stopped(running.process("service").pid):
        time.sleep(40)  # the outage itself is what is tested: nothing happens that could be waited for
    ended = datetime.now(UTC)
    job.check(digest)
    assert job.now().attempt == 1
    assert not job.events("worker.lost")
    assert len(job.events("worker.started")) == len(members)
    trained = [point for point in running.client.metrics(job.id) if begun < datetime.fromisoformat(point.time) < ended]
    assert len(trained) > 10, "nobody waited for the service"
    record_cluster(job, "SIGSTOP of the service for 40 s", "test_cluster.py", since=begun)


def test_the_controller_is_stopped_for_longer_than_any_deadline_but_the_workers_own(
    running: RunningHome, tmp_path: Path, digest: str
) -> None:
    job = running.classifier(tmp_path, workers=2)
    job.wait_step(3)
    begun = datetime.now(UTC)
    with stopped(job.controller_pid):
        time.sleep(45)  # the outage itself is what is tested: nothing happens that could be waited for
    job.check(digest)
    assert len(job.formed()) == 1
    assert not job.events("worker.lost")
    record_cluster(job, "SIGSTOP of the controller for 45 s", "test_cluster.py", since=begun)


def test_the_controller_dies_while_workers_join_and_a_member_dies_too(
    running: RunningHome, tmp_path: Path, digest: str
) -> None:
    job = running.classifier(tmp_path, workers=2)
    members = job.wait_members(2)
    job.wait_step(3)
    running.client.scale(job.id, 4)
    job.wait_events("worker.started", 4)
    os.kill(job.controller_pid, signal.SIGKILL)
    assert members[0].pid is not None
    os.kill(members[0].pid, signal.SIGKILL)
    job.wait_events("controller.attached")
    job.wait_members(4)
    job.check(digest)
    record_cluster(job, "SIGKILL of controller and member in a join", "test_cluster.py")


def test_the_controller_dies_while_checkpoints_are_made(running: RunningHome, tmp_path: Path, digest: str) -> None:
    """One a step: whenever it dies, one is in the making."""
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": 1})
    begun = datetime.now(UTC)
    for lives in (1, 2, 3):
        job.wait_events("checkpoint.committed", 3 * lives)
        os.kill(job.controller_pid, signal.SIGKILL)
        job.wait_events("attempt.acquired", lives + 1)
    job.check(digest)
    assert not job.events("worker.lost")
    saved = [event.step for event in job.events("checkpoint.committed")]
    assert saved[-1] == STEPS
    assert not job.events("checkpoint.corrupt")
    record_cluster(job, "SIGKILL of the controller in a checkpoint, three times", "test_cluster.py", since=begun)


def test_the_controller_dies_in_a_cancel(running: RunningHome, tmp_path: Path) -> None:
    job = running.classifier(tmp_path, workers=2)
    job.wait_members(2)
    controller = job.controller_pid
    running.client.cancel(job.id)
    os.kill(controller, signal.SIGKILL)
    job.check_cancelled()


def test_controller_and_all_workers_die_at_once(running: RunningHome, tmp_path: Path, digest: str) -> None:
    job = running.classifier(tmp_path, workers=3, checkpoint={"every_steps": 5})
    members = job.wait_members(3)
    job.wait_events("checkpoint.committed", 2)
    begun, step = datetime.now(UTC), job.now().step
    os.kill(job.controller_pid, signal.SIGKILL)
    for one in members:
        assert one.supervisor_pid is not None
        os.kill(one.supervisor_pid, signal.SIGKILL)
    job.wait_events("attempt.acquired", 2)
    job.check(digest)
    resumed = next(event for event in job.formed() if event.attempt == 2)
    again = max(0, step - (resumed.step or 0) + 1)
    record_cluster(job, "SIGKILL of the controller and all workers", "test_cluster.py", since=begun, steps_again=again)
