"""Controllers that are killed, or stopped and superseded, while their job trains: it goes on with the same workers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from invariants import Undisturbed, check_cluster, record_cluster

from jobs.fleet import ATTACH_S
from rubato.cli.keeper.commands import MARK
from rubato.cli.keeper.process_table import identify, marked_processes
from service.auth import Authority, load_key
from tests.moments import ENDING, MOMENTS, SCALING, every_steps, has_parts_after, reached
from tests.others_on_ray import others_hold
from tests.running_home import PATIENCE_S, STEPS, ClusterJob, RunningHome
from tests.stopping import stop
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]
REATTACH_S = 10.0
"""The promise. On two busy cores it takes one to four."""
LOCKED_S = 20
"""Longer than that."""


@contextlib.contextmanager
def successor(job: ClusterJob) -> Iterator[None]:
    """Another controller leads from here on, whatever the one before does; it ends by itself with the job."""
    home = job.home.home
    record = home.read_record()
    assert record is not None
    attempt = job.events("attempt.acquired")[-1].attempt
    token = home.path / "ray-token"
    environment = {
        **os.environ,
        MARK: record.mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "PYTHONPATH": str(ROOT),
    }
    arguments = [job.id, record.url, record.ray_address, str(attempt)]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.second_controller", *arguments],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(Authority(load_key(home.path)).job_ticket(job.id) + "\n")
        process.stdin.close()
        yield
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("when", MOMENTS)
def test_a_stopped_controller_wakes_after_its_successor_took_over(
    running: RunningHome, tmp_path: Path, alone: Undisturbed, when: str
) -> None:
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": every_steps(when)})
    members = job.wait_members(2)
    job.wait_step(3)
    old = identify(job.controller_pid)
    assert old is not None
    if when == SCALING:
        running.client.scale(job.id, 3)
        job.wait_events("worker.started", 3)
    begun = datetime.now(UTC)
    stop(old.pid)
    try:
        if when == ENDING:
            job.hold.unlink()
            job.wait(lambda: has_parts_after(job, STEPS - 1), "the workers' part of the last checkpoint")
        with successor(job):
            job.wait_events("controller.attached")
            if when != ENDING:
                job.wait_step(job.now().step + 2)
            os.kill(old.pid, signal.SIGCONT)
            wait_for(lambda: identify(old.pid) != old, "the end of the superseded controller", PATIENCE_S)
            if when == SCALING:
                job.wait_members(3)
            pids = {one.pid for one in running.client.workers(job.id)}
            assert job.now().is_final or {one.pid for one in members} <= pids
            check_cluster(job, alone)
    finally:
        if identify(old.pid) == old:
            os.kill(old.pid, signal.SIGCONT)
    assert not job.events("worker.lost")
    acquired = {event.attempt: event.position for event in job.events("attempt.acquired")}
    late = [event for event in running.client.events(job.id) if event.attempt == 1 and event.position > acquired[2]]
    assert not late, "it told something"
    since = None if when == ENDING else begun
    record_cluster(job, f"controller stopped and superseded, {when}", "test_takeover.py", since=since)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_killed_controller_is_succeeded(running: RunningHome, tmp_path: Path, alone: Undisturbed, when: str) -> None:
    job = running.classifier(tmp_path, workers=2, held_s=0.15, checkpoint={"every_steps": every_steps(when)})
    members = job.wait_members(2)
    job.wait_events("generation.formed")  # told some steps later, when its pause is known; no successor tells it
    begun = datetime.now(UTC)
    with reached(job, when):
        killed_at = datetime.now(UTC)
        os.kill(job.controller_pid, signal.SIGKILL)
    check_attached(job, killed_at)
    if when == SCALING:
        job.wait_members(3)
    pids = {one.pid for one in running.client.workers(job.id)}
    assert job.now().is_final or {one.pid for one in members} <= pids
    check_cluster(job, alone)
    assert [event.attempt for event in job.events("attempt.acquired")] == [1, 2]
    assert not job.events("worker.lost")
    assert [event.data["cause"] for event in job.formed()] == ["start", *["scale_up"] * (when == SCALING)]
    record_cluster(
        job, f"SIGKILL of the controller, {when}", "test_takeover.py", since=None if when == ENDING else begun
    )


def test_a_controller_killed_with_its_agent_is_succeeded_as_soon(
    running: RunningHome, tmp_path: Path, alone: Undisturbed
) -> None:
    job = running.classifier(tmp_path, workers=2)
    members = job.wait_members(2)
    job.wait_step(3)
    agent = running.process("agent")
    killed_at = datetime.now(UTC)
    os.kill(agent.pid, signal.SIGKILL)
    os.kill(job.controller_pid, signal.SIGKILL)
    check_attached(job, killed_at)
    assert {one.pid for one in members} <= {one.pid for one in running.client.workers(job.id)}
    running.wait_restarted("agent", agent)
    check_cluster(job, alone)


def check_attached(job: ClusterJob, killed_at: datetime, within_s: float = REATTACH_S) -> None:
    """The successor leads soon."""
    (attached,) = job.wait_events("controller.attached")
    seconds = (datetime.fromisoformat(attached.time) - killed_at).total_seconds()
    print(f"a new controller had the workers {seconds:.1f} s after the old one was killed")
    assert seconds < within_s, "the workers were led by nobody for too long"


def test_a_worker_that_keeps_its_interpreters_lock_is_taken_over(
    running: RunningHome, tmp_path: Path, alone: Undisturbed
) -> None:
    """No thread of it runs, so it cannot answer; it is well, and says that it takes long."""
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": 20})
    members = job.wait_members(2)
    job.wait_events("generation.formed")
    order, taken = job.hold.with_name(f"{job.hold.name}.lock"), job.hold.with_name(f"{job.hold.name}.taken")
    order.with_suffix(".new").write_text(str(LOCKED_S))
    order.with_suffix(".new").rename(order)
    wait_for(taken.exists, "a worker that keeps its lock", PATIENCE_S)
    stands_until = time.monotonic() + LOCKED_S
    assert int(taken.read_text()) in [one.pid for one in members]
    killed_at, step = datetime.now(UTC), job.now().step
    os.kill(job.controller_pid, signal.SIGKILL)
    check_attached(job, killed_at)
    assert time.monotonic() < stands_until, "the fault was over"
    assert job.now().step <= step + 1, "nobody waited for it"
    job.wait_step(step + 3)
    assert [(one.worker_id, one.pid) for one in job.wait_members(2)] == [(one.worker_id, one.pid) for one in members]
    check_cluster(job, alone)
    assert [event.data["cause"] for event in job.formed()] == ["start"], "nothing had changed"
    assert not job.events("worker.lost")


def test_workers_without_a_place_hold_up_no_takeover(
    running: RunningHome, tmp_path: Path, alone: Undisturbed, others: contextlib.ExitStack
) -> None:
    """Ray has no memory for the second one, because of others, whom the scheduler does not know."""
    whole = memory_of_ray(running)
    memory = {"memory": f"{int(0.3 * whole) >> 20} MiB"}
    others.enter_context(others_hold(running, memory=int(0.5 * whole)))
    job = running.classifier(tmp_path, workers=2, resources_per_worker=memory, checkpoint={"every_steps": 20})
    (member,) = job.wait_members(1)
    waiting = [one for one in running.client.workers(job.id) if one.pid is None]
    assert [one.state for one in waiting] == ["starting"]
    job.wait_events("generation.formed")
    killed_at = datetime.now(UTC)
    os.kill(job.controller_pid, signal.SIGKILL)
    check_attached(job, killed_at, within_s=ATTACH_S)  # so long those are waited for that may answer
    assert [one.pid for one in job.wait_members(1)] == [member.pid]
    new = job.wait(
        lambda: [one for one in running.client.workers(job.id) if one.pid is None], "another one that waits for a place"
    )
    assert new[0].worker_id != waiting[0].worker_id
    check_cluster(job, alone)
    assert not job.events("worker.lost")


@pytest.fixture
def others() -> Iterator[contextlib.ExitStack]:
    """What is held until the test ends."""
    with contextlib.ExitStack() as held:
        yield held


def memory_of_ray(home: RunningHome) -> int:
    """Bytes that its Ray gives to actors, as its raylet was told."""
    record = home.home.read_record()
    assert record is not None
    for process in marked_processes(MARK, record.mark):
        command = Path(f"/proc/{process.pid}/cmdline").read_text()
        if found := re.search(r"--static_resource_list=(?:.*,)?memory,(\d+)", command):
            return int(found.group(1))
    raise AssertionError("no raylet was found")


def test_the_controller_is_killed_at_the_end_before_the_service_has_the_rows(
    running: RunningHome, tmp_path: Path, alone: Undisturbed
) -> None:
    job = running.classifier(tmp_path, workers=2, checkpoint={"every_steps": 20})
    members = job.wait_members(2)
    job.wait_step(3)
    controller, service = job.controller_pid, running.process("service").pid
    stop(service)
    try:
        job.hold.unlink()
        wait_for((job.checkpoints / f"1-{STEPS}" / "manifest.json").exists, "the checkpoint of the end", PATIENCE_S)
        os.kill(controller, signal.SIGKILL)
        assert all(Path(f"/proc/{one.pid}").exists() for one in members), (
            "nobody is released before the rows are stored"
        )
    finally:
        os.kill(service, signal.SIGCONT)
    check_cluster(job, alone)
    assert job.events("controller.attached"), "its successor found the workers"
    assert not job.events("worker.lost")
    record_cluster(job, "SIGKILL of the controller at the end, service stopped", "test_takeover.py")


def saving(job: ClusterJob) -> int:
    """How many workers have written parts of what was saved last; while the service is away little is committed."""
    folders = [(int(folder.name.split("-")[1]), folder) for folder in job.checkpoints.glob("1-*")]
    stripes = [(step, stripe) for step, folder in folders for stripe in _stripes_in(folder)]
    return int(max(stripes)[1].rpartition("-")[2]) if stripes else 0


def _stripes_in(folder: Path) -> list[str]:
    """The names of its stripes; none where it is deleted meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return [file.stem for file in folder.iterdir() if re.fullmatch(r"stripe-.*\.safetensors", file.name)]
    return []


def test_rows_outlive_the_controller_and_all_who_computed_them(
    running: RunningHome, tmp_path: Path, alone: Undisturbed
) -> None:
    """The service stands still, so that nothing is stored; one by one joiners take over."""
    job = running.classifier(tmp_path, workers=2, held_s=0.2, checkpoint={"every_steps": 1})
    members = job.wait_members(2)
    job.wait_step(3)
    controller, service = job.controller_pid, running.process("service").pid
    begun = datetime.now(UTC)
    stop(service)
    try:
        for member in members:
            wait_for(lambda: saving(job) == 2, "two workers", PATIENCE_S)
            os.kill(member.pid, signal.SIGKILL)
            wait_for(lambda: saving(job) == 1, "the one that is left", PATIENCE_S)
        wait_for(lambda: saving(job) == 2, "two workers that have joined", PATIENCE_S)
        os.kill(controller, signal.SIGKILL)
    finally:
        os.kill(service, signal.SIGCONT)
    job.wait_events("controller.attached")
    check_cluster(job, alone)
    record_cluster(job, "both workers killed, then the controller, service stopped", "test_takeover.py", since=begun)
