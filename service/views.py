"""A job as the API shows it."""

from __future__ import annotations

from typing import Any

from rubato.wire.reasons import advice_for
from service.clock import optional_rfc3339, to_rfc3339
from service.models import HISTORIES, Attempt, Checkpoint, Job
from service.restarts import restarts_to_scale
from service.spec_origin import given_fields
from service.tags import tag_of

PRINTED = ("traceback", "last_output")
"""Of a failure: up to 256 kB, and a list has hundreds of jobs."""


def job_json(job: Job, *, with_spec: bool = False) -> dict[str, Any]:
    """The job object; items of a list have no spec, and of a failure not what it printed."""
    queue = None
    if job.status == "queued":
        queue = {"position": job.queue_position, "reason": job.message}
    shown: dict[str, Any] = {
        "id": job.id,
        "name": job.name,
        "project": job.project,
        "labels": job.labels,
        "status": job.status,
        "reason": job.reason,
        "message": job.message,
        "phase": job.phase,
        "desired_workers": job.desired_workers,
        "granted_workers": job.granted_workers,
        "scheduling": job.scheduling,
        "workers": job.workers,
        "joining": job.joining,
        "min_workers": job.min_workers,
        "max_workers": job.max_workers,
        "step": job.step,
        "total_steps": job.total_steps,
        "metrics": job.latest_metrics,
        "attempt": job.attempt,
        "generation": job.generation,
        "restarts": job.restarts,
        "scalings": job.scalings,
        "created_at": to_rfc3339(job.created_at),
        "started_at": optional_rfc3339(job.started_at),
        "finished_at": optional_rfc3339(job.finished_at),
        "updated_at": to_rfc3339(job.updated_at),
        "result": job.result,
        "failure": _failure_json(job, with_output=with_spec),
        "queue": queue,
    }
    if with_spec:
        shown["spec"] = job.spec
        shown["scaling_restarts"] = restarts_to_scale(job)
        shown["spec_given"] = given_fields(job.spec)
        shown["log_bytes"] = job.log_bytes
        shown["log_lines_dropped"] = job.log_lines_dropped
        shown["metric_rows_dropped"] = job.metric_rows_dropped
        shown["dropped"] = [what for what in HISTORIES if getattr(job, f"{what}_dropped_at") is not None]
        shown["etag"] = edition(job)
    return shown


def _failure_json(job: Job, *, with_output: bool) -> dict[str, Any] | None:
    if job.failure is None:
        return None
    shown = {**job.failure, "advice": advice_for(job.failure["reason"], job.failure["message"])}
    return shown if with_output else {name: value for name, value in shown.items() if name not in PRINTED}


def edition(job: Job) -> str:
    """The entity tag of what people may change: the spec and their wishes, and nothing that a controller reports.

    So a tag stays good while the job trains, and If-Match can be used on running jobs.
    """
    return tag_of(job.id, job.spec, job.desired_run, job.desired_workers)


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """One life of the controller."""
    return {
        "attempt": attempt.number,
        "node_id": attempt.node_id,
        "pid": attempt.pid,
        "granted_at": to_rfc3339(attempt.granted_at),
        "last_report_at": optional_rfc3339(attempt.last_report_at),
        "ended_at": optional_rfc3339(attempt.ended_at),
        "outcome": attempt.outcome,
    }


def checkpoint_json(checkpoint: Checkpoint, *, is_pinned: bool | None) -> dict[str, Any]:
    """A committed checkpoint and its files; `is_pinned` as the storage says, None where it does not answer."""
    return {
        "id": checkpoint.id,
        "job_id": checkpoint.job_id,
        "checkpoint_id": checkpoint.checkpoint_id,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "bytes": checkpoint.bytes,
        "created_at": to_rfc3339(checkpoint.created_at),
        "pinned": is_pinned,
        "metrics": checkpoint.metrics,
        "files": checkpoint.files,
    }
