"""Secrets as jobs have them: asked for in a spec, given to an attempt, taken out of what its workers say."""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding, SpecError
from rubato.wire.spec import JobSpec
from service.errors import ErrorKind, ServiceError, invalid_spec
from service.models import AttemptSecret, Job, Secret
from service.redaction import Redactor
from service.vault import Sealed, Vault, VaultShut


async def check_known(session: AsyncSession, spec: JobSpec) -> None:
    """Refuse a spec that names secrets which its project has not.

    Raises:
        ServiceError: invalid_spec.
    """
    if not spec.secrets:
        return
    known = select(Secret.name).where(Secret.project == spec.project, Secret.name.in_(spec.secrets))
    unknown = sorted(set(spec.secrets) - set((await session.scalars(known)).all()))
    if unknown:
        raise invalid_spec(SpecError([Finding("secrets", _advice(name, spec.project)) for name in unknown]))


async def give(session: AsyncSession, job: Job, attempt: int) -> None:
    """Copy the secrets of this moment to a new attempt: all its workers get the same, whenever they start."""
    names = job.spec.get("secrets")
    if not names:
        return
    asked = select(Secret).where(Secret.project == job.project, Secret.name.in_(names))
    for secret in (await session.scalars(asked)).all():
        session.add(
            AttemptSecret(job_id=job.id, attempt=attempt, name=secret.name, key_id=secret.key_id, sealed=secret.sealed)
        )


async def forget(session: AsyncSession, job: Job) -> None:
    """The job has ended: nobody needs what its attempts were given."""
    if job.spec.get("secrets"):
        await session.execute(delete(AttemptSecret).where(AttemptSecret.job_id == job.id))


async def values_of(session: AsyncSession, vault: Vault, job: Job) -> dict[str, str]:
    """What the job's newest attempt was given, by name.

    Raises:
        ServiceError: conflict (one was not there), not_ready (its key is not).
    """
    given = select(AttemptSecret).where(AttemptSecret.job_id == job.id, AttemptSecret.attempt == job.attempt)
    rows = {row.name: row for row in (await session.scalars(given)).all()}
    for name in job.spec.get("secrets", ()):
        if name not in rows:
            raise ServiceError(ErrorKind.CONFLICT, f"{_advice(name, job.project)}, then `rubato clone` the job.")
    return {name: _open(vault, job.project, row) for name, row in rows.items()}


async def redactor_of(session: AsyncSession, vault: Vault, job: Job) -> Redactor | None:
    """Takes out of a report what any attempt of the job was given; None: nothing was.

    Workers outlive their attempt: all values count that one of them may hold.
    """
    if not job.spec.get("secrets"):
        return None
    values: defaultdict[str, list[str]] = defaultdict(list)
    try:
        for row in (await session.scalars(select(AttemptSecret).where(AttemptSecret.job_id == job.id))).all():
            values[row.name].append(_open(vault, job.project, row))
    except VaultShut:
        return Redactor({}, is_blind=True)
    return Redactor(values)


async def seal_anew(session: AsyncSession, vault: Vault) -> None:
    """Seal under the first key what lies under another one that is still there, so that one can be taken away."""
    for secret in (await session.scalars(select(Secret).where(Secret.key_id != vault.key_id))).all():
        _seal_anew(vault, secret.project, secret)
    given = select(AttemptSecret, Job.project).join(Job, Job.id == AttemptSecret.job_id)
    for row, project in (await session.execute(given.where(AttemptSecret.key_id != vault.key_id))).all():
        _seal_anew(vault, project, row)


def purpose_of(project: str, name: str) -> str:
    """What a sealed secret is bound to."""
    return f"secret:{project}:{name}"


def _advice(name: str, project: str) -> str:
    return f"the project {project!r} has no secret {name!r}; set it with `rubato secret set {name} --project {project}`"


def _seal_anew(vault: Vault, project: str, row: Secret | AttemptSecret) -> None:
    sealed = vault.seal_anew(Sealed(row.key_id, row.sealed), purpose_of(project, row.name))
    row.key_id, row.sealed = sealed.key_id, sealed.data


def _open(vault: Vault, project: str, row: Secret | AttemptSecret) -> str:
    return vault.open(Sealed(row.key_id, row.sealed), purpose_of(project, row.name))
