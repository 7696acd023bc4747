"""Found a generation where no worker has state: at the start, and after all were lost."""

from __future__ import annotations

from collections.abc import Sequence

from rubato.engine.coordinator import orders
from rubato.engine.coordinator.orders import CheckpointFound
from rubato.engine.coordinator.roster import WorkerView, in_state, warm_first
from rubato.engine.coordinator.rows import RowBook
from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire
from rubato.wire.cluster import Failure
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import WorkerState

PLACEMENT_GRACE_S = 2.0
"""How long those that stand by wait for workers without a slot, before training starts or changes without them."""
LEAST_WARMING_GRACE_S = 10.0
"""How long those that stand by wait at least for others that have a slot and still warm up: as long as they took
themselves, if that is more. Whoever comes later joins."""


class Founding:
    """Spawn, wait until those that have a slot stand by, mint."""

    def __init__(self, job: JobState, rows: RowBook) -> None:
        self._job = job
        self._rows = rows
        self._found: CheckpointFound | None = None
        self._has_asked = False
        self._begins_at = 0.0
        """Nothing is founded before."""
        self._failed_start: Failure | None = None
        """Of the job, where those that stand by are too few to do without the ones that cannot be started."""

    def give_up_starting(self, failure: Failure) -> None:
        """No more workers are started: it is founded from those that are there, or the job fails."""
        self._failed_start = failure

    def on_checkpoint_found(self, found: CheckpointFound) -> None:
        """The host's answer."""
        self._found = found
        for name, cause in found.corrupt:
            message = f"checkpoint {name} failed its check and was passed over: {cause}"
            self._job.emit(EventKind.CHECKPOINT_CORRUPT, message, checkpoint_id=name, cause=cause)

    def advance(self, now: float) -> Failure | None:
        """One look; orders what is missing. The failure of the job where too few workers can be started."""
        job = self._job
        if now < self._begins_at or job.pending is not None:
            return None
        if not self._has_asked:
            self._has_asked = True
            job.put(orders.FindCheckpoint())
        usable = warm_first([worker for worker in job.roster if not worker.doom])  # spares outlive the others
        wanted = usable[: job.wish.workers]
        for worker in usable[job.wish.workers + job.standby_workers :]:
            job.kill(worker, "no longer wanted")
        job.spawn(job.wish.workers - len(wanted), now)
        ready, warming = in_state(WorkerState.STANDBY, wanted), in_state(WorkerState.WARMING, wanted)
        unplaced = len(wanted) - len(ready) - len(warming)
        job.reason = f"{unplaced} of {job.wish.workers} workers are starting or wait for a slot" if unplaced else ""
        least = min(job.terms.min_workers, job.wish.workers)
        if self._failed_start is not None and len(wanted) < least:
            return self._failed_start
        if self._found is None or not ready or len(ready) < least:
            return None
        if len(ready) < job.wish.workers and now < max(one.standby_at for one in ready) + _grace_s(ready, warming):
            return None
        found, self._found, self._has_asked = self._found, None, False
        job.step = found.step
        self._rows.rewind(found.step)
        self._rows.take(found.rows, now)
        self._rows.begin(found.step)
        job.ledger.rewind(found.step)
        origin = wire.Origin("checkpoint", found.folder) if found.folder else wire.Origin("fresh")
        job.mint(ready, origin, "restart" if job.highest else "start", follows=0)
        return None

    def restart(self, because: str, now: float) -> Failure | None:
        """Nobody has the state: back to the newest checkpoint after a wait; the failure where that was too often."""
        job = self._job
        self._rows.settle(now, force=True)  # a generation that trained for a moment only is told of, too
        job.current, job.pending, job.entered = None, None, set()
        self._found, self._has_asked = None, False
        job.restarts += 1
        job.forget_total()
        job.ledger.on_all_lost()
        job.starting.forget()
        job.changes.forget()
        self._failed_start = None
        if job.restarts > job.terms.max_restarts:
            return Failure(
                "infrastructure",
                Reason.MAX_RESTARTS_EXCEEDED,
                f"All workers were lost {job.restarts} times, more than restart.max_restarts allows "
                f"({job.terms.max_restarts}); the last time because {because}.",
                step=job.step,
            )
        wait = job.terms.backoff_s(job.restarts)
        self._begins_at = now + wait
        job.emit(
            EventKind.RESTARTING,
            f"all workers were lost ({because}); in {wait:.1f} s it restarts, from its newest checkpoint if it has one",
            restarts=job.restarts,
            seconds=wait,
            cause=because,
        )
        return None


def _grace_s(ready: Sequence[WorkerView], warming: Sequence[WorkerView]) -> float:
    """How long the last one that stands by waits for those that do not."""
    if not warming:
        return PLACEMENT_GRACE_S
    return max(LEAST_WARMING_GRACE_S, *(one.standby_at - one.spawned_at for one in ready))
