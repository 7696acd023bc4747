"""A whole Ray node is lost, or falls silent and comes back, while a job trains on it: the others go on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rubato.cli.keeper.process_table import is_alive, send_signal
from rubato.client.models import Event
from tests.invariants import record_cluster
from tests.moments import ENDING, MOMENTS, every_steps, newest_checkpoint, reached
from tests.ray_node import ray_node
from tests.running_home import STEPS, ClusterJob, RunningHome, running_home
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(600)
HANG_S = 8
ENDS_S = 60.0
"""So long after a fault has healed, processes of a job that has ended may live."""
WAKES_S = 20.0
"""For a process that wakes up to find that it does not count any more, on a machine that is busy."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    """One with a single slot: whatever joins runs on another node."""
    with running_home(tmp_path_factory.mktemp("cluster") / "home", slots=1) as home:
        yield home


def test_a_node_is_lost_and_another_one_takes_its_place(running: RunningHome, tmp_path: Path, digest: str) -> None:
    job = running.classifier(tmp_path, workers=1)
    (first,) = job.wait_members(1)
    with ray_node(running, tmp_path, slots=2) as node:
        job.scale(3)
        members = job.wait_members(3)
        assert [node.has(one.pid) for one in members] == [one.pid != first.pid for one in members]
        killed_at = datetime.now(UTC)
        killed = node.kill()
        lost = job.wait_events("worker.lost", 2)
    assert {one.pid for one in members} - {first.pid} < {process.pid for process in killed}
    noticed_s = [(datetime.fromisoformat(event.time) - killed_at).total_seconds() for event in lost]
    print("the loss was noticed after", noticed_s)
    # Whoever tells it is the kernel: Ray's own word comes more than ten seconds later.
    assert ["its host refuses connections to it" in event.data["cause"] for event in lost] == [True, True]
    job.wait_formed(1, after=lost[-1].position)
    assert [one.pid for one in job.wait_members(1)] == [first.pid]
    job.wait_step(job.now().step + 3)
    with ray_node(running, tmp_path, slots=2) as node:
        back = job.wait_members(3)
        assert [node.has(one.pid) for one in back] == [one.pid != first.pid for one in back]
        job.check(digest)
    causes = [event.data["cause"] for event in job.formed()]
    assert causes[:3] == ["start", "scale_up", "recovery"]
    assert len(job.events("worker.lost")) == 2
    record_cluster(job, "node lost, with two of three workers", "test_nodes.py")


def lost_of(job: ClusterJob, worker_id: str) -> Event | None:
    """The event of its loss."""
    return next((event for event in job.events("worker.lost") if event.data["worker_id"] == worker_id), None)


@pytest.mark.parametrize("when", MOMENTS)
def test_a_node_falls_silent_and_comes_back(running: RunningHome, tmp_path: Path, digest: str, when: str) -> None:
    """As when its network is cut and mended: what was there by then is led by nobody, and nothing of it counts."""
    checkpoint, limits = {"every_steps": every_steps(when)}, {"hang_timeout": HANG_S}
    job = running.classifier(tmp_path, workers=1, checkpoint=checkpoint, limits=limits)
    (first,) = job.wait_members(1)
    with ray_node(running, tmp_path, slots=2) as node:
        job.scale(2)
        (there,) = [one for one in job.wait_members(2) if one.pid != first.pid]
        assert node.has(there.pid)
        begun = datetime.now(UTC)
        with ExitStack() as silence:
            with reached(job, when):
                cut_off = silence.enter_context(node.silent())
            for process in cut_off:
                send_signal(process, signal.SIGSTOP)  # the end of the moment has woken one of them
            lost = job.wait(lambda: lost_of(job, there.worker_id), "loss of the worker on that node")
            if when != ENDING:
                job.wait_formed(1, after=lost.position)
                job.wait_step(job.now().step + 3)
        trained = {process for process in cut_off if process.pid == there.pid}
        wait_for(lambda: not any(map(is_alive, trained)), "the end of the worker that came back", WAKES_S)
        job.finish()
        started = {event.data["pid"] for event in job.events("worker.started")}
        # Also of one that was to be started there while nobody answered.
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "the end of all workers", ENDS_S)
        job.check(digest)
    assert job.now().attempt == 1
    assert lost_of(job, first.worker_id) is None
    assert newest_checkpoint(job) == STEPS
    row = f"node silent and back, with one of two workers, {when}"
    record_cluster(job, row, "test_nodes.py", since=None if when == ENDING else begun)
