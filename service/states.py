"""The status machine: one pure function that says what a job's status ought to be, one function that may change it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import RubatoError
from rubato.wire.cluster import ObservedState, OutcomeState, RunWish
from rubato.wire.events import EventKind
from rubato.wire.status import ALLOWED, FINAL, Status
from service import counters
from service.events import append_event
from service.job_secrets import forget
from service.models import Job
from service.notify import ALL_JOBS, RUN_LIST, SCHEDULER, after_commit, desired_topic, job_topic, notify
from service.scheduling.view import ranked_at
from service.worker_actions import close_all

S = Status
WITH_CONTROLLER: frozenset[Status] = frozenset({S.STARTING, S.RUNNING, S.RECOVERING, S.PAUSING, S.STOPPING})
"""Statuses in which the cluster's agent keeps a controller for the job, and the job holds slots."""

_OF_OBSERVED: dict[ObservedState, Status] = {
    "starting": S.STARTING,
    "running": S.RUNNING,
    "recovering": S.RECOVERING,
}
_WHY_OBSERVED: dict[ObservedState, str] = {
    "starting": "its workers are being started",
    "running": "its workers train",
    "recovering": "its workers start again from what was saved",
}
_WHY_ON_THE_WAY = {_OF_OBSERVED[state]: because for state, because in _WHY_OBSERVED.items()}
_OF_OUTCOME: dict[OutcomeState, Status] = {
    "succeeded": S.SUCCEEDED,
    "failed": S.FAILED,
    "paused": S.PAUSED,
    "cancelled": S.CANCELLED,
    "requeue": S.QUEUED,
}


class IllegalTransition(RubatoError):
    """The status map has no such arrow, or the status was another when it was to be changed."""


@dataclass(frozen=True)
class StatusView:
    """All that a status follows from."""

    status: Status
    desired_run: RunWish
    is_attempt_live: bool
    """An attempt was granted and has not told its outcome."""
    is_lease_lost: bool
    observed: ObservedState | None
    outcome: OutcomeState | None = None
    is_preempted: bool = False
    """The scheduler wants it paused for a more important job; what its user wants counts again afterwards."""


@dataclass(frozen=True)
class StatusDecision:
    """The status that ought to be, and why."""

    status: Status
    because: str


def decide_status(view: StatusView) -> StatusDecision:
    """What the status ought to be.

    An acknowledged cancel wins over every other outcome; a lost lease says only that nothing is known.
    """
    if view.status in FINAL:
        return StatusDecision(view.status, "final")
    if view.outcome is not None:
        return _decide_after_outcome(view, view.outcome)
    if view.desired_run == "stop":
        if view.is_attempt_live:
            return StatusDecision(S.STOPPING, "cancel was requested")
        return StatusDecision(S.CANCELLED, "cancel was requested, and no controller runs")
    if view.desired_run == "pause":
        if view.is_attempt_live:
            return StatusDecision(S.PAUSING, "a pause was requested")
        return StatusDecision(S.PAUSED, "a pause was requested, and no controller runs")
    if view.is_preempted and view.status in WITH_CONTROLLER:
        if view.is_attempt_live:
            return StatusDecision(S.PAUSING, "a more important job needs its slots")
        return StatusDecision(S.QUEUED, "a more important job needs its slots, and no controller runs")
    if view.status is S.PAUSED:
        return StatusDecision(S.QUEUED, "resume was requested")
    if view.status in (S.QUEUED, S.PAUSING, S.STOPPING) or not view.is_attempt_live:
        return StatusDecision(view.status, "nothing changed")
    if view.is_lease_lost:
        # A job that is already recovering may well be on its way back to starting: silence moves it nowhere else.
        return StatusDecision(S.RECOVERING, "the controller has been silent for longer than its lease")
    if view.observed in _OF_OBSERVED:
        return StatusDecision(_OF_OBSERVED[view.observed], _WHY_OBSERVED[view.observed])
    return StatusDecision(view.status, "nothing changed")


def _decide_after_outcome(view: StatusView, outcome: OutcomeState) -> StatusDecision:
    if view.desired_run == "stop":
        return StatusDecision(S.CANCELLED, "cancel was requested, and the controller has ended")
    if outcome == "requeue" and view.desired_run == "pause":
        return StatusDecision(S.PAUSED, "a pause was requested, and the controller has ended")
    if outcome == "paused" and view.is_preempted and view.desired_run == "run":
        return StatusDecision(S.QUEUED, "it was paused for a more important job")
    if outcome == "paused" and view.desired_run == "run":
        return StatusDecision(S.QUEUED, "the controller paused although the job is to run")
    if outcome == "cancelled":
        return StatusDecision(S.FAILED, "the controller ended as if cancelled, but nobody had cancelled the job")
    return StatusDecision(_OF_OUTCOME[outcome], "the controller reported its outcome")


def route(start: Status, target: Status) -> tuple[Status, ...]:
    """The arrows to walk from one status to another: a report may skip what lay between two reports.

    Raises:
        IllegalTransition: the map has no way; names both.
    """
    if start is target:
        return ()
    between = {S.STARTING, S.RUNNING, S.RECOVERING}
    if target is S.PAUSED:
        between |= {S.PAUSING}
    if start is S.PAUSING:
        between |= {S.PAUSED}
    if target is S.CANCELLED:
        between = {S.STOPPING}
    paths: deque[tuple[Status, ...]] = deque([()])
    seen = {start}
    while paths:
        path = paths.popleft()
        here = path[-1] if path else start
        for following in sorted(ALLOWED[here]):
            if following is target:
                return (*path, following)
            if following in between and following not in seen:
                seen.add(following)
                paths.append((*path, following))
    raise IllegalTransition(f"no way from {start} to {target}: {start} may become {_names(ALLOWED[start])}")


async def change_status(
    session: AsyncSession, job: Job, to: Status, *, because: str, now: datetime, reason: str | None = None
) -> None:
    """Walk one arrow: compare-and-set of the status, and its event, in the caller's transaction. Same status: no-op.

    Raises:
        IllegalTransition: the map has no such arrow, or another transaction changed the status first.
    """
    start = Status(job.status)
    if to is start:
        return
    if to not in ALLOWED[start]:
        raise IllegalTransition(f"{start} may become {_names(ALLOWED[start])}, not {to}")
    waited_s = (now - job.queued_at).total_seconds() if (start, to) == (S.QUEUED, S.STARTING) else None
    changes = _changes_with(job, to, now)
    # A running job has nothing to explain; what its controller says besides comes with the report.
    changes["message"] = "" if to is S.RUNNING else because
    statement = update(Job).where(Job.id == job.id, Job.status == start).values(status=to, reason=reason, **changes)
    changed = await session.execute(statement.returning(Job.id).execution_options(synchronize_session=False))
    if changed.first() is None:
        raise IllegalTransition(f"{job.id} was no longer {start} when it was to become {to}")
    await session.refresh(job, ["status", "reason", *changes])
    if to in FINAL:
        await forget(session, job)
    if to not in WITH_CONTROLLER:
        await close_all(session, job, f"the job has become {to}", now)
    await append_event(
        session,
        job,
        EventKind.STATUS,
        f"{start} became {to}: {because}.",
        now=now,
        data={"from": start, "to": to, "reason": reason},
    )
    after_commit(session, lambda: counters.count_transition(to, waited_s))
    notify(session, job_topic(job.id), desired_topic(job.id), ALL_JOBS, SCHEDULER, RUN_LIST)


async def settle_status(
    session: AsyncSession,
    job: Job,
    *,
    now: datetime,
    outcome: OutcomeState | None = None,
    reason: str | None = None,
    because: str | None = None,
) -> None:
    """Bring the status to what the row says it ought to be, walking arrow by arrow."""
    view = StatusView(
        status=Status(job.status),
        desired_run=_run_wish(job.desired_run),
        is_attempt_live=job.is_attempt_live,
        is_lease_lost=job.lease_expires_at is not None and job.lease_expires_at < now,
        observed=_observed_state(job.observed_state),
        outcome=outcome,
        is_preempted=job.preempted_at is not None,
    )
    decision = decide_status(view)
    for to in route(view.status, decision.status):
        # Of an arrow on the way: what that one says, not what comes of it in the end.
        own = None if to is decision.status else _WHY_ON_THE_WAY.get(to)
        await change_status(session, job, to, because=own or because or decision.because, now=now, reason=reason)


def _changes_with(job: Job, to: Status, now: datetime) -> dict[str, object]:
    """Columns that follow from the status alone."""
    changes: dict[str, object] = {"updated_at": now, "revision": job.revision + 1}
    if to is S.STARTING and job.started_at is None:
        changes["started_at"] = now
    if to in FINAL:
        changes["finished_at"] = now
    if to is S.QUEUED:
        changes |= {"queued_at": now, "is_backfilled": False}
        if not _keeps_place(job):
            changes["ranked_at"] = ranked_at(job.priority, now)
    if to is S.PAUSED:
        # By its user: then it gives its place up, as every job that is paused.
        changes["is_backfilled"] = _keeps_place(job) and job.desired_run == "run"
    if to is not S.QUEUED:
        changes["queue_position"] = None
    if to in WITH_CONTROLLER and job.placed_at is None:
        changes["placed_at"] = now
    if to not in WITH_CONTROLLER:
        changes |= {"granted_workers": 0, "workers": 0, "joining": 0, "phase": None, "lease_expires_at": None}
        changes |= {"granted_standby": 0, "granted_at": None, "placed_at": None, "preempted_at": None, "scheduling": ""}
        changes |= {"is_attempt_live": False, "observed_state": None, "ran_seconds": ran_seconds(job, now)}
    changes["deadline_at"] = deadline_of(job, to, now)
    return changes


def _keeps_place(job: Job) -> bool:
    """It had overtaken the job for which it is paused, so it cannot take turns with it: its age still counts."""
    return job.is_backfilled and (job.preempted_at is not None or job.status == S.PAUSED)


def ran_seconds(job: Job, now: datetime) -> float:
    """How long the job has held slots: what `limits.max_duration` counts."""
    return job.ran_seconds + (0.0 if job.placed_at is None else max(0.0, (now - job.placed_at).total_seconds()))


def deadline_of(job: Job, to: Status, now: datetime) -> datetime | None:
    """When a status ends by the clock: waiting for slots, and holding them, each have their limit.

    Of the status that the job comes to now, or of the one it is in: then after a change of its limits.
    """
    limits = job.spec.get("limits", {})
    if to is S.QUEUED and limits.get("queue_timeout") is not None:
        since = job.queued_at if job.status == S.QUEUED else now
        return since + timedelta(seconds=limits["queue_timeout"])
    if to in WITH_CONTROLLER and limits.get("max_duration") is not None:
        return now + timedelta(seconds=limits["max_duration"] - ran_seconds(job, now))
    return None


def _run_wish(text: str) -> RunWish:
    wishes: tuple[RunWish, ...] = ("run", "pause", "stop")
    return next(wish for wish in wishes if wish == text)


def _observed_state(text: str | None) -> ObservedState | None:
    states: tuple[ObservedState, ...] = ("starting", "running", "recovering", "stopping")
    return next((state for state in states if state == text), None)


def _names(statuses: frozenset[Status]) -> str:
    return ", ".join(sorted(statuses)) or "nothing (it is final)"
