"""Workers that were replaced while they and their supervisors stood still, and wake up: nothing of them counts."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from invariants import TIMINGS, Undisturbed, record_cluster, undisturbed

from rubato.checkpoint.manifest import open_checkpoint
from rubato.checkpoint.storage import LocalFolder
from rubato.cli.keeper.process_table import identify
from tests.running_home import BATCH, MICROBATCHES, STEPS, RunningHome
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(400)
HANG_S = 8
WAKES_S = 20.0
"""For a process that wakes up to find that it does not count any more, on a machine that is busy."""


@pytest.fixture(scope="module")
def alone() -> Undisturbed:
    batch = {"global_size": BATCH, "num_microbatches": MICROBATCHES}
    return undisturbed("classifier", batch=batch, config={"steps": STEPS})


@pytest.mark.parametrize("supervisor", ["stopped", "killed"])
def test_a_worker_that_was_replaced_wakes_up(
    running: RunningHome, tmp_path: Path, alone: Undisturbed, supervisor: str
) -> None:
    job = running.classifier(tmp_path, workers=3, checkpoint={"every_steps": 2}, limits={"hang_timeout": HANG_S})
    members = job.wait_members(3)
    job.wait_events("checkpoint.committed")
    victim = members[1]
    assert victim.pid is not None
    assert victim.supervisor_pid is not None
    child, parent = identify(victim.pid), identify(victim.supervisor_pid)
    os.kill(victim.pid, signal.SIGSTOP)  # in the middle of whatever it does: a step, a write of its stripe
    os.kill(victim.supervisor_pid, signal.SIGSTOP if supervisor == "stopped" else signal.SIGKILL)
    try:
        (lost,) = job.wait_events("worker.lost")
        assert lost.data["worker_id"] == victim.worker_id
        job.wait_formed(3, after=lost.position)
        job.wait_step(job.now().step + 3)
    finally:
        woken_at = datetime.now(UTC)
        for pid in (victim.supervisor_pid, victim.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    wait_for(lambda: identify(victim.pid or 0) != child, "the end of the training process", WAKES_S)
    wait_for(lambda: identify(victim.supervisor_pid or 0) != parent, "the end of its supervisor", WAKES_S)
    job.wait_step(job.now().step + 3)
    job.check(alone.digest)
    rows = {
        point.step: {name: value for name, value in point.values.items() if not name.endswith(TIMINGS)}
        for point in running.client.metrics(job.id)
    }
    assert rows == alone.rows
    assert len(job.events("worker.lost")) == 1
    late = [
        event
        for event in running.client.events(job.id)
        if event.data.get("worker_id") == victim.worker_id and datetime.fromisoformat(event.time) > woken_at
    ]
    assert not late, "it told something"
    for path in (running.home.path / "checkpoints" / job.id).iterdir():
        open_checkpoint(LocalFolder(path))
    record_cluster(job, f"worker stopped, its supervisor {supervisor}, then woken", "test_zombies.py")
