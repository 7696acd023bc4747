"""The ends of an attempt: finished, paused, cancelled, failed. Nothing is ended before its processes are gone.

Workers that reached an end are released only when nobody needs what they hold any more: this process may be killed at
any moment, and whoever takes over asks them for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rubato.engine.coordinator import orders
from rubato.engine.coordinator.roster import WorkerView
from rubato.engine.coordinator.rows import RowBook
from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire
from rubato.wire.cluster import Failure, Outcome, Result
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason

LAST_WORDS_S = 5.0
"""For a worker that failed the job to end by itself."""


class Ending:
    """Watches for an end; once one is decided nothing else is."""

    def __init__(self, job: JobState, rows: RowBook) -> None:
        self._job = job
        self._rows = rows
        self._failure: Failure | None = None
        self._failed_at: float | None = None
        self._result: Result | None = None
        self._is_released = False
        self._is_told = False
        self._leave_sent: set[tuple[str, str]] = set()
        self._asked_at: dict[str, float] = {}
        self._deadline: float | None = None
        self._unsaved_step = -1
        self._is_unsaved_told = False

    @property
    def is_leaving(self) -> bool:
        """An end is wished for or decided: exits are expected, and nobody is started."""
        return self._job.wish.run != "run" or self._failure is not None or self._is_released

    @property
    def is_over(self) -> bool:
        """`End` was ordered."""
        return self._is_told

    @property
    def is_decided(self) -> bool:
        """The outcome stands: no repair any more."""
        return self._failure is not None or self._is_released

    def fail(self, failure: Failure) -> None:
        """The job fails; the first cause counts."""
        if self._failure is None and not self._is_released:
            self._failure = failure

    def on_exited(self, worker: WorkerView, event: wire.Exited) -> None:
        """Its process is gone: what it said last (the stacks of one that hung) belongs to the failure it led to."""
        failure = self._failure
        if failure is None or not self._is_culprit(worker) or failure.last_output:
            return
        if any(line not in failure.message for line in event.last_output):  # else all is said
            self._failure = replace(failure, last_output=event.last_output)

    def on_save_failed(self, step: int) -> None:
        """A checkpoint could not be written: an end does not wait for it."""
        self._unsaved_step = max(self._unsaved_step, step)

    def is_expected(self, worker: WorkerView) -> bool:
        """Whether the exit of this worker is no loss."""
        is_of_the_end = self.is_decided and not self._is_culprit(worker)
        return is_of_the_end or self._job.wish.run == "stop" or worker.doom == "no longer wanted"

    def advance(self, now: float) -> None:
        """One look; orders what brings the end about."""
        if self._is_told:
            return
        if self._failure is not None:
            self._failed_at = now if self._failed_at is None else self._failed_at
            # Who failed ends by itself, and what it still has to say is a part of the failure.
            is_speaking = now < self._failed_at + LAST_WORDS_S
            for worker in self._job.roster:
                if not (is_speaking and self._is_culprit(worker)):
                    self._job.kill(worker, "the job failed")
            # A stop that was asked for wins: what fails on the way out is of no interest any more.
            is_stop = self._job.wish.run == "stop"
            self._end_when_empty(Outcome("cancelled") if is_stop else Outcome("failed", failure=self._failure))
        elif self._is_released:
            self._after_release(now)
        elif self._have_ended("finished") and not self._is_cut_short(now):
            self._finish(now)
        elif self._job.wish.run == "stop":
            self._leave("stop", now)
            self._end_when_empty(Outcome("cancelled"))
        elif self._job.wish.run == "pause":
            if self._have_ended("paused") and self._rows.are_stored and (self._is_saved() or self._is_given_up(now)):
                self._release(now)
            else:
                self._leave("pause", now)
                self._end_when_empty(Outcome("paused"))

    def _is_cut_short(self, now: float) -> bool:
        """Whether a stop that was asked for does not wait any longer, not even for what finished is to be stored."""
        return self._job.wish.run == "stop" and (self._job.wish.force or now >= self._due_at("stop", now))

    def _due_at(self, how: Literal["stop", "pause"], now: float) -> float:
        """When workers that are asked to leave now, or were before, are ended."""
        given_s = self._job.wish.grace_s if how == "stop" else None
        grace_s = self._job.terms.stop_grace_s if given_s is None else given_s
        return self._asked_at.setdefault(how, now) + grace_s

    def _is_culprit(self, worker: WorkerView) -> bool:
        """Whether the failure is of this worker."""
        return self._failure is not None and self._failure.worker_id == worker.worker_id

    def _have_ended(self, how: str) -> bool:
        members = self._job.roster.of(self._job.current)
        if self._job.current is None or len(members) < self._job.current.world:
            return False
        return all(worker.ended is not None and worker.ended.how == how for worker in members)

    def _is_kept(self) -> bool:
        """What only the workers have is on storage: the metric rows, and the state at the end, unless it cannot be."""
        return self._rows.are_stored and self._is_saved()

    def _is_saved(self) -> bool:
        """The state at the end is on storage, or cannot be."""
        job = self._job
        return max(job.ledger.committed_step, self._unsaved_step) >= job.step

    def _is_given_up(self, now: float) -> bool:
        """Whether a pause does without the checkpoint that it waits for, its grace being over. Says so."""
        if self._deadline is None or now < self._deadline:
            return False
        self._tell_unsaved()
        return True

    def _tell_unsaved(self) -> None:
        """Say, once, that the job is paused without the checkpoint of where it stands."""
        job = self._job
        if self._is_unsaved_told:
            return
        self._is_unsaved_told = True
        if job.wish.force:
            cause, when, advice = "the pause was forced", "before the pause was forced", ""
        else:
            cause, when = "limits.stop_grace was over", f"within limits.stop_grace ({job.terms.stop_grace_s:g} s)"
            advice = ". Is the storage reachable, and fast enough for the size of the checkpoint?"
        message = (
            f"the checkpoint of step {job.step} was not saved {when}: the job is paused without it, and goes on from "
            f"{_describe_step(job.ledger.committed_step)}{advice}"
        )
        job.emit(EventKind.CHECKPOINT_FAILED, message, step=job.step, cause=cause)

    def _finish(self, now: float) -> None:
        ended = [worker.ended for worker in self._job.roster.of(self._job.current) if worker.ended is not None]
        digests = {one.digest for one in ended}
        if len(digests) > 1:
            listed = ", ".join(sorted(digests))
            message = f"The workers ended with different states ({listed}). Register what influences training."
            self.fail(Failure("user", Reason.DIVERGED, message, step=ended[0].step))
            self.advance(now)
        elif self._is_kept():
            self._result = Result(step=ended[0].step, digest=ended[0].digest)
            self._release(now)

    def _leave(self, how: Literal["stop", "pause"], now: float) -> None:
        """Ask members to stop at a boundary; end the others, and those too that do not stop in time."""
        job = self._job
        self._deadline = self._due_at(how, now)
        for worker in job.roster:
            # Before a pause a member of the pending generation is spared: the others may be switching to it just now.
            is_wanted = job.is_member(worker) if how == "pause" else job.rank_of(worker) is not None
            if not is_wanted:
                job.kill(worker, "no longer wanted")
            elif (worker.incarnation, how) not in self._leave_sent:
                self._leave_sent.add((worker.incarnation, how))
                job.send(worker.incarnation, wire.Leave(job.terms.attempt, how))
            elif worker.ended is not None and how == "stop" and self._rows.are_stored:
                job.send(worker.incarnation, wire.Release(job.terms.attempt))  # also where a pause had stopped it
                worker.ended = None
        if job.wish.force or now >= self._deadline:
            if how == "pause" and len(job.roster) and job.current is not None and not self._is_saved():
                self._tell_unsaved()
            given_s = job.wish.grace_s if how == "stop" else None
            bound = "limits.stop_grace" if given_s is None else f"the {given_s:g} s of its cancel"
            self._kill_all(f"it did not stop within {bound}")

    def _release(self, now: float) -> None:
        self._is_released = True
        self._deadline = now + self._job.terms.stop_grace_s
        for worker in self._job.roster:
            # Not those of a pending generation: a joiner that never got in does not wait for a release.
            if self._job.rank_of(worker) is not None:
                self._job.send(worker.incarnation, wire.Release(self._job.terms.attempt))
            else:
                self._job.kill(worker, "no longer wanted")
        self._after_release(now)

    def _after_release(self, now: float) -> None:
        if (self._deadline is not None and now >= self._deadline) or self._is_cut_short(now):
            self._kill_all("it did not exit after its release")
        done = Outcome("succeeded", result=self._result) if self._result else Outcome("paused")
        self._end_when_empty(done)

    def _kill_all(self, because: str) -> None:
        for worker in self._job.roster:
            self._job.kill(worker, because)

    def _end_when_empty(self, outcome: Outcome) -> None:
        if not len(self._job.roster):
            self._is_told = True
            self._job.put(orders.End(outcome))


def _describe_step(committed: int) -> str:
    # -1: none that this attempt knows of.
    return f"step {committed}" if committed >= 0 else "the newest checkpoint there is"
