"""A whole Ray node is lost while a job trains on it: the survivors go on before Ray has noticed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.invariants import record_cluster
from tests.local_job import oracle
from tests.ray_node import ray_node
from tests.running_home import BATCH, MICROBATCHES, STEPS, RunningHome, running_home

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHome]:
    """One with a single slot: whatever joins runs on another node."""
    with running_home(tmp_path_factory.mktemp("cluster") / "home", slots=1) as home:
        yield home


@pytest.fixture(scope="module")
def digest() -> str:
    return oracle("classifier", config={"steps": STEPS}, batch=BATCH, num_microbatches=MICROBATCHES)


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
