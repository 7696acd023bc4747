"""Workers that were replaced while they and their supervisors stood still, and wake up: nothing of them counts."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from invariants import Undisturbed, check_cluster, record_cluster

from rubato.cli.keeper.process_table import identify
from tests.running_home import RunningHome
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(400)
HANG_S = 8
WAKES_S = 20.0
"""For a process that wakes up to find that it does not count any more, on a machine that is busy."""


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
    check_cluster(job, alone)
    assert len(job.events("worker.lost")) == 1
    late = [
        event
        for event in running.client.events(job.id)
        if event.data.get("worker_id") == victim.worker_id and datetime.fromisoformat(event.time) > woken_at
    ]
    assert not late, "it told something"
    record_cluster(job, f"worker stopped, its supervisor {supervisor}, then woken", "test_zombies.py")
