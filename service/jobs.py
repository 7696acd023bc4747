"""Jobs: submit, find, list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, func, select, union_all
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from rubato.errors import Finding, SpecError
from rubato.recipes.check import check_recipe
from rubato.wire.events import EventKind
from rubato.wire.spec import JobSpec, parse_spec, spec_to_json
from rubato.wire.status import Status
from service import quotas
from service.access import Principal, ProjectRole
from service.context import Context
from service.errors import ErrorKind, ServiceError, invalid_spec, not_found
from service.events import append_event
from service.history import list_json
from service.ids import is_id, new_id
from service.job_secrets import check_known
from service.models import IS_NOT_FINAL, AuditEntry, Checkpoint, Job, Package, Project, unindexed
from service.notify import ALL_JOBS, SCHEDULER, notify
from service.pages import bad_cursor, cut
from service.requests import Asked, answer_once
from service.scheduling.sentences import UNSEEN
from service.views import job_json
from service.webhooks.manage import check_named

MERGED_PROJECTS = 50
"""Of so many projects lists are merged; who sees more sees so much of all jobs that these are walked."""


def read_spec(data: Any) -> JobSpec:
    """A valid spec.

    Raises:
        ServiceError: invalid_spec, with every finding.
    """
    try:
        spec = parse_spec(data)
    except SpecError as error:
        raise invalid_spec(error) from None
    if spec.name.startswith("job_"):
        finding = Finding("name", "must not begin with 'job_': ids begin so, and a job is found by id or name")
        raise invalid_spec(SpecError([finding]))
    if spec.working_dir is not None:
        finding = Finding(
            "working_dir",
            "is for `rubato submit`, which packs and uploads that folder: do the same (Client.upload_folder, or a zip "
            "of it to PUT /api/v1/packages/SHA256), and name its SHA-256 as `package` instead",
        )
        raise invalid_spec(SpecError([finding]))
    if spec.recipe is not None and (findings := check_recipe(spec.recipe, spec.config)):
        raise invalid_spec(SpecError(findings))
    return spec


async def submit(context: Context, spec: JobSpec, *, asked: Asked) -> dict[str, Any]:
    """Store a new job, queued.

    Raises:
        ServiceError: name_taken, quota_exceeded, package_unknown, idempotency_mismatch, invalid_spec (unknown
            checkpoint, secret or webhook).
    """
    return await answer_once(
        context,
        asked,
        spec_to_json(spec),
        lambda session: insert(session, spec, caller=asked.caller, now=context.clock()),
    )


async def check(context: Context, spec: JobSpec, caller: Principal) -> dict[str, Any]:
    """The spec as `submit` would store it, with all defaults; nothing is stored.

    Raises:
        ServiceError: name_taken, quota_exceeded, package_unknown, invalid_spec, forbidden, as `submit`.
    """
    async with context.database.read() as session:
        project = await _check_project(session, spec, caller)
        await _check_references(session, spec, caller)
        await _check_name_free(session, spec)
        await quotas.check_queue(session, project)
    return spec_to_json(spec)


async def get(context: Context, reference: str) -> dict[str, Any]:
    """A job by id, or the newest of a name.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        return job_json(await find(session, reference), with_spec=True)


@dataclass(frozen=True)
class JobFilter:
    """Which jobs are listed; what is empty or None leaves all in."""

    statuses: Sequence[Status] = ()
    project: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    """Part of the name."""
    created_after: datetime | None = None


async def list_jobs(
    context: Context,
    caller: Principal,
    wanted: JobFilter,
    *,
    cursor: str | None,
    limit: int,
    with_history: bool = False,
) -> tuple[list[dict[str, Any]], str | None]:
    """Jobs of the caller's projects from the newest on, and the cursor of the next page.

    Raises:
        ServiceError: invalid_request (the cursor).
    """
    holds: list[ColumnElement[bool]] = [Job.deleted_at.is_(None)]
    if wanted.statuses:
        holds.append(Job.status.in_(wanted.statuses))
    holds += [Job.labels[name].as_string() == value for name, value in wanted.labels.items()]
    if wanted.text:
        holds.append(Job.name.contains(wanted.text.lower(), autoescape=True))
    if wanted.created_after is not None:
        holds.append(Job.created_at > wanted.created_after)
    if cursor is not None:
        if not is_id(cursor, "job"):
            raise bad_cursor()
        holds.append(Job.id < cursor)
    projects = caller.visible_projects
    if wanted.project:
        projects = frozenset({wanted.project} if projects is None else {wanted.project} & projects)
    statement = select(Job).options(defer(Job.spec)).where(_are_among_newest(holds, projects, limit + 1))
    statement = statement.order_by(Job.id.desc()).limit(limit + 1)
    async with context.database.read() as session:
        jobs = list((await session.scalars(statement)).all())
        page, next_cursor = cut(jobs, limit, lambda job: job.id)
        return await list_json(session, page, with_history=with_history), next_cursor


def _are_among_newest(
    holds: Sequence[ColumnElement[bool]], projects: frozenset[str] | None, count: int
) -> ColumnElement[bool]:
    """Jobs of which all this holds, among them the `count` newest of these projects.

    An index has the jobs of one project in order; of several at once all that there ever were would be sorted.
    """
    if projects is None:
        return and_(*holds)
    if len(projects) > MERGED_PROJECTS:
        return and_(unindexed(Job.project).in_(sorted(projects)), *holds)
    if len(projects) <= 1:
        return and_(Job.project.in_(sorted(projects)), *holds)
    newest = [
        select(Job.id).where(Job.project == project, *holds).order_by(Job.id.desc()).limit(count).subquery()
        for project in sorted(projects)
    ]
    return Job.id.in_(union_all(*(select(one.c.id) for one in newest)))


async def find_visible(session: AsyncSession, reference: str, caller: Principal, *, with_deleted: bool = False) -> Job:
    """A job of the caller's projects by id, or the newest of a name; foreign ones are as if they were not.

    Raises:
        ServiceError: not_found.
    """
    return await find(session, reference, projects=caller.visible_projects, with_deleted=with_deleted)


async def refuse_ambiguous(session: AsyncSession, reference: str, caller: Principal) -> None:
    """Refuse to change the newest job of a name that the caller's projects share: it may be another one's.

    Raises:
        ServiceError: conflict; names one of each project.
    """
    if is_id(reference, "job") or "\x00" in reference:
        return
    newest = select(Job.project, func.max(Job.id)).where(Job.name == reference, Job.deleted_at.is_(None))
    if caller.visible_projects is not None:
        newest = newest.where(unindexed(Job.project).in_(sorted(caller.visible_projects)))
    found = (await session.execute(newest.group_by(Job.project).order_by(Job.project).limit(4))).all()
    if len(found) > 1:
        named = ", ".join(f"{job_id} in {project}" for project, job_id in found)
        raise ServiceError(
            ErrorKind.CONFLICT,
            f"Several projects have a job {reference}: name the one that is meant by its id ({named}).",
        )


async def find(
    session: AsyncSession,
    reference: str,
    *,
    for_update: bool = False,
    projects: frozenset[str] | None = None,
    with_deleted: bool = False,
) -> Job:
    """A job by id, or the newest of a name; locked against other writers where it is to be changed.

    One that was deleted is not there any more, but for its deletion (`with_deleted`) until the sweep has come by: sent
    again, that must not mean an older job of the name.

    Raises:
        ServiceError: not_found.
    """
    if is_id(reference, "job"):
        statement = select(Job).where(Job.id == reference)
    else:
        statement = select(Job).where(Job.name == reference).order_by(Job.id.desc()).limit(1)
    if not with_deleted:
        statement = statement.where(Job.deleted_at.is_(None))
    if projects is not None:
        statement = statement.where(unindexed(Job.project).in_(sorted(projects)))
    if for_update:
        statement = statement.with_for_update()
    # NUL cannot stand in a text of PostgreSQL, nor in any name.
    job = None if "\x00" in reference else (await session.scalars(statement)).one_or_none()
    if job is None:
        raise not_found("job", reference)
    structlog.contextvars.bind_contextvars(job_id=job.id)
    return job


async def insert(
    session: AsyncSession, spec: JobSpec, *, caller: Principal, now: datetime, cloned_from: str | None = None
) -> dict[str, Any]:
    """A new job in the caller's transaction, as the API shows it.

    Raises:
        ServiceError: name_taken, quota_exceeded, package_unknown, invalid_spec (unknown project, checkpoint, secret or
            webhook, more than the project's quota), forbidden.
    """
    actor = caller.name
    project = await _check_project(session, spec, caller)
    await _check_references(session, spec, caller)
    await _check_name_free(session, spec)
    await quotas.check_queue(session, project)
    timeout_s = spec.limits.queue_timeout
    job = Job(
        id=new_id("job", now),
        project=spec.project,
        name=spec.name,
        labels=dict(spec.labels),
        spec=spec_to_json(spec),
        priority=spec.scheduling.priority,
        min_workers=spec.workers.min,
        max_workers=spec.workers.upper,
        created_at=now,
        updated_at=now,
        queued_at=now,
        status=str(Status.QUEUED),
        deadline_at=None if timeout_s is None else now + timedelta(seconds=timeout_s),
        message=UNSEEN,
        scheduling=UNSEEN,
        desired_workers=spec.workers.initial,
        latest_metrics={},
    )
    session.add(job)
    await session.flush()
    origin = {} if cloned_from is None else {"cloned_from": cloned_from}
    message = f"{actor} submitted the job{'' if cloned_from is None else f' as a clone of {cloned_from}'}."
    await append_event(session, job, EventKind.SUBMITTED, message, now=now, data={"by": actor, **origin})
    session.add(AuditEntry(time=now, actor=actor, action=str(EventKind.SUBMITTED), job_id=job.id, detail=origin))
    await session.refresh(job)
    notify(session, ALL_JOBS, SCHEDULER)
    return job_json(job, with_spec=True)


async def _check_name_free(session: AsyncSession, spec: JobSpec) -> None:
    taken = select(Job.id).where(Job.project == spec.project, Job.name == spec.name, IS_NOT_FINAL)
    if (await session.execute(taken)).first() is not None:
        raise ServiceError(
            ErrorKind.NAME_TAKEN,
            f"A job named {spec.name!r} has not ended yet; cancel it first, or choose another name.",
            findings=[Finding("name", "is taken by a job that has not ended")],
        )


async def _check_project(session: AsyncSession, spec: JobSpec, caller: Principal) -> Project:
    role = caller.role_in(spec.project)
    project = None if role is None else await quotas.find_for_submit(session, spec.project)
    if role is None or project is None:
        # The same words for a project that is not there and for one that is none of the caller's business.
        own = sorted(name for name, own in caller.projects.items() if own.includes(ProjectRole.EDITOR))
        advice = f"; you may submit to {', '.join(own)}" if own else ""
        raise invalid_spec(SpecError([Finding("project", f"there is no project {spec.project!r}{advice}")]))
    if not role.includes(ProjectRole.EDITOR):
        raise ServiceError(ErrorKind.FORBIDDEN, f"You are a {role} of the project {spec.project!r}; editors submit.")
    quotas.check_spec(project, spec)
    return project


async def _check_references(session: AsyncSession, spec: JobSpec, caller: Principal) -> None:
    await check_known(session, spec)
    await check_named(session, spec)
    # Held until the job is there: a package that no job has may be removed.
    if spec.package is not None and await session.get(Package, spec.package, with_for_update={"read": True}) is None:
        raise ServiceError(
            ErrorKind.PACKAGE_UNKNOWN,
            f"The package {spec.package[:12]}... was never uploaded; PUT it to /api/v1/packages/{{sha256}} first "
            "(rubato submit does).",
            findings=[Finding("package", "is not stored here")],
        )
    if spec.checkpoint.resume_from is not None:
        await _check_origin(session, spec, spec.checkpoint.resume_from, caller)


async def _check_origin(session: AsyncSession, spec: JobSpec, origin: str, caller: Principal) -> None:
    of_origin = select(Checkpoint.job_id).where(Checkpoint.id == origin[:40]).scalar_subquery()
    # Locked against deletions of that job and of its checkpoints, which look for those that begin from them. The
    # checkpoint is read behind the lock: a deletion that had it before has said so in its row.
    source = select(Job).where(Job.id == of_origin, Job.deleted_at.is_(None))
    maker = await session.scalar(source.with_for_update(read=True, key_share=True))
    found = None if maker is None else await session.get(Checkpoint, origin[:40])
    is_visible = maker is not None and caller.role_in(maker.project) is not None
    if found is None or found.deleted_at is not None or maker is None or not is_visible:
        finding = Finding("checkpoint.resume_from", f"there is no checkpoint {origin!r}; see rubato checkpoints ls")
        raise invalid_spec(SpecError([finding]))
    if found.deletion_began_at is not None:
        finding = Finding(
            "checkpoint.resume_from", f"{origin!r} is being deleted; choose another (rubato checkpoints ls)"
        )
        raise invalid_spec(SpecError([finding]))
    findings = _other_terms(maker.spec, spec)
    if findings:
        raise invalid_spec(SpecError(findings))


def _other_terms(maker: dict[str, Any], spec: JobSpec) -> list[Finding]:
    """What keeps a job from going on from another one's checkpoint: its samples would be others, or the shape of sums.

    Args:    maker: spec of the job that made the checkpoint.
    """
    try:
        made = parse_spec(maker)
    except SpecError:
        return []  # of a former release; the controller compares with the manifest
    if made.backend != spec.backend:
        return [Finding("checkpoint.resume_from", "Ray Train made the checkpoint, which only its own job goes on from")]
    pairs = [
        ("seed", made.seed, spec.seed),
        ("batch.global_size", made.batch.global_size, spec.batch.global_size),
        ("batch.num_microbatches", made.num_microbatches, spec.num_microbatches),
    ]
    if spec.reproducible:  # else no bits are promised
        pairs.append(("reproducible", made.reproducible, spec.reproducible))
    advice = "set the same, or begin from the weights alone (rubato export)"
    return [
        Finding(path, f"the checkpoint was made with {saved}, this job has {mine}: {advice}")
        for path, saved, mine in pairs
        if saved != mine
    ]
