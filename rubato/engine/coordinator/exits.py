"""The end of a worker: what it means for those that train, and for those that are to be started."""

from __future__ import annotations

from typing import Literal

from rubato.engine.coordinator.actions import Actions
from rubato.engine.coordinator.ending import Ending
from rubato.engine.coordinator.founding import Founding
from rubato.engine.coordinator.repair import Repair
from rubato.engine.coordinator.roster import WorkerView
from rubato.engine.coordinator.starting import Death, GiveUp, Retry
from rubato.engine.coordinator.state import JobState
from rubato.engine.coordinator.verdicts import HANG_ADVICE, describe_exit, is_from_outside, was_killed_for_memory
from rubato.wire import worker as wire
from rubato.wire.cluster import Failure
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import WorkerState


class Exits:
    """Looks at each worker that leaves or is lost."""

    def __init__(self, job: JobState, founding: Founding, repair: Repair, ending: Ending, actions: Actions) -> None:
        self._job = job
        self._founding = founding
        self._repair = repair
        self._ending = ending
        self._actions = actions

    def on_left(self, worker: WorkerView) -> None:
        """Its part is over, and it ends by itself."""
        worker.state = WorkerState.DRAINING
        worker.has_left = True
        self._give_up_joining(worker)

    def on_exited(self, worker: WorkerView, event: wire.Exited, now: float) -> None:
        """Its process is gone."""
        job = self._job
        job.roster.remove(worker.incarnation)
        job.reassign_stripes()
        is_planned = worker.has_left or event.is_withdrawn or self._ending.is_expected(worker)
        self._tell(worker, event, is_planned=is_planned)
        self._ending.on_exited(worker, event)
        self._actions.on_exited(worker, event, is_planned=is_planned)
        if is_planned or self._ending.is_decided:
            self._give_up_joining(worker)
            return
        is_pending = job.pending is not None and job.pending.rank_of(worker.incarnation) is not None
        if (
            job.rank_of(worker) is not None
            or self._repair.is_awaited(worker.incarnation)
            or (is_pending and not job.number)
        ):
            job.verdicts.on_death()
            if not self._repair.is_active:
                self._repair.begin(f"{worker.worker_id} {describe_exit(event)}")
            if job.rank_of(worker) is not None:
                self.roll_back(worker.worker_id)
        elif is_pending and (worker.is_killed_by_hand or self._ending.is_leaving):
            job.give_up_pending()
        elif is_pending:
            job.fail_pending(f"{worker.worker_id} was lost: {_cause_of(worker, event)}", now)
        # A predecessor may have released it already: an end that was asked for is no crash.
        was_released = worker.ended is not None and event.exit_code == 0
        if not worker.error and not worker.doom and not was_released and not self._ending.is_leaving:
            no_retry, has_trained = job.terms.no_retry_exit_codes, worker.generation > 0
            place = worker.step, job.number
            failure = job.verdicts.on_crash(event, *place, no_retry=no_retry, has_trained=has_trained)
            if failure is not None:
                self._ending.fail(job.located(failure, worker))
        if not self._ending.is_leaving and self._tells_of_starts(worker, event, now, is_pending=is_pending):
            self._on_start_failure(worker, event, now)

    def roll_back(self, lost: str) -> None:
        """A member was lost: where the terms say so, nobody trains on from a state that lacks what it had kept.

        Behind the last step that is in a checkpoint, and no step is to come.
        """
        job = self._job
        if not job.terms.rolls_back or job.is_sealed:
            return
        because = f"gradients that {lost} had kept were lost, and compression.on_loss is rollback"
        for worker in job.roster:
            if job.is_member(worker):
                job.kill(worker, because)

    def _give_up_joining(self, worker: WorkerView) -> None:
        """What follows the present generation with this worker will not be: it is not there any more."""
        pending = self._job.pending
        if pending is not None and pending.follows and pending.rank_of(worker.incarnation) is not None:
            self._job.give_up_pending()

    def _tell(self, worker: WorkerView, event: wire.Exited, *, is_planned: bool) -> None:
        rank = self._job.rank_of(worker)
        if is_planned:
            how = f"was withdrawn: {event.cause}" if event.is_withdrawn else "left"
            message = f"{worker.worker_id} {how}" + (f" after step {worker.step}" if worker.step else "")
            self._job.emit(EventKind.WORKER_LEFT, message, worker_id=worker.worker_id, rank=rank)
            return
        cause = _cause_of(worker, event)
        self._job.emit(
            EventKind.WORKER_LOST,
            worker.worker_id + (f" (rank {rank})" if rank is not None else "") + f" was lost: {cause}",
            step=worker.step,
            worker_id=worker.worker_id,
            rank=rank,
            exit_code=event.exit_code,
            signal=event.signal,
            cause=cause,
            traceback=worker.traceback or None,
            last_output=list(event.last_output[-20:]),
            **({"hang": worker.hang.facts} if worker.hang is not None else {}),
        )

    def _tells_of_starts(self, worker: WorkerView, event: wire.Exited, now: float, *, is_pending: bool) -> bool:
        """Whether others that are started may end like this one."""
        if worker.generation:
            return was_killed_for_memory(event) and not worker.has_lasted(now)
        # A spare that is killed had been warm: that says nothing of how workers start.
        is_spare = worker.standby is not None and self._job.current is not None and not is_pending and not worker.error
        return not (is_spare and (is_from_outside(event) or worker.hang is not None))

    def _on_start_failure(self, worker: WorkerView, event: wire.Exited, now: float) -> None:
        """A worker died before it ever trained, or at once: others are started after a wait, or it is given up."""
        job = self._job
        how = _cause_of(worker, event)
        is_own = bool(worker.error or worker.doom) or not is_from_outside(event)
        death = Death(worker.number, is_own and not worker.is_killed_by_hand, how)
        is_training = job.current is not None
        decision: Retry | GiveUp | None
        if worker.generation:
            decision = job.starting.on_early_death(death, now, is_training=is_training)
        else:
            decision = job.starting.on_death(death, job.spawned, now, is_training=is_training)
        if not isinstance(decision, GiveUp):
            return
        job.reason = f"{decision.because}; no more are added until the wish changes"
        hangs = worker.hang is not None and worker.hang.stage  # else its host fell silent
        advice, reason = (HANG_ADVICE, Reason.HANG) if hangs else (decision.advice, Reason.START_FAILED)
        message = f"{decision.because[0].upper()}{decision.because[1:]}. {advice}"
        whose: Literal["user", "infrastructure"] = "user" if decision.is_own else "infrastructure"
        failure = Failure(
            whose, reason, message, exit_code=event.exit_code, signal=event.signal, last_output=event.last_output
        )
        self._founding.give_up_starting(job.located(failure, worker))


def _cause_of(worker: WorkerView, event: wire.Exited) -> str:
    if worker.error:
        return worker.error
    if event.cause.startswith(worker.doom):  # which its supervisor may know more about
        return event.cause or describe_exit(event)
    return worker.doom
