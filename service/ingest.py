"""Fenced ingest: everything a report carries is stored in one transaction with the cursor that acknowledges it.

Its log lines lie in files, which are written before: see `service.log_writes`.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding
from rubato.wire.cluster import EventReport, MetricRow, Outcome, Report, ReportReply
from rubato.wire.codec import to_json
from rubato.wire.events import EventKind
from rubato.wire.reasons import Reason
from rubato.wire.status import FINAL, Status
from service import counters
from service.attempts import fenced
from service.auth import Principal
from service.clock import parse_or, to_rfc3339
from service.context import Context
from service.database import insert_for
from service.errors import ErrorKind, ServiceError
from service.events import append_event, append_reported
from service.ids import new_id
from service.jobs import find
from service.log_writes import Written, beyond, limit_of_logs, written
from service.logs import LogPosition
from service.metrics import finite, store_metrics
from service.models import Attempt, Checkpoint, Job
from service.notify import ALL_JOBS, SCHEDULER, after_commit, job_topic, notify
from service.scheduling.measure import fold_pauses, fold_rates
from service.scheduling.sentences import UNSEEN
from service.states import settle_status
from service.threads import REDACTIONS, run_in
from service.worker_actions import take_answers

_LARGEST = 2**63 - 1
_CHECKPOINT_ID = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


async def ingest(context: Context, job_id: str, report: Report, principal: Principal) -> ReportReply:
    """Store a batch, once.

    Raises:
        ServiceError: forbidden, fenced, invalid_request (a batch out of order, numbers no database holds), not_ready
            (the disk of the logs).
    """
    if principal.job_id != job_id:
        raise ServiceError(ErrorKind.FORBIDDEN, "The token is for another job.")
    _check_numbers(report)
    # Before anything of it is looked at: what is not in the report any more can be stored, shown and sent.
    report = await _redacted(context, report, principal)

    async def look(session: AsyncSession) -> Job | None:
        job, _, is_next = await _find_batch(session, job_id, report, principal)
        return job if is_next else None

    async with (
        written(context, job_id, principal.attempt, report.logs, look) as lines,
        context.database.write() as session,
    ):
        # Only here: for the writer's turn, and for a disk, it may have waited for long.
        now = context.clock()
        job, attempt, is_next = await _find_batch(session, job_id, report, principal)
        if is_next:
            await _store(context, session, job, attempt, report, lines, now)
        elif job.is_attempt_live and job.attempt == attempt.number:
            # Stored before; its reply was lost.
            job.lease_expires_at = now + context.settings.lease
        return ReportReply(ack=report.batch, time=to_rfc3339(now))


async def _find_batch(
    session: AsyncSession, job_id: str, report: Report, principal: Principal
) -> tuple[Job, Attempt, bool]:
    """The job and its attempt, and whether the batch is the next one; False: it was stored before.

    Raises:
        ServiceError: fenced, invalid_request (a batch out of order).
    """
    job = await find(session, job_id, for_update=True)
    attempt = await session.get(Attempt, (job.id, principal.attempt))
    assert attempt is not None, "the attempt was found by its token"
    if report.attempt != principal.attempt or attempt.outcome == "superseded":
        raise fenced(job, report.attempt)
    if report.batch <= attempt.last_batch:
        # Acknowledged after the outcome, too: the controller waits for this very reply.
        return job, attempt, False
    if attempt.number != job.attempt or not job.is_attempt_live:
        raise fenced(job, report.attempt)
    if report.batch != attempt.last_batch + 1:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST,
            f"batch {report.batch} came before {attempt.last_batch + 1}; send unacknowledged batches in order.",
            extra={"expected_batch": attempt.last_batch + 1},
        )
    return job, attempt, True


async def _redacted(context: Context, report: Report, principal: Principal) -> Report:
    """The report without the job's secrets: before the writer's turn, and in a thread, for it may have many lines."""
    assert principal.job_id is not None
    redactor = await context.redactors.find(context.database, principal.job_id, principal.attempt)
    return report if redactor is None else await run_in(REDACTIONS, redactor.report, report)


async def _store(
    context: Context,
    session: AsyncSession,
    job: Job,
    attempt: Attempt,
    report: Report,
    lines: Written | None,
    now: datetime,
) -> None:
    fresh = _fresh_events(report.events, attempt.last_seq)
    attempt.last_batch = report.batch
    attempt.last_report_at = now
    attempt.last_seq = max((event.seq for event in fresh), default=attempt.last_seq)
    attempt.workers = _finite(to_json(report.workers))
    job.lease_expires_at = now + context.settings.lease
    step = job.step
    changed = _observe(job, report)
    after_commit(session, lambda: counters.count_report(fresh, steps=report.observed.step - step))
    _measure(job, fresh, report.metrics)
    if changed & {"workers", "joining"}:
        # Slots may have become free.
        notify(session, SCHEDULER)
    if fresh:
        await session.flush()
    await append_reported(session, job, attempt.number, fresh, now=now)
    for event in fresh:
        await _apply_checkpoint_event(session, job, attempt.number, event, now)
    await _store_metrics(context, session, job, attempt.number, report, now)
    await _count_logs(context, session, job, report, lines, now)
    await take_answers(session, job, report.answers, report.workers, now)
    await settle_status(session, job, now=now)
    job.message = report.observed.reason or job.message
    if report.outcome is not None:
        await _apply_outcome(session, job, attempt, report.outcome, now)
    if changed or report.metrics:
        job.revision += 1
        job.updated_at = now
        notify(session, ALL_JOBS)
    notify(session, job_topic(job.id))


def _measure(job: Job, events: list[EventReport], rows: tuple[MetricRow, ...]) -> None:
    """Keep what the scheduler weighs: the price of a change, and for `goodput` the throughput of each count."""
    job.pause_seconds = fold_pauses(job.pause_seconds, events)
    if rows and job.spec.get("workers", {}).get("autoscale") == "goodput":
        job.rates = fold_rates(job.rates, rows)


def _observe(job: Job, report: Report) -> set[str]:
    """Copy the controller's view into the row; gives the columns that differ."""
    seen = report.observed
    values: dict[str, Any] = {
        "observed_state": seen.state,
        "phase": seen.phase[:32],
        "generation": seen.generation,
        "workers": seen.workers,
        "joining": seen.joining,
        "step": seen.step,
        # An attempt that begins does not know it before its workers do.
        "total_steps": job.total_steps if seen.total_steps is None else seen.total_steps,
        "restarts": seen.restarts,
        "scalings": seen.scalings,
        # While pausing or stopping, why it does so is the better message where the controller has none.
        "message": seen.reason or (job.message if job.desired_run != "run" else ""),
    }
    changed = {name: value for name, value in values.items() if getattr(job, name) != value}
    for name, value in changed.items():
        setattr(job, name, value)
    return set(changed)


async def _apply_outcome(session: AsyncSession, job: Job, attempt: Attempt, outcome: Outcome, now: datetime) -> None:
    """End the attempt, and the job with it where the outcome is final."""
    attempt.ended_at = now
    attempt.outcome = outcome.state
    attempt.workers = []
    reason: str | None = None
    because: str | None = None
    if outcome.state == "succeeded" and outcome.result is not None:
        because = f"training ended at step {outcome.result.step}"
    if outcome.failure is not None and outcome.state in ("failed", "requeue"):
        reason = outcome.failure.reason[:64]
        because = outcome.failure.message.rstrip(".")
    if outcome.state == "paused" and job.preempted_at is not None and job.desired_run == "run":
        reason = Reason.PREEMPTED.value
    if job.desired_run == "stop":
        reason, because = job.stop_reason or Reason.CANCELLED_BY_USER.value, None
    await session.flush()
    await settle_status(session, job, now=now, outcome=outcome.state, reason=reason, because=because)
    # An acknowledged cancel wins over the outcome: a cancelled job has neither a result nor a failure.
    if job.status == Status.SUCCEEDED and outcome.result is not None:
        job.result = to_json(outcome.result)
    if job.status == Status.FAILED and outcome.failure is not None:
        job.failure = to_json(outcome.failure)
    job.message = _closing_message(job, outcome)
    notify(session, SCHEDULER, ALL_JOBS)


def _closing_message(job: Job, outcome: Outcome) -> str:
    if outcome.failure is not None and job.status != Status.CANCELLED:
        return outcome.failure.message
    if Status(job.status) in FINAL:
        return f"{job.status} at step {job.step}"
    return UNSEEN if job.status == Status.QUEUED else f"paused at step {job.step}"


async def _store_metrics(
    context: Context, session: AsyncSession, job: Job, attempt: int, report: Report, now: datetime
) -> None:
    """The rows, as far as the quota of a job goes; its newest values are shown in any case."""
    limit = context.settings.max_job_metric_rows
    if not report.metrics or job.metric_pos < limit:
        await store_metrics(session, job, attempt, report.metrics, now=now)
        return
    if not job.metric_rows_dropped:
        await _tell_quota(session, job, "metrics", f"{limit} metric rows", limit, now)
    job.metric_rows_dropped += len(report.metrics)
    job.latest_metrics = finite(max(report.metrics, key=lambda row: row.step).values)


async def _count_logs(
    context: Context, session: AsyncSession, job: Job, report: Report, lines: Written | None, now: datetime
) -> None:
    """Let the lines that were written count."""
    if not report.logs:
        return
    if lines is None or lines.at != LogPosition(job.log_segment, job.log_offset):
        raise ServiceError(ErrorKind.NOT_READY, "The log of the job was written by another one; send it again.")
    if lines.num_dropped and not job.log_lines_dropped:
        limit = context.settings.max_job_log_bytes
        await _tell_quota(session, job, "logs", limit_of_logs(limit), limit, now)
    job.log_lines_dropped += lines.num_dropped
    job.log_segment, job.log_offset = lines.end.segment, lines.end.offset
    job.log_bytes += lines.num_bytes


async def _tell_quota(session: AsyncSession, job: Job, what: str, told: str, limit: int, now: datetime) -> None:
    data = {"what": what, "limit": limit}
    await append_event(session, job, EventKind.QUOTA_REACHED, f"{beyond(told)}.", now=now, data=data)


async def _apply_checkpoint_event(
    session: AsyncSession, job: Job, attempt: int, event: EventReport, now: datetime
) -> None:
    """Keep the table of checkpoints as the events tell."""
    checkpoint_id = event.data.get("checkpoint_id")
    if not isinstance(checkpoint_id, str) or not _CHECKPOINT_ID.fullmatch(checkpoint_id):
        return
    if event.kind == EventKind.CHECKPOINT_DELETED:
        gone = update(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.checkpoint_id == checkpoint_id)
        await session.execute(gone.values(deleted_at=now).execution_options(synchronize_session=False))
    elif event.kind == EventKind.CHECKPOINT_COMMITTED:
        metrics = event.data.get("metrics")
        values = {
            "id": new_id("ckpt", now),
            "job_id": job.id,
            "checkpoint_id": checkpoint_id,
            "attempt": attempt,
            "step": _int_or(event.data.get("step"), event.step or 0),
            "bytes": _int_or(event.data.get("bytes"), 0),
            "created_at": parse_or(event.time, now),
            "metrics": metrics if isinstance(metrics, dict) else {},
            "files": _listed_files(event.data.get("files")),
        }
        statement = insert_for(session, Checkpoint).values(values)
        # Made again: a job that goes back comes to the same step once more, with other files.
        changed = ("attempt", "bytes", "created_at", "metrics", "files")
        again = {**{name: statement.excluded[name] for name in changed}, "deletion_began_at": None, "deleted_at": None}
        statement = statement.on_conflict_do_update(index_elements=["job_id", "checkpoint_id"], set_=again)
        await session.execute(statement)


def _listed_files(files: Any) -> list[dict[str, Any]]:
    """The files with plain names: later these become paths below the checkpoint's folder."""
    if not isinstance(files, list):
        return []
    return [
        {"name": item["name"], "bytes": _int_or(item.get("bytes"), 0), "sha256": str(item.get("sha256", ""))[:64]}
        for item in files
        if isinstance(item, dict) and isinstance(item.get("name"), str) and _FILE_NAME.fullmatch(item["name"])
    ]


def _fresh_events(events: tuple[EventReport, ...], last_seq: int) -> list[EventReport]:
    """Events not stored before, in order; a number that came twice counts once."""
    fresh: dict[int, EventReport] = {}
    for event in events:
        if event.seq > last_seq:
            fresh.setdefault(event.seq, replace(event, data=_finite(event.data)))
    return [fresh[seq] for seq in sorted(fresh)]


def _finite(data: Any) -> Any:
    """The same with null for what is not finite: JSONB and streams take no NaN, and the rest must not be lost."""
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _check_numbers(report: Report) -> None:
    """Refuse numbers that no database column holds, before they become its error."""
    seen = report.observed
    numbers: list[tuple[str, int | None]] = [
        ("batch", report.batch),
        ("observed.generation", seen.generation),
        ("observed.workers", seen.workers),
        ("observed.joining", seen.joining),
        ("observed.step", seen.step),
        ("observed.total_steps", seen.total_steps),
        ("observed.restarts", seen.restarts),
        ("observed.scalings", seen.scalings),
    ]
    for index, event in enumerate(report.events):
        numbers += [(f"events[{index}].{name}", getattr(event, name)) for name in ("seq", "step", "generation")]
    for index, row in enumerate(report.metrics):
        if not (0 <= row.step <= _LARGEST and 0 <= row.generation <= _LARGEST and 0 <= row.workers <= _LARGEST):
            numbers += [(f"metrics[{index}].{name}", getattr(row, name)) for name in ("step", "generation", "workers")]
    findings = [
        Finding(path, f"must lie in 0..2**63-1, got {value}")
        for path, value in numbers
        if value is not None and not 0 <= value <= _LARGEST
    ]
    if findings:
        raise ServiceError(ErrorKind.INVALID_REQUEST, "The report holds numbers out of range.", findings=findings)


def _int_or(value: Any, fallback: int) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST
    return value if is_whole else fallback
