"""Drain, kill, look into and take out of service on a real Ray: the bits are the oracle's, a drain loses nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rubato.cli.app import run
from rubato.client.models import Worker
from tests.ray_node import ray_node
from tests.running_home import PATIENCE_S, ClusterJob, RunningHome

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(600)


def wait_replaced(job: ClusterJob, gone: set[str], count: int) -> list[Worker]:
    """The members, once they are so many and none of those is among them."""

    def members() -> list[Worker] | None:
        found = job.wait_members(count)
        return found if not gone & {one.worker_id for one in found} else None

    found: list[Worker] = job.wait(members, f"{count} workers without {gone}")
    return found


@pytest.mark.long
def test_a_worker_is_drained_another_killed_and_the_stacks_of_a_third_are_read(
    running: RunningHome,
    tmp_path: Path,
    digest: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = running.classifier(tmp_path, workers=2)
    first, second = job.wait_members(2)
    job.wait_step(3)
    operations = running.client.operations
    text = operations.stack(job.id, first.worker_id, wait_s=60)
    assert text is not None
    assert text.startswith(f"{first.worker_id} (rank 0), pid {first.pid} on ")
    assert "\n\nThread MainThread (most recent call first):\n" in text
    assert "classifier.py" in text
    asked = operations.drain_worker(job.id, first.worker_id)
    while asked["state"] == "pending":
        asked = operations.drain_worker(job.id, first.worker_id, wait_s=30)
    assert asked["state"] == "done", asked
    after = wait_replaced(job, {first.worker_id}, 2)
    assert second.worker_id in {one.worker_id for one in after}
    assert not job.events("worker.lost")
    # Told of some steps later, with the pause that it cost.
    job.wait(lambda: [event.data["cause"] for event in job.formed()] == ["start", "replace"], "word of the replacement")
    assert min(event.data["workers"] for event in job.formed()) == 2
    # By its present rank, at the command line.
    monkeypatch.setenv("RUBATO_HOME", str(running.home.path))
    monkeypatch.delenv("RUBATO_URL", raising=False)
    victim = after[1]
    assert run(["worker", "kill", job.id, "1", "--wait"]) == 0
    assert f"done: {victim.worker_id} was killed by SIGKILL." in capsys.readouterr().err
    (lost,) = job.wait_events("worker.lost")
    assert (lost.data["worker_id"], lost.data["signal"]) == (victim.worker_id, "SIGKILL")
    wait_replaced(job, {first.worker_id, victim.worker_id}, 2)
    job.check(digest)
    assert job.now().desired_workers == 2
    assert job.now().raw["scalings"] == 0


@pytest.mark.long
def test_what_was_asked_while_the_controller_is_dead_its_successor_does(
    running: RunningHome, tmp_path: Path, digest: str
) -> None:
    job = running.classifier(tmp_path, workers=2)
    first, _ = job.wait_members(2)
    job.wait_step(3)
    os.kill(job.events("attempt.acquired")[-1].data["pid"], signal.SIGKILL)
    running.client.operations.drain_worker(job.id, first.worker_id)
    job.wait_events("controller.attached")
    wait_replaced(job, {first.worker_id}, 2)
    job.check(digest)
    assert not job.events("worker.lost")
    assert len(job.events("worker.left")) >= 1


def nodes_by_id(running: RunningHome) -> dict[str, dict[str, Any]]:
    return {node["node_id"]: node for node in running.client.operations.nodes()}


@pytest.mark.long
def test_a_node_is_drained_and_its_workers_go_on_elsewhere(running: RunningHome, tmp_path: Path, digest: str) -> None:
    before = nodes_by_id(running)
    with ray_node(running, tmp_path, slots=2):
        job = running.classifier(tmp_path, workers=2)
        job.wait(lambda: len(nodes_by_id(running)) == 2, "the second node")
        (other,) = nodes_by_id(running).keys() - before.keys()
        (home,) = before
        # Whoever starts now has only the second node to go to.
        operations = running.client.operations
        drained = operations.drain_node(home)
        assert drained["state"] in ("draining", "drained")
        job.wait(lambda: nodes_by_id(running)[home]["state"] == "drained", "the end of all workers there")
        members = job.wait_members(2)
        assert {one.raw["node_id"] for one in members} == {other}
        operations.uncordon(home)
        back = operations.drain_node(other)
        assert back["state"] == "draining"
        job.wait(lambda: nodes_by_id(running)[other]["state"] == "drained", "the end of all workers there")
        members = job.wait_members(2)
        assert {one.raw["node_id"] for one in members} == {home}
        assert nodes_by_id(running)[home]["state"] == "ready"
        job.check(digest)
    assert not job.events("worker.lost")
    assert {event.data["cause"] for event in job.formed()} <= {"start", "replace", "scale_up"}


def wait_alone(running: RunningHome) -> str:
    """The home's own node, once Ray has noticed that others are gone."""
    deadline = time.monotonic() + PATIENCE_S
    while len(nodes := list(nodes_by_id(running))) > 1:
        assert time.monotonic() < deadline, nodes
        time.sleep(0.2)
    return nodes[0]


@pytest.mark.long
def test_training_leaves_a_container_that_is_to_be_stopped(running: RunningHome, tmp_path: Path, digest: str) -> None:
    """By the hook of its pod; the bits are the oracle's, nobody is lost, and a checkpoint was saved before."""
    home = wait_alone(running)
    with ray_node(running, tmp_path, slots=2) as node:
        running.client.operations.cordon(home)
        job = running.classifier(tmp_path, workers=2)
        assert home not in {one.raw["node_id"] for one in job.wait_members(2)}
        running.client.operations.uncordon(home)
        hook = subprocess.Popen([str(ROOT / "deploy" / "ray-leave"), str(node.root.pid)])
        job.wait(lambda: node.has_ended(), "the end of Ray's node")
        assert hook.wait() == 0
        assert {one.raw["node_id"] for one in job.wait_members(2)} == {home}
        job.check(digest)
    assert not job.events("worker.lost")
    assert {event.data["cause"] for event in job.formed()} <= {"start", "replace", "scale_up"}
    kinds = [event.kind for event in running.client.events(job.id)]
    assert kinds.index("checkpoint.committed") < kinds.index("worker.left")
