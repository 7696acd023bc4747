"""Bring the membership to the wish while training goes on: let join, let leave, one generation at a time.

Spare workers (`workers.standby`) warm up after those that are to train, and wait for a loss or a scaling.
"""

from __future__ import annotations

from rubato.engine.coordinator.founding import PLACEMENT_GRACE_S
from rubato.engine.coordinator.roster import WorkerView, in_state, warm_first
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
        outside = warm_first(job.roster.joinable(job.current))
        missing = max(0, job.wish.workers - len(members))
        wanted = missing + job.standby_workers
        for worker in outside[wanted:]:
            job.kill(worker, "no longer wanted")
        outside = outside[:wanted]
        if job.wish.workers < len(members):
            job.mint(members[: job.wish.workers], wire.Origin("members"), "scale_down", follows=job.current.number)
            return
        job.spawn(wanted - len(outside), now)
        ready = in_state(WorkerState.STANDBY, outside)[:missing]
        warming = in_state(WorkerState.WARMING, outside)[: missing - len(ready)]
        unplaced = missing - len(ready) - len(warming)
        if not job.starting.given_up:
            job.reason = f"{unplaced} of {job.wish.workers} workers are starting or wait for a slot" if unplaced else ""
        if ready and not _awaits_others(ready, warming, unplaced, now):
            cause: wire.Cause = "replace" if len(members) + len(ready) <= self.world_before_loss else "scale_up"
            job.mint(members + ready, wire.Origin("members"), cause, follows=job.current.number)


def _awaits_others(ready: list[WorkerView], warming: list[WorkerView], unplaced: int, now: float) -> bool:
    """Whether those that stand by wait, so that all who were started together join in one change."""
    waited_s = now - min(one.standby_at for one in ready)
    return (bool(warming) and waited_s <= LAGGARD_GRACE_S) or (unplaced > 0 and waited_s < PLACEMENT_GRACE_S)
