"""A round in spite of a job that nothing can be decided about: it is passed over and told so, and the others go on."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from service.scheduling import sentences
from service.scheduling.decide import decide
from service.scheduling.view import Decision, Keep, Placed, View, Wait, Waiting

Passed = list[tuple[Decision, Exception]]
"""What a job that is passed over is told, and the error behind it."""


def decide_around(view: View, now: datetime) -> tuple[list[Decision], Passed]:
    """As `decide`; where that fails, about the jobs among which it does not, and what the others are told.

    A job that is passed over and holds slots keeps them, where these can be counted.

    Raises:
        Exception: what `decide` raised, where no job by itself is the cause.
    """
    jobs: tuple[Placed | Waiting, ...] = (*view.placed, *view.waiting)
    try:
        return decide(view, now), []
    except Exception:
        faults = {job.job_id: fault for job in jobs if (fault := _fault_of(_alone(view, job), now)) is not None}
        if not faults:
            raise
    passed = [
        pass_over(one.job_id, isinstance(one, Placed), faults[one.job_id]) for one in jobs if one.job_id in faults
    ]
    held = tuple(replace(job, is_leaving=True) if job.job_id in faults else job for job in view.placed)
    rest = replace(
        view,
        placed=tuple(job for job in held if job.job_id not in faults or not _fault_of(_alone(view, job), now)),
        waiting=tuple(job for job in view.waiting if job.job_id not in faults),
    )
    decisions = [decision for decision in decide(rest, now) if decision.job_id not in faults]
    return [*decisions, *(decision for decision, _ in passed)], passed


def pass_over(job_id: str, is_placed: bool, fault: Exception) -> tuple[Decision, Exception]:
    """What a job is told that nothing can be decided about."""
    because = sentences.passed_over(fault)
    return Keep(job_id, because) if is_placed else Wait(job_id, None, because), fault


def _alone(view: View, job: Placed | Waiting) -> View:
    if isinstance(job, Placed):
        return replace(view, placed=(job,), waiting=())
    return replace(view, placed=(), waiting=(job,))


def _fault_of(view: View, now: datetime) -> Exception | None:
    try:
        decide(view, now)
    except Exception as error:
        return error
    return None
