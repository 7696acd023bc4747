"""The coordinator: takes in messages, answers and ticks, and lets the procedures act on what they changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rubato.engine.coordinator import orders
from rubato.engine.coordinator.actions import Actions
from rubato.engine.coordinator.balancing import Balancing
from rubato.engine.coordinator.divergence import Alarm, Divergences
from rubato.engine.coordinator.ending import Ending
from rubato.engine.coordinator.exits import Exits
from rubato.engine.coordinator.founding import Founding
from rubato.engine.coordinator.likeness import decide_mismatch, describe_other_processor
from rubato.engine.coordinator.orders import Order, Terms, Wish
from rubato.engine.coordinator.repair import Repair
from rubato.engine.coordinator.resizing import Resizing
from rubato.engine.coordinator.roster import WorkerView
from rubato.engine.coordinator.rows import RowBook
from rubato.engine.coordinator.state import JobState
from rubato.engine.coordinator.verdicts import is_raised
from rubato.engine.coordinator.view import observe_job, observe_workers
from rubato.engine.coordinator.watch import Watch
from rubato.wire import worker as wire
from rubato.wire.cluster import Distrust, Failure, Observed, WorkerReport
from rubato.wire.codec import to_json
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import WorkerState

STALL_S = 5.0
"""A gap between ticks that says this process itself was stopped or starved."""


class Coordinator:
    """One attempt at a job. `now` is an argument everywhere, in seconds of any steady clock."""

    def __init__(
        self,
        terms: Terms,
        wish: Wish,
        *,
        row_step: int = 0,
        restarts: int = 0,
        scalings: int = 0,
        resume_step: int = 0,
        distrusted: Iterable[Distrust] = (),
    ) -> None:
        """An attempt that has not begun.

        Args:
            terms: what is fixed for it.
            wish: what the user wants now.
            row_step: rows up to this step are stored.
            restarts: of the attempts before.
            scalings: of the attempts before.
            resume_step: where the job stood: shown until it is known where this attempt begins.
            distrusted: by the attempts before: workers that are taken over may tell what they saved of it.
        """
        self.job = JobState(terms, wish, restarts, scalings)
        for which in distrusted:
            self.job.ledger.distrust(which)
        if wish.checkpoint_request:  # the last one may have been asked for while no controller listened
            self.job.ledger.want(0)
        self._resume_step = resume_step
        self._rows = RowBook(self.job, row_step)
        self._founding = Founding(self.job, self._rows)
        self._resizing = Resizing(self.job)
        self._actions = Actions(self.job)
        self._balancing = Balancing(self.job)
        self._repair = Repair(self.job)
        self._ending = Ending(self.job, self._rows)
        self._exits = Exits(self.job, self._founding, self._repair, self._ending, self._actions)
        self._watch = Watch(self.job, self._repair, self._ending)
        self._divergences = Divergences()
        self._ticked_at: float | None = None

    # --- what goes in -------------------------------------------------------------------------------------------------

    def handle(self, event: Any, now: float) -> list[Order]:
        """Take in a message of a worker or an answer of the host.

        Args:    event: a `rubato.wire.worker.Message`, or one of `orders` that go in.
        Returns: the orders that follow.
        """
        handler = getattr(self, "_on_" + re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower())
        if hasattr(event, "incarnation"):
            worker = self.job.roster.get(event.incarnation)
            if worker is None:
                return []  # of a worker that is gone: its late messages change nothing
            worker.heard_at = now
            handler(worker, event, now)
        else:
            handler(event, now)
        self._advance(now)
        return self.job.flush()

    def tick(self, now: float) -> list[Order]:
        """Time passes: deadlines, checkpoints that are due."""
        job = self.job
        if self._ticked_at is not None and now - self._ticked_at > STALL_S:
            for one in job.roster:  # nobody listened meanwhile: their silence is this process's own
                one.heard_at = min(now, one.heard_at + now - self._ticked_at)
        self._ticked_at = now
        self._watch.advance(now)
        self._advance(now)
        return job.flush()

    def adopt(self, snapshots: list[wire.Snapshot], placed: list[wire.Spawned], now: float) -> list[Order]:
        """Take over the living workers of a predecessor. Members that are whole train on; else they are repaired."""
        job = self.job
        where = {one.incarnation: one for one in placed}
        for snapshot in snapshots:
            job.roster.add(_adopted(snapshot, where.get(snapshot.incarnation), now))
            job.highest = max(job.highest, snapshot.pending, snapshot.record.number if snapshot.record else 0)
            job.step = max(job.step, snapshot.step)
            if snapshot.standby is not None:
                job.learn_total(snapshot.standby.total_steps)
        living = {snapshot.incarnation for snapshot in snapshots}
        records = [snapshot.record for snapshot in snapshots if snapshot.record is not None]
        if records:
            job.current = max(records, key=lambda record: record.number)
            job.first_step = job.step
            job.entered = {one.incarnation for one in snapshots if one.record == job.current and not one.broken}
        is_whole = job.current is not None and len(job.entered) == job.current.world
        if job.highest > (job.number if is_whole else 0):
            # Somebody may be entering a generation that only the predecessor knew: all who can must say where they are.
            can_answer = [one.incarnation for one in snapshots if one.standby is not None or one.record is not None]
            self._repair.begin("the membership changed while no controller was there", also=can_answer)
        gone = [one.worker_id for one in job.current.members if one.incarnation not in living] if job.current else []
        if gone:
            self._exits.roll_back(gone[0])
        self._rows.rewind(job.step)  # rows of later steps are of a past that these workers left behind
        for snapshot in sorted(snapshots, key=lambda one: one.rows[0].step if one.rows else 0):
            self._rows.take(snapshot.rows, now)
        job.ledger.start(now)
        job.ledger.on_committed(max((snapshot.saved_step for snapshot in snapshots), default=-1))
        if job.wish.checkpoint_request:  # what is saved already may be older than it
            job.ledger.want(job.step)
        job.emit(EventKind.ATTACHED, f"a new controller took over {len(snapshots)} workers", workers=len(snapshots))
        self._advance(now)
        return job.flush()

    def observed(self) -> Observed:
        """The whole view, for the service."""
        is_repairing, is_leaving = self._repair.is_active, self._ending.is_leaving
        return observe_job(self.job, self._resume_step, is_repairing=is_repairing, is_leaving=is_leaving)

    def workers(self) -> tuple[WorkerReport, ...]:
        """Every living worker, by rank, then by age."""
        return observe_workers(self.job, self._ticked_at)

    # --- messages of workers ------------------------------------------------------------------------------------------

    def _on_spawned(self, worker: WorkerView, event: wire.Spawned, now: float) -> None:
        worker.take_place(event)
        worker.state, worker.spawned_at = WorkerState.WARMING, now
        self.job.emit(
            EventKind.WORKER_STARTED,
            f"{worker.worker_id} started on {event.node} (pid {event.pid})",
            worker_id=worker.worker_id,
            node=event.node,
            pid=event.pid,
        )

    def _on_hello(self, worker: WorkerView, event: wire.Hello, now: float) -> None:
        worker.hello = event

    def _on_standby(self, worker: WorkerView, event: wire.Standby, now: float) -> None:
        roster, terms = self.job.roster, self.job.terms
        mismatch = decide_mismatch(worker, event, roster, terms)
        if mismatch:
            self.job.kill(worker, mismatch)
            return
        seconds = now - worker.spawned_at
        worker.standby, worker.standby_at, worker.state = event, now, WorkerState.STANDBY
        self.job.learn_total(event.total_steps)
        message = f"{worker.worker_id} is warm after {seconds:.1f} s"
        self.job.emit(EventKind.WORKER_READY, message, worker_id=worker.worker_id, seconds=round(seconds, 3))
        if terms.reproducible and (unlike := describe_other_processor(worker, event, roster)):
            self.job.emit(EventKind.WORKER_UNLIKE, unlike, worker_id=worker.worker_id)

    def _on_formed(self, worker: WorkerView, event: wire.Formed, now: float) -> None:
        """The members themselves switch when every header says ready."""
        worker.formed = max(worker.formed, event.generation)

    def _on_form_failed(self, worker: WorkerView, event: wire.FormFailed, now: float) -> None:
        job = self.job
        if job.pending is None or event.generation != job.pending.number:
            return
        if job.pending.follows and self._ending.is_leaving:
            job.give_up_pending()
        elif job.pending.follows:
            job.fail_pending(f"{worker.worker_id} said: {event.cause}", now)  # members train on
        else:
            cause = f"generation {event.generation} could not be formed: {event.cause}"
            self._repair.begin(cause, is_raised=is_raised(event.cause))

    def _on_entered(self, worker: WorkerView, event: wire.Entered, now: float) -> None:
        job = self.job
        if worker.generation == 0:
            job.starting.on_entered()  # that the others are in says nothing of new ones
            worker.entered_at = now
        worker.generation, worker.step = event.generation, event.step
        if self._repair.has_revoked(event.generation):
            return  # the revoke had not reached it: `Broken` follows
        worker.state, worker.broken, worker.ended = WorkerState.ACTIVE, None, None
        job.pending = job.given_up.get(event.generation, job.pending)
        if job.pending is not None and event.generation == job.pending.number:
            self._switch(job.pending, event, now)
        if event.generation == job.number:
            job.entered.add(worker.incarnation)

    def _switch(self, record: wire.GenerationRecord, event: wire.Entered, now: float) -> None:
        """The first member of the pending generation trains in it: it is the current one, and any repair is done."""
        job = self.job
        self._rows.settle(now, force=True)
        former = job.roster.of(job.current)
        from_workers = job.current.world if job.current else 0
        if record.cause == "recovery" or (record.cause == "replace" and record.world < from_workers):
            self._resizing.world_before_loss = max(self._resizing.world_before_loss, from_workers)
        elif record.cause != "rebalance":
            self._resizing.world_before_loss = record.world if record.cause != "replace" else from_workers
        if record.cause in ("scale_up", "scale_down"):
            job.scalings += 1
        self._rows.watch(record, from_workers, event.redone_microbatches)
        job.current, job.pending, job.entered, job.first_step = record, None, set(), event.step
        job.given_up.clear()
        if record.cause == "rebalance":
            job.changes.forget_moves()
        else:
            job.changes.forget()
        for one in former:
            if one.state is WorkerState.ACTIVE and record.rank_of(one.incarnation) is None:
                one.state = WorkerState.DRAINING  # it writes what it still owes, says `Left` and ends by itself
        self._repair.finish()
        self._balancing.on_switched(record, event.step)

    def _on_committed(self, worker: WorkerView, event: wire.Committed, now: float) -> None:
        worker.step = max(worker.step, event.step)
        if worker.has_lasted(now):
            self.job.starting.on_lasting(worker.number)
        self.job.step = max(self.job.step, event.step)
        self.job.ledger.start(now)
        self._rows.take(event.rows, now)
        self._commit_whole()
        is_compared = event.step > self.job.first_step + 1  # a joiner is in the second step
        if is_compared and self.job.has_joined(worker.incarnation):
            self._divergences.on_joined()
        if self.job.current is not None and event.generation == self.job.number:
            self.job.roster.see_pace(self.job.current, event.pace)
            self._balancing.see(event.generation, event.pace, now)

    def _on_stopped(self, worker: WorkerView, event: wire.Stopped, now: float) -> None:
        self.job.learn_total(event.step)
        worker.step = max(worker.step, event.step)

    def _on_beat(self, worker: WorkerView, event: wire.Beat, now: float) -> None:
        worker.beat = event
        worker.step = max(worker.step, event.step)

    def _on_broken(self, worker: WorkerView, event: wire.Broken, now: float) -> None:
        if worker.error:
            self.job.kill(worker, worker.error)  # others have told it of this one, which was cut off before it knew
            return
        is_news = worker.broken is None or event.through > worker.broken.through
        worker.broken, worker.ended = event, None
        if worker.generation and not self.job.is_member(worker) and not self._repair.is_awaited(worker.incarnation):
            self.job.kill(worker, "no longer wanted")  # a leaver that missed the switch: the others are gone on
            return
        # Others may have switched, as all had agreed to, when one lost touch in the last exchange before.
        is_of_now = is_news and event.through >= min(self.job.number, worker.generation)
        if is_news and self._repair.is_awaited(worker.incarnation):
            self._repair.hear(event.cause)
        if not self._repair.is_active and self.job.is_member(worker) and is_of_now:
            cause = event.cause or f"{worker.worker_id} lost touch with the others"
            self._repair.begin(cause, is_raised=is_raised(event.cause))

    def _on_stripe_written(self, worker: WorkerView, event: wire.StripeWritten, now: float) -> None:
        whole = self.job.ledger.on_written(event, now)
        if whole is not None:
            self.job.ledger.whole = whole
            self._commit_whole()
        else:
            self.job.reassign_stripes()  # a worker that owes another part may be gone already

    def _commit_whole(self) -> None:
        """Once the rows up to its step are known, which nobody computes again who begins from it.

        The lowest rank tells them before it writes, but may be lost, and another worker writes its part. The last row
        of all is told when the program has come to its end: the checkpoint does not wait for that, and holds it itself.
        """
        job, whole = self.job, self.job.ledger.whole
        if whole is None:
            return
        is_last = whole.step == job.total_steps
        if self._rows.told_step < (whole.step - 1 if is_last else whole.step):
            return
        job.ledger.whole = None
        rows = self._rows.unstored(whole.step)
        job.put(orders.CommitManifest(whole.folder, whole.step, whole.generation, whole.files, whole.terms, rows))

    def _on_stripe_failed(self, worker: WorkerView, event: wire.StripeFailed, now: float) -> None:
        is_wanted = self.job.ledger.is_wanted
        if self.job.ledger.on_failed(event, self.job.number):
            self._save_failed(event.step, event.cause, is_wanted=is_wanted)

    def _save_failed(self, step: int, cause: str, *, is_wanted: bool) -> None:
        self._ending.on_save_failed(step)
        is_awaited = is_wanted or self._ending.is_leaving or step == self.job.total_steps
        times = self.job.ledger.count_failure(cause, is_awaited=is_awaited)
        if times is None:
            return
        others = f" (as {times - 1} before it, of which none was told)" if times > 1 else ""
        message = f"the checkpoint of step {step} was skipped: {cause}{others}"
        self.job.emit(EventKind.CHECKPOINT_FAILED, message, step=step, cause=cause, times=times)

    def _on_left(self, worker: WorkerView, event: wire.Left, now: float) -> None:
        self._exits.on_left(worker)

    def _on_ended(self, worker: WorkerView, event: wire.Ended, now: float) -> None:
        worker.ended = event
        worker.step = max(worker.step, event.step)

    def _on_user_failed(self, worker: WorkerView, event: wire.UserFailed, now: float) -> None:
        if worker.has_left or worker.error:
            return  # its part is over: what its own clean-up raises is no concern of those that train on
        if not worker.doom:  # else that is why it ends, and this is what comes of it
            worker.error, worker.traceback = event.error, event.traceback
        is_joiner = self.job.current is not None and self.job.rank_of(worker) is None
        failure = self.job.verdicts.on_user_error(
            event,
            self.job.number,
            no_retry=self.job.terms.no_retry_exit_codes,
            has_trained=self.job.step > 0 or is_joiner,
        )
        if failure is not None:
            self._ending.fail(self.job.located(failure, worker))

    def _on_state_diverged(self, worker: WorkerView, event: wire.StateDiverged, now: float) -> None:
        job = self.job
        odd = event.of or (worker.incarnation,)
        for one in filter(None, map(job.roster.get, odd)):
            one.error = f"the {event.what} differed, and it was not among a majority"
            if one is not worker and one.broken is not None and one.broken.through >= event.generation:
                one.broken = None  # it waits for the next generation with the others, and is none of them
                job.kill(one, one.error)
        is_current = job.current is not None and event.generation == job.number
        is_joiner = is_current and job.has_joined(odd[0]) and event.step <= job.first_step + 1
        joined_at = job.first_step if is_joiner else None
        is_fresh = job.current is not None and job.current.origin.kind == "fresh" and event.step <= 1
        alarm = Alarm(event.generation, event.step, event.agreed, event.what, joined_at, is_at_start=is_fresh)
        verdict = self._divergences.on_alarm(alarm)
        if verdict is None:
            return
        message = f"the {event.what} differ between the workers at step {event.step}"
        facts: dict[str, Any] = {"digests": list(event.digests), "agreed_step": event.agreed}
        if verdict.distrust_after is not None:
            message += f"; checkpoints after step {verdict.distrust_after} do not count any more"
            which = Distrust(verdict.distrust_after, job.terms.attempt, job.highest)
            job.ledger.distrust(which)
            job.put(orders.DropCheckpoints(which, message))
            facts["distrusted"] = to_json(which)
        job.emit(EventKind.DIVERGED, message, step=event.step, **facts)
        if verdict.failure:
            self._ending.fail(Failure("user", Reason.DIVERGED, verdict.failure, step=event.step))

    def _on_notice(self, worker: WorkerView, event: wire.Notice, now: float) -> None:
        self.job.put(orders.Emit(event.kind, event.message, event.step, self.job.number or None, dict(event.data)))

    def _on_snapshot(self, worker: WorkerView, event: wire.Snapshot, now: float) -> None:
        """`adopt` takes these; of one that comes later all but the rows was known by what its supervisor knew."""
        self._rows.take(event.rows, now)

    def _on_stacks(self, worker: WorkerView, event: wire.Stacks, now: float) -> None:
        self._actions.on_stacks(worker, event)

    def _on_exited(self, worker: WorkerView, event: wire.Exited, now: float) -> None:
        self._exits.on_exited(worker, event, now)

    # --- answers of the host ------------------------------------------------------------------------------------------

    def _on_wish(self, event: Wish, now: float) -> None:
        job = self.job
        if event.workers != job.wish.workers:
            job.starting.forget()
            job.changes.forget()
            job.reason = ""
        is_asked = event.checkpoint_request > job.wish.checkpoint_request
        job.wish = event
        if is_asked:
            job.ledger.want(job.step)

    def _on_checkpoint_found(self, event: orders.CheckpointFound, now: float) -> None:
        self._founding.on_checkpoint_found(event)
        if event.unusable:
            self._ending.fail(Failure("user", Reason.CHECKPOINT_INVALID, event.unusable))

    def _on_manifest_committed(self, event: orders.ManifestCommitted, now: float) -> None:
        job = self.job
        job.ledger.on_manifest(event.folder)
        if not event.error:
            for worker in job.roster:
                job.send(worker.incarnation, wire.ForgetStripes(job.terms.attempt, event.folder))
        if job.ledger.is_distrusted(event):
            return  # it is deleted: whoever waits for a checkpoint waits for another one
        if event.error:
            is_wanted = job.ledger.is_wanted
            job.ledger.on_answered(event.step)
            self._save_failed(event.step, event.error, is_wanted=is_wanted)
        else:
            job.ledger.on_committed(event.step)

    def _on_storage_taken(self, event: orders.StorageTaken, now: float) -> None:
        self._ending.fail(Failure("user", Reason.CHECKPOINT_INVALID, event.message))

    def _on_rows_stored(self, event: orders.RowsStored, now: float) -> None:
        self._rows.on_stored(event.count)

    # --- what follows -------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> None:
        job = self.job
        if not self._ending.is_over:
            self._actions.advance(now)
        is_last_look = self._ending.is_decided or (self._ending.is_leaving and not len(job.roster))
        self._rows.settle(now, force=is_last_look)  # before `End`: nothing is told after it
        self._ending.advance(now)
        if self._ending.is_decided or self._ending.is_over:
            return
        if self._repair.is_active:
            failure = job.verdicts.on_no_progress(self._repair.because, job.terms, is_raised=self._repair.is_raised)
            if failure is not None and not self._ending.is_leaving:
                self._fail(failure, now)
                return
        if self._repair.is_active and not self._repair.advance(now, may_wait=not self._ending.is_leaving):
            # Where no generation had begun, nothing is lost: the next one is founded from those that stand by.
            failure = self._founding.restart(self._repair.because, now) if job.current is not None else None
            if failure is not None:
                self._fail(failure, now)
        if self._ending.is_leaving or self._repair.is_active:
            return
        if job.current is None:
            failure = self._founding.advance(now)
            if failure is not None:
                self._fail(failure, now)
                return
        else:
            is_whole = len(job.entered) == job.current.world
            if is_whole and job.pending is None:
                self._resizing.advance(now)
            if is_whole and job.pending is None and job.changes.may_try(now, joins=False):
                self._balancing.advance(now)
            request = job.ledger.next_request(now, job.number, is_settled=is_whole)
            if request is not None:
                self._request_checkpoint(request)
        self._rows.acknowledge(now)

    def _fail(self, failure: Failure, now: float) -> None:
        self._ending.fail(failure)
        self._ending.advance(now)

    def _request_checkpoint(self, request: int) -> None:
        for worker in self.job.roster.of(self.job.current):
            self.job.send(
                worker.incarnation, wire.Checkpoint(self.job.terms.attempt, request, self.job.ledger.lost_step)
            )


def _adopted(snapshot: wire.Snapshot, placed: wire.Spawned | None, now: float) -> WorkerView:
    """The view of a worker that a predecessor started."""
    worker = WorkerView("w" + snapshot.incarnation, snapshot.incarnation, 0, now, heard_at=now)
    if placed is not None:
        worker.take_place(placed)
    worker.hello, worker.standby, worker.ended = snapshot.hello, snapshot.standby, snapshot.ended
    worker.step, worker.standby_at, worker.broken = snapshot.step, now, snapshot.broken
    worker.generation = snapshot.record.number if snapshot.record else 0
    if snapshot.record is not None:
        worker.state = WorkerState.ACTIVE
    else:
        worker.state = WorkerState.STANDBY if snapshot.standby is not None else WorkerState.WARMING
    return worker
