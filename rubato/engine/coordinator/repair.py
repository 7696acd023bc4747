"""Recovery by survivors: revoke, wait until each of them is in the engine, go on with those that have state."""

from __future__ import annotations

from collections.abc import Sequence

from rubato.engine.coordinator.roster import WorkerView
from rubato.engine.coordinator.state import JobState
from rubato.engine.coordinator.verdicts import is_raised
from rubato.wire import worker as wire
from rubato.wire.events import EventKind
from rubato.wire.status import WorkerState


class Repair:
    """At most one repair at a time; a death within it begins it anew with a higher number."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self.because = ""
        self.is_raised = False
        """Whether an exchange of a worker raised, or was left out; else workers lost touch."""
        self._mint_at: float | None = None
        """Until then the survivors, who have all answered, wait; None: they do not."""
        self._through = 0
        """Everything up to this generation is revoked; 0: no repair."""
        self._involved: dict[str, None] = {}
        """Members of what was revoked, in order of their ranks."""

    @property
    def is_active(self) -> bool:
        """Whether a repair is under way."""
        return self._through > 0

    def is_awaited(self, incarnation: str) -> bool:
        """Whether a worker takes part in it."""
        return self.is_active and incarnation in self._involved

    @property
    def through(self) -> int:
        """Everything up to this generation is revoked; 0: no repair."""
        return self._through

    def unanswered(self) -> list[str]:
        """Living workers that have not left what was revoked."""
        living = [worker for one in self._involved if (worker := self._job.roster.get(one)) is not None]
        return [one.incarnation for one in living if one.broken is None or one.broken.through < self._through]

    def has_revoked(self, generation: int) -> bool:
        """Whether the repair that is under way has revoked this generation."""
        return generation <= self._through

    def hear(self, cause: str) -> None:
        """Why one of those who take part had to leave: what raised there is told before what the others saw of it."""
        if is_raised(cause) and not self.is_raised:
            self.because, self.is_raised = cause, True

    def begin(self, because: str, also: Sequence[str] = (), *, is_raised: bool = False) -> None:
        """Revoke everything minted so far; in a repair: again, from who is left.

        Args:
            because: why.
            also: workers besides the known members that may be in one of these generations.
            is_raised: whether an exchange of a worker raised, or was left out.
        """
        job = self._job
        if not self.is_active:
            self._involved = {}
        self.because, self.is_raised, self._mint_at = because, is_raised, None
        if self._through < job.highest:  # else another member says the same of the same generation
            job.verdicts.on_repair(job.step)
        self._through = job.highest
        for record in (job.current, *job.given_up.values(), job.pending):
            self._involved |= {member.incarnation: None for member in record.members} if record else {}
        job.given_up.clear()
        self._involved |= dict.fromkeys(also)
        for incarnation in self._involved:
            if job.roster.get(incarnation) is not None:
                job.send(incarnation, wire.Revoke(job.terms.attempt, self._through))

    def finish(self) -> None:
        """The generation that the repair minted is trained in."""
        self._through = 0
        self._involved = {}

    def advance(self, now: float, *, may_wait: bool) -> bool:
        """Mint from the survivors once all have answered, and where the same was tried before in vain after a wait.

        Args:    may_wait: whether there is time for that.
        Returns: False where nobody has the state any more.
        """
        job = self._job
        if job.pending is not None and job.pending.number > self._through:
            broken = [one for one in job.roster.of(job.pending) if one.broken and one.broken.through > self._through]
            if len(job.roster.of(job.pending)) == job.pending.world and not broken:
                return True
            cause = next((one.broken.cause for one in broken if one.broken and one.broken.cause), "")
            self.begin(cause or "another worker was lost during the repair", is_raised=is_raised(cause))
        if self.unanswered():
            return True
        answered = [worker for one in self._involved if (worker := job.roster.get(one)) is not None]
        survivors = [one for one in answered if one.broken is not None and one.broken.has_state]
        if job.terms.rolls_back:  # nor may they save what they have
            survivors = [one for one in survivors if not one.doom]
        survivors = self._without_laggards(survivors)
        for worker in answered:
            if worker not in survivors and not worker.doom and not worker.has_left:
                worker.state, worker.generation, worker.broken = WorkerState.STANDBY, 0, None
        if not survivors:
            job.pending = None
            self.finish()
            return False
        if may_wait and self._waits(now):
            return True
        job.mint(survivors, wire.Origin("members"), "recovery", follows=0)
        return True

    def _waits(self, now: float) -> bool:
        wait_s = self._job.verdicts.repair_wait_s(self._job.terms, is_raised=self.is_raised)
        if not wait_s:
            return False  # also where a death has explained meanwhile what was waited for
        if self._mint_at is None:
            self._mint_at = now + wait_s
            self._tell_waiting(wait_s)
        return now < self._mint_at

    def _tell_waiting(self, wait_s: float) -> None:
        job, times = self._job, self._job.verdicts.repairs
        job.reason = (
            f"its workers lost each other {times} times at step {job.step} although none had died ({self.because}); "
            f"they are brought together again in {wait_s:g} s"
        )
        facts = {"generation": self._through, "cause": self.because, "joining": [], "times": times, "seconds": wait_s}
        job.emit(EventKind.CHANGE_FAILED, job.reason, step=job.step, **facts)

    def _without_laggards(self, survivors: list[WorkerView]) -> list[WorkerView]:
        """Fence those that cannot be brought up to date: nobody holds the reductions they missed any more.

        Further behind than one step they are after a planned leave that went wrong: the others trained on without the
        leaver, which had not left yet. One step behind, where the program of all others has changed the result.
        """
        told = [worker.broken for worker in survivors if worker.broken is not None]
        ahead = max((one.step for one in told), default=0)
        least = ahead - 1 if any(one.serves for one in told if one.step == ahead) else ahead
        together = []
        for worker in survivors:
            if worker.broken is not None and worker.broken.step < least:
                self._job.kill(worker, f"it stopped at step {worker.broken.step} while the others reached {ahead}")
            else:
                together.append(worker)
        return together
