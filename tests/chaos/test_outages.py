"""Agent or service killed, or cut off from each other, amid what they do together: training goes on, led by the same.

The bits are the oracle's. While the service is away a test looks at the storage and at processes only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rubato.cli.keeper import commands
from rubato.cli.keeper.process_table import is_alive
from tests.invariants import record_cluster
from tests.moments import ENDING, MOMENTS, SAVING, SCALING, STEADY, every_steps, newest_checkpoint, reached
from tests.relay import Relay
from tests.running_home import PATIENCE_S, STEPS, ClusterJob, RunningHome
from tests.stopping import stopped
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(900)

SHORT_S, LONG_S = 8.0, 300.0
"""Of an outage: time for some steps; longer than the lease (30 s), than a worker goes on without a controller (60 s),
and than it takes until a forced stop is done for sure (120 s).
"""
FEW_STEPS = 3


@pytest.fixture(scope="module")
def relay(home: RunningHome) -> Iterator[Relay]:
    """Between the service and all of the cluster: another agent speaks through it, while the keeper's stands still."""
    record = home.home.read_record()
    assert record is not None
    relay = Relay(int(record.url.rpartition(":")[2]))
    layout = commands.Layout(home.home, relay.port, 0, Path(record.ray_temp_dir), record.mark)
    with stopped(home.process("agent").pid):
        agent = subprocess.Popen(
            commands.agent_command(layout, record.ray_address),
            env=commands.base_environment(layout, commands.find_checkout(), os.environ),
            stdin=subprocess.DEVNULL,
        )
        try:
            yield relay
            assert agent.poll() is None, "it has left the cluster alone"
        finally:
            agent.kill()
            agent.wait()
            relay.close()


@contextmanager
def killed(home: RunningHome, role: str) -> Iterator[None]:
    """It is gone until the end, and then there again."""
    process = home.process(role)
    with stopped(home.process("keeper").pid):  # else it would start another one at once
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(process), f"the end of the {role}", PATIENCE_S)
        yield
    home.wait_restarted(role, process)


def disturb(job: ClusterJob, when: str, outage: AbstractContextManager[None], seconds: float) -> None:
    """Let it last, from the moment on that is named."""
    # Of a checkpoint a moment is not enough: whole ones are made meanwhile.
    with nullcontext() if when == SAVING else reached(job, when), outage:
        if when == SAVING:
            before = newest_checkpoint(job)
            wait_for(lambda: newest_checkpoint(job) >= before + FEW_STEPS, "other checkpoints", PATIENCE_S)
        # The outage itself is what is tested: nothing happens that could be waited for.
        time.sleep(seconds)


def check_outage(
    job: ClusterJob, digest: str, when: str, outage: AbstractContextManager[None], seconds: float, row: str
) -> None:
    """Nobody is lost or led by another, no generation is minted but the one that was asked for, nobody waits."""
    members = job.wait_members(2)
    job.wait_step(FEW_STEPS)
    begun = datetime.now(UTC)
    disturb(job, when, outage, seconds)
    ended = datetime.now(UTC)
    if when == SCALING:
        job.wait_formed(3)
    if when != ENDING:
        job.wait_step(job.now().step + FEW_STEPS)
        trained = [datetime.fromisoformat(point.time) for point in job.home.client.metrics(job.id)]
        assert len([at for at in trained if begun < at < ended]) >= FEW_STEPS, "somebody waited for it"
        assert {one.pid for one in members} <= {one.pid for one in job.home.client.workers(job.id)}
    job.check(digest)
    assert job.now().attempt == 1
    assert [event.data["cause"] for event in job.formed()] == ["start", "scale_up"][: 1 + (when == SCALING)]
    assert not job.events("worker.lost")
    assert newest_checkpoint(job) == STEPS
    record_cluster(job, f"{row}, {when}", "test_outages.py", since=None if when == ENDING else begun)


def submit(running: RunningHome, scratch: Path, when: str) -> ClusterJob:
    # Slowly: on a busy machine, too, the moment is reached long before the end, near which no step is soon followed by
    # three others. In what is steady an outage takes less than the half of it.
    held_s = 0.6 if when == STEADY else 0.15
    return running.classifier(scratch, workers=2, held_s=held_s, checkpoint={"every_steps": every_steps(when)})


@pytest.mark.parametrize(
    ("role", "when"), [(role, when) for role in ("agent", "service") for when in (SCALING, SAVING, ENDING)]
)
def test_killed(running: RunningHome, tmp_path: Path, digest: str, role: str, when: str) -> None:
    job = submit(running, tmp_path, when)
    check_outage(job, digest, when, killed(running, role), SHORT_S, f"{role} killed")


@pytest.mark.parametrize("when", MOMENTS)
def test_the_cluster_is_cut_off_from_the_service(
    running: RunningHome, relay: Relay, tmp_path: Path, digest: str, when: str
) -> None:
    """Of what is sent meanwhile nothing arrives before the end, and then all of it."""
    job = submit(running, tmp_path, when)
    seconds = LONG_S if when == STEADY else SHORT_S
    check_outage(job, digest, when, relay.is_cut(), seconds, "service cut off from the cluster")
    assert relay.held


def test_a_cancel_while_the_cluster_is_cut_off_is_done_once_it_is_heard_of(
    running: RunningHome, relay: Relay, tmp_path: Path
) -> None:
    job = submit(running, tmp_path, STEADY)
    job.wait_members(2)
    with relay.is_cut():
        assert not running.client.cancel(job.id).is_final, "who told the service so?"
        time.sleep(FEW_STEPS)
        assert not job.now().is_final
    job.check_cancelled()
    assert not job.events("worker.lost")
