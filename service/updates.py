"""Changing a job that was submitted: labels, bounds, limits and priority, by a merge patch of its spec (RFC 7396)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding, SpecError
from rubato.wire.events import EventKind
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json
from rubato.wire.status import FINAL, Status
from service import quotas
from service.context import Context
from service.errors import ErrorKind, ServiceError, invalid_spec
from service.models import Job, Project
from service.requests import Asked
from service.states import deadline_of
from service.wishes import Changed, change_job, explain_capacity, record_wish, refuse_final

CHANGEABLE: dict[str, frozenset[str]] = {
    "labels": frozenset(),
    "workers": frozenset({"min", "max"}),
    "limits": frozenset({"max_duration", "stop_grace", "hang_timeout", "queue_timeout"}),
    "scheduling": frozenset({"priority", "preemptible"}),
}
"""Fields of the spec that may change, by section; of labels any. All else is fixed at submit."""
FROM_NEXT_ATTEMPT = frozenset({"limits.stop_grace", "limits.hang_timeout"})
"""What a controller reads from the spec when it acquires its attempt, and not again."""


async def update(context: Context, reference: str, patch: Any, *, asked: Asked) -> Changed:
    """Merge a patch into the changeable part of a job's spec; null takes a label, all labels, or a limit away.

    Where the wished worker count no longer lies in the bounds, it is moved to the nearer one.

    Raises:
        ServiceError: not_found, job_final (labels alone may still change then), invalid_request, invalid_spec,
            body_too_large, precondition_failed.
    """
    check_patch(patch)

    async def change(session: AsyncSession, job: Job, now: datetime) -> bool:
        if set(patch) - {"labels"}:
            refuse_final(job, "changed, but for its labels")
        spec = patched_spec(job.spec, patch, context.settings.max_spec_bytes)
        resolved = spec_to_json(spec)
        changes = dict(differences(_as_written_now(job.spec), resolved))
        if not changes:
            return False
        if bounded := quotas.BOUNDED & changes.keys():
            quotas.check_spec(await session.get_one(Project, job.project), spec, bounded)
        await _apply(session, job, spec, resolved, changes, asked.actor, now)
        return True

    return await change_job(context, reference, asked, ["update", patch], change)


def check_patch(patch: Any) -> None:
    """Refuse a patch of anything else than what may change.

    Raises:
        ServiceError: invalid_request, with a finding for each field.
    """
    if not isinstance(patch, dict):
        raise ServiceError(ErrorKind.INVALID_REQUEST, "Send the fields to change as a JSON object.")
    findings = list(_forbidden(patch))
    if findings:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST,
            "Only labels, workers.min, workers.max, limits and scheduling of a job can be changed; "
            "`rubato clone` submits it again with other values.",
            findings=findings,
        )


def _forbidden(patch: dict[str, Any]) -> Iterator[Finding]:
    for section, value in patch.items():
        if section not in CHANGEABLE:
            yield Finding(section, "cannot be changed")
        elif section == "labels" and value is None:
            continue
        elif not isinstance(value, dict):
            yield Finding(section, "must be a mapping of the fields to change")
        elif CHANGEABLE[section]:
            for name in value.keys() - CHANGEABLE[section]:
                advice = "; scale changes how many train" if section == "workers" else ""
                yield Finding(f"{section}.{name}", f"cannot be changed{advice}")


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: mappings merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def patched_spec(spec: dict[str, Any], patch: dict[str, Any], limit_bytes: int) -> JobSpec:
    """The spec after a patch, checked as a whole.

    Raises:
        ServiceError: invalid_spec, with every finding; body_too_large.
    """
    merged = merge_patch(spec, patch)
    refuse_growth(spec, merged, limit_bytes)
    low, high = merged["workers"].get("min"), merged["workers"].get("max")
    if all(isinstance(bound, int) for bound in (low, high)) and low <= high:
        merged["workers"]["initial"] = min(max(spec["workers"]["initial"], low), high)
    try:
        return parse_spec(merged)
    except SpecError as error:
        raise invalid_spec(error) from None


def refuse_growth(old: dict[str, Any], new: dict[str, Any], limit_bytes: int, *, room_bytes: int = 0) -> None:
    """Keep to the limit of a submit; a spec that was taken has grown a little by its defaults, and is taken again.

    Raises:
        ServiceError: body_too_large.
    """
    size = _size(new)
    if size > max(limit_bytes, _size(old) + room_bytes):
        raise ServiceError(
            ErrorKind.BODY_TOO_LARGE, f"With these changes the spec has {size} bytes, and it may have {limit_bytes}."
        )


def _size(spec: dict[str, Any]) -> int:
    return len(json.dumps(spec, separators=(",", ":"), ensure_ascii=False).encode())


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The leaves that differ, as `workers.max` and what it was and is; None: it is not there."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            yield from differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif before != after:
        yield path, {"from": before, "to": after}


def _as_written_now(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as this release would store it: what an older one left out is no change that somebody made."""
    try:
        return spec_to_json(parse_spec(spec))
    except SpecError:
        return spec


async def _apply(
    session: AsyncSession,
    job: Job,
    spec: JobSpec,
    resolved: dict[str, Any],
    changes: dict[str, Any],
    actor: str,
    now: datetime,
) -> None:
    job.spec = resolved
    job.labels = dict(spec.labels)
    if job.priority != spec.scheduling.priority:  # else a place in the queue that the job had kept stays its own
        job.priority = spec.scheduling.priority
    job.min_workers, job.max_workers = spec.workers.min, spec.workers.upper
    job.deadline_at = deadline_of(job, Status(job.status), now)
    later = sorted(FROM_NEXT_ATTEMPT & changes.keys()) if job.is_attempt_live else []
    sentences = [f"{actor} changed {', '.join(_sentence(path, change) for path, change in changes.items())}."]
    if later:
        sentences.append(f"{' and '.join(later)} will count from the next attempt on.")
    wanted = min(max(job.desired_workers, job.min_workers), job.max_workers)
    if wanted != job.desired_workers and Status(job.status) not in FINAL:
        sentences.append(f"{wanted} workers are wanted now instead of {job.desired_workers}.")
        changes = {**changes, "desired_workers": {"from": job.desired_workers, "to": wanted}}
        job.desired_workers, job.wished_at = wanted, now
        await explain_capacity(session, job)
    data = {"by": actor, "changes": changes, "from_next_attempt": later}
    await record_wish(session, job, EventKind.UPDATED, " ".join(sentences), data, actor=actor, now=now)


def _sentence(path: str, change: dict[str, Any]) -> str:
    return f"{path} from {_shown(change['from'])} to {_shown(change['to'])}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
