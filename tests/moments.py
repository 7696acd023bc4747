"""The moments of a job on a cluster at which something is taken from it, reached for sure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.running_home import PATIENCE_S, STEPS, ClusterJob
from tests.stopping import stopped
from tests.waiting import wait_for

STEADY, SCALING, SAVING, ENDING = "steady", "scaling up", "a checkpoint is written", "at the end"
MOMENTS = (STEADY, SCALING, SAVING, ENDING)


def every_steps(moment: str) -> int:
    """The job's checkpoint interval: one a step, and one is in the making whenever one looks."""
    return 1 if moment == SAVING else 20


@contextmanager
def shut(door: Path) -> Iterator[None]:
    """Who comes to it meanwhile waits."""
    door.touch()
    try:
        yield
    finally:
        door.unlink()


@contextmanager
def reached(job: ClusterJob, moment: str) -> Iterator[None]:
    """Amid a moment of a job that trains; whoever could end it stands still meanwhile.

    Scaling up is by one worker, which warms up. Of a checkpoint that is written, as of the last one at the end, all
    workers have written their parts, and their controller has not said that it is whole.
    """
    match moment:
        case "steady":
            yield
        case "scaling up":
            job.wait_events("generation.formed")  # which is told some steps later
            workers, formed = len(job.wait_events("worker.started")), len(job.formed())
            with shut(job.door):
                job.home.client.scale(job.id, workers + 1)
                with stopped(job.wait_events("worker.started", workers + 1)[-1].data["pid"]):
                    assert len(job.formed()) == formed, "the moment is over"
                    yield
        case "a checkpoint is written":
            job.wait_events("checkpoint.committed", 3)
            with amid_a_save(job):
                yield
        case "at the end":
            with stopped(job.controller_pid):
                job.hold.unlink()
                wait_for(
                    lambda: has_parts_after(job, STEPS - 1), "the workers' part of the last checkpoint", PATIENCE_S
                )
                assert not job.now().is_final
                yield


@contextmanager
def amid_a_save(job: ClusterJob) -> Iterator[None]:
    """Looks again where the controller was stopped between two checkpoints."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with stopped(job.controller_pid):
            newest, looks_until = newest_checkpoint(job), time.monotonic() + 1.0
            while not (is_saving := has_parts_after(job, newest)) and time.monotonic() < looks_until:
                time.sleep(0.02)
            if is_saving:
                yield
                return
        assert time.monotonic() < deadline, "no checkpoint was in the making"
        time.sleep(0.05)


def has_parts_after(job: ClusterJob, step: int) -> bool:
    """Whether workers have written the document of a later checkpoint, which needs the controller to be whole."""
    return any(int(path.parent.name.split("-")[1]) > step for path in job.checkpoints.glob("1-*/state*.json"))


def newest_checkpoint(job: ClusterJob, attempt: int = 1) -> int:
    """Step of the newest one of an attempt that is whole, as the storage has it; 0: there is none."""
    manifests = job.checkpoints.glob(f"{attempt}-*/manifest.json")
    return max((int(path.parent.name.split("-")[1]) for path in manifests), default=0)
