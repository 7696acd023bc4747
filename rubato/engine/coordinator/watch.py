"""Looks at signs of life at every tick, and acts on what `hangs` decides."""

from __future__ import annotations

from rubato.engine.coordinator.ending import Ending
from rubato.engine.coordinator.hangs import Hung, Lenience, decide_hung, decide_stuck
from rubato.engine.coordinator.repair import Repair
from rubato.engine.coordinator.state import JobState


class Watch:
    """Fences who hangs; ends a generation whose members all wait for each other."""

    def __init__(self, job: JobState, repair: Repair, ending: Ending) -> None:
        self._job = job
        self._repair = repair
        self._ending = ending
        self._lenience = Lenience()
        self._membership = (0, 0)
        """The last generation revoked and the last one minted."""
        self._changed_at = 0.0

    def advance(self, now: float) -> None:
        """One look."""
        job, policy = self._job, self._job.terms.hangs
        membership = (self._repair.through, job.highest)
        if self._membership != membership:
            self._membership, self._changed_at = membership, now
        unchanged_s = now - self._changed_at
        awaited = self._repair.unanswered() if self._repair.is_active else []
        for hung in decide_hung(
            list(job.roster), policy, now, lenience=self._lenience, revoked=awaited, revoked_s=unchanged_s
        ):
            self._fence(hung)
        newest = job.pending or job.current
        if newest is None or self._repair.has_revoked(newest.number):
            return  # what is waited for is a worker, not a message
        is_following = job.pending is not None and job.pending.follows > 0
        stuck = decide_stuck(job.roster.of(newest), policy, unchanged_s)
        if stuck is not None and stuck.is_unequal and is_following:
            # A joiner on its way waits for members that are through with the program: they left out nothing.
            stuck = decide_stuck(job.roster.of(job.current), policy, unchanged_s)
        if stuck is not None:
            self._repair.begin(stuck.because, is_raised=stuck.is_unequal)
        elif job.pending is not None and is_following and unchanged_s > policy.other_s:
            # Its members train on; where not all have formed it hardly anybody can have switched.
            members = [*job.roster.of(job.pending), *job.roster.of(job.current)]
            if behind := [one.worker_id for one in members if one.formed < job.pending.number]:
                job.fail_pending(f"{', '.join(behind)} had not formed it after {unchanged_s:.0f} s", now)

    def _fence(self, hung: Hung) -> None:
        worker = self._job.roster.get(hung.incarnation)
        if worker is None:
            return
        worker.hang = hung
        self._job.kill(worker, f"hang: {hung.because}", with_stacks=True)
        if worker not in self._job.roster.of(self._job.current):
            return  # it costs the others nothing: `starting` decides what is to be thought of it
        self._lenience.grow(hung.stage)
        failure = self._job.verdicts.on_hang(hung, self._job.number)
        if failure is not None:
            self._ending.fail(self._job.located(failure, worker))
