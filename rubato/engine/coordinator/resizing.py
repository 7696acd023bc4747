"""Bring the membership to the wish while training goes on: let join, let leave, one generation at a time.

Spare workers (`workers.standby`) warm up once those that are to train have joined, and wait for a loss or a scaling. A
worker that is to leave (`WorkerView.drain`) counts as missing: its replacement warms up beside it, and in the
generation that takes the one in the other is left out. Where no slot is free for a replacement it goes first, and its
slot serves.
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
        leaving = [worker for worker in members if worker.drain is not None]
        staying = [worker for worker in members if worker.drain is None]
        self._end_spares_that_are_to_leave()
        outside = warm_first(job.roster.joinable(job.current))
        missing = max(0, job.wish.workers - len(staying))
        adding = 0 if job.changes.has_given_up_joins else missing
        wanted = adding + job.standby_workers
        for worker in outside[wanted:]:
            job.kill(worker, "no longer wanted")
        outside = outside[:wanted]
        if job.wish.workers < len(members):
            # One more than wished for was needed to replace the only member.
            is_replacing = bool(leaving) and job.current.cause == "replace"
            kept = [*staying, *leaving][: job.wish.workers]
            job.reason = job.changes.because or job.reason
            self._mint(members, kept, [], "replace" if is_replacing else "scale_down", now)
            return
        # A spare is started when nobody is missing: until then it would take the cores from those who join.
        if not job.is_trained:  # else those who are left hold the checkpoint of the end
            job.spawn((adding or wanted) - len(outside), now)
        ready = in_state(WorkerState.STANDBY, outside)[:adding]
        warming = in_state(WorkerState.WARMING, outside)[: adding - len(ready)]
        unplaced = 0 if job.is_trained else missing - len(ready) - len(warming)
        if not job.starting.given_up:
            waits = f"{unplaced} of {job.wish.workers} workers are starting or wait for a slot" if unplaced else ""
            job.reason = job.changes.because or waits
        may_join = bool(ready) and job.changes.may_try(now, joins=True)
        joining = ready if may_join and not _awaits_others(ready, warming, unplaced, now) else []
        kept = [*staying, *self._kept(staying, leaving, len(joining), unplaced, now)]
        if joining or len(kept) < len(members):
            is_replacing = bool(leaving) or len(kept) + len(joining) <= self.world_before_loss
            self._mint(members, kept, joining, "replace" if is_replacing else "scale_up", now)

    def _end_spares_that_are_to_leave(self) -> None:
        for worker in self._job.roster.joinable(self._job.current):
            if worker.drain is not None:
                self._job.kill(worker, "no longer wanted")

    def _kept(
        self, staying: list[WorkerView], leaving: list[WorkerView], joining: int, unplaced: int, now: float
    ) -> list[WorkerView]:
        """Those that are to leave and cannot be done without yet.

        One goes for each that joins. Without one they go where no slot is to be had, down to `workers.min`, and where
        they must, as long as anybody is left who has the state.
        """
        kept = leaving[: max(0, len(leaving) - joining)]
        stranded = [one for one in kept if one.drain and now - one.drain.asked_at >= PLACEMENT_GRACE_S][:unplaced]
        for worker in kept.copy():
            assert worker.drain is not None
            is_pressing = worker.drain.is_pressing(now)
            least = 1 if is_pressing else max(1, self._job.terms.min_workers)
            if (is_pressing or worker in stranded) and len(staying) + len(kept) + joining > least:
                kept.remove(worker)
        # The members of a generation bring its joiners up to date: one of them at least has the state.
        return kept or leaving[: 0 if staying else 1]

    def _mint(
        self,
        members: list[WorkerView],
        kept: list[WorkerView],
        joining: list[WorkerView],
        cause: wire.Cause,
        now: float,
    ) -> None:
        job = self._job
        assert job.current is not None
        if not job.changes.may_try(now, joins=bool(joining)):
            return
        by_rank = [worker for worker in members if worker in kept]
        job.mint(by_rank + joining, wire.Origin("members"), cause, follows=job.current.number)


def _awaits_others(ready: list[WorkerView], warming: list[WorkerView], unplaced: int, now: float) -> bool:
    """Whether those that stand by wait, so that all who were started together join in one change."""
    waited_s = now - min(one.standby_at for one in ready)
    return (bool(warming) and waited_s <= LAGGARD_GRACE_S) or (unplaced > 0 and waited_s < PLACEMENT_GRACE_S)
