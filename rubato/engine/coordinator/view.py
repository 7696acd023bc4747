"""How an attempt looks from outside."""

from __future__ import annotations

from rubato.engine.coordinator.state import JobState
from rubato.wire.cluster import Observed, ObservedState, WorkerReport
from rubato.wire.status import Phase, WorkerState


def observe_job(job: JobState, resume_step: int, *, is_repairing: bool, is_leaving: bool) -> Observed:
    """The job, as the service shows it.

    Args:
        resume_step: where it stood before this attempt: shown until it is known where this one begins.
        is_repairing: the members are being brought together after a loss.
        is_leaving: the end is wished for or decided.
    """
    training = [one for one in job.roster.of(job.current) if one.state is WorkerState.ACTIVE]
    missing = max(0, job.wish.workers - (job.current.world if job.current else 0))
    state: ObservedState = "running"
    if is_leaving:
        state = "stopping"
    elif job.current is None or (job.number == 1 and job.step == 0):
        state = "recovering" if job.restarts and job.current is None else "starting"
    return Observed(
        state=state,
        phase=_phase(job, is_repairing=is_repairing, is_leaving=is_leaving).value,
        generation=job.number,
        workers=len(training),
        joining=min(len(job.roster.joinable(job.current)), missing),  # the others are spares
        step=job.step if job.highest else max(job.step, resume_step),
        total_steps=job.total_steps,
        restarts=job.restarts,
        scalings=job.scalings,
        reason=job.reason,
    )


def observe_workers(job: JobState, now: float | None) -> tuple[WorkerReport, ...]:
    """Every living worker, by rank, then by age."""
    members = job.roster.of(job.current)
    others = [worker for worker in job.roster if worker not in members]
    return tuple(one.report(job.rank_of(one), now) for one in [*members, *others])


def _phase(job: JobState, *, is_repairing: bool, is_leaving: bool) -> Phase:
    if is_leaving:
        return Phase.DRAINING
    if is_repairing:
        return Phase.REPAIRING
    if job.current is None:
        return Phase.FORMING
    return Phase.TRAINING if job.is_settled and job.current.world == job.wish.workers else Phase.SCALING
