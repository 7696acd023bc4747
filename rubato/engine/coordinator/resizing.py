"""Bring the membership to the wish while training goes on: let join, let leave, one generation at a time.

Spare workers (`workers.standby`) warm up after those that are to train, and wait for a loss or a scaling.
"""

from __future__ import annotations

from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire
from rubato.wire.status import WorkerState

LAGGARD_GRACE_S = 5.0
"""How long joiners that stand by wait for others that still warm up, so that all join at once."""


class Resizing:
    """Looks at wish and members; acts only when the last change is settled."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self.world_before_loss = 0
        """Workers before the last crash: up to here joiners are replacements, not a scaling."""

    def advance(self, now: float) -> None:
        """One look; orders what is missing."""
        job = self._job
        assert job.current is not None
        members = job.roster.of(job.current)
        outside = job.roster.joinable(job.current)
        outside.sort(key=lambda one: one.state is not WorkerState.STANDBY)  # the warm ones are of most use
        missing = max(0, job.wish.workers - len(members))
        wanted = missing + job.terms.standby_workers
        for worker in outside[wanted:]:
            job.kill(worker, "no longer wanted")
        outside = outside[:wanted]
        if job.wish.workers < len(members):
            job.mint(members[: job.wish.workers], wire.Origin("members"), "scale_down", follows=job.current.number)
            return
        if now >= job.spawn_after:
            job.spawn(wanted - len(outside), now)
        ready = [worker for worker in outside if worker.state is WorkerState.STANDBY][:missing]
        warming = [worker for worker in outside if worker.state is WorkerState.WARMING][: missing - len(ready)]
        unplaced = missing - len(ready) - len(warming)
        if job.spawn_after != float("inf"):
            job.reason = f"{unplaced} of {job.wish.workers} workers are starting or wait for a slot" if unplaced else ""
        if ready and (not warming or now > min(one.standby_at for one in ready) + LAGGARD_GRACE_S):
            cause: wire.Cause = "replace" if len(members) + len(ready) <= self.world_before_loss else "scale_up"
            job.mint(members + ready, wire.Origin("members"), cause, follows=job.current.number)
