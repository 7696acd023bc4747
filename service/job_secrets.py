"""Secrets as jobs have them: asked for in a spec, given to an attempt, taken out of what its workers say."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable

from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding, SpecError
from rubato.wire.spec import JobSpec
from service.database import Database
from service.errors import ErrorKind, ServiceError, invalid_spec
from service.models import AttemptSecret, Job, Secret
from service.redaction import Redactor
from service.threads import REDACTIONS, run_in
from service.vault import SEAL_BYTES, Sealed, Vault, VaultShut

MAX_JOB_BYTES = 64 * 1024
"""Of a job's values together: each report is searched for all of them."""
MAX_KEPT = 4096
KEPT_CHARS = 2**22
"""Of redactors that are kept: some ten megabytes."""


class Redactors:
    """Take out of reports what any attempt of their job was given; workers outlive their attempt.

    What an attempt and those before it were given never changes. So it is read, opened and prepared once, not for
    each report, and outside of the transaction that stores one: who reports for an attempt that is not the newest any
    more is fenced there.
    """

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._kept: OrderedDict[tuple[str, int], Redactor | None] = OrderedDict()

    async def find(self, database: Database, job_id: str, attempt: int) -> Redactor | None:
        """For the reports of an attempt; None: the job was given nothing."""
        key = (job_id, attempt)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        given = select(Job.project, AttemptSecret.name, AttemptSecret.key_id, AttemptSecret.sealed)
        given = given.join(Job, Job.id == AttemptSecret.job_id).where(AttemptSecret.job_id == job_id)
        async with database.read() as session:
            # Attempts that were given the same have the same ciphertext.
            rows = (await session.execute(given.distinct())).all()
        redactor = await run_in(REDACTIONS, self._make, rows) if rows else None
        if redactor is None or not redactor.is_blind:  # a key that is missing may come
            self._keep(key, redactor)
        return redactor

    def _make(self, rows: Iterable[tuple[str, str, str, bytes]]) -> Redactor:
        values: defaultdict[str, list[str]] = defaultdict(list)
        try:
            for project, name, key_id, sealed in rows:
                values[name].append(self._vault.open(Sealed(key_id, sealed), purpose_of(project, name)))
        except VaultShut:
            return Redactor({}, is_blind=True)
        return Redactor(values)

    def _keep(self, key: tuple[str, int], redactor: Redactor | None) -> None:
        """Those that were used last, as many as there is room for."""
        self._kept[key] = redactor
        self._kept.move_to_end(key)
        kept_chars = sum(kept.num_chars for kept in self._kept.values() if kept is not None)
        while len(self._kept) > MAX_KEPT or (kept_chars > KEPT_CHARS and len(self._kept) > 1):
            _, dropped = self._kept.popitem(last=False)
            kept_chars -= 0 if dropped is None else dropped.num_chars


async def check_known(session: AsyncSession, spec: JobSpec) -> None:
    """Refuse a spec that names secrets which its project has not, or too large ones.

    Raises:
        ServiceError: invalid_spec.
    """
    if not spec.secrets:
        return
    sizes = await _sizes(session, spec.project, spec.secrets)
    faults = [_advice(name, spec.project) for name in sorted(set(spec.secrets) - sizes.keys())]
    if not faults and sum(sizes.values()) > MAX_JOB_BYTES:
        faults = [_too_large(sum(sizes.values()))]
    if faults:
        raise invalid_spec(SpecError([Finding("secrets", fault) for fault in faults]))


async def give(session: AsyncSession, job: Job, attempt: int) -> None:
    """Copy the secrets of this moment to a new attempt: all its workers get the same, whenever they start.

    None of them where they are too large by now: then `values_of` says so.
    """
    names = job.spec.get("secrets")
    if not names:
        return
    if sum((await _sizes(session, job.project, names)).values()) > MAX_JOB_BYTES:
        return
    asked = select(Secret).where(Secret.project == job.project, Secret.name.in_(names))
    for secret in (await session.scalars(asked)).all():
        # Of a value that many attempts were given one row stays: a controller may crash for ever.
        same = (AttemptSecret.name == secret.name, AttemptSecret.key_id == secret.key_id)
        before = delete(AttemptSecret).where(AttemptSecret.job_id == job.id, *same)
        await session.execute(before.where(AttemptSecret.sealed == secret.sealed))
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
        ServiceError: conflict (one was not there, or they were too large), not_ready (its key is not).
    """
    given = select(AttemptSecret).where(AttemptSecret.job_id == job.id, AttemptSecret.attempt == job.attempt)
    rows = {row.name: row for row in (await session.scalars(given)).all()}
    names = job.spec.get("secrets", ())
    missing = [name for name in names if name not in rows]
    if missing:
        size = sum((await _sizes(session, job.project, names)).values())
        fault = _too_large(size) if size > MAX_JOB_BYTES else _advice(missing[0], job.project)
        raise ServiceError(ErrorKind.CONFLICT, f"{fault}, then `rubato clone` the job.")
    return {name: _open(vault, job.project, row) for name, row in rows.items()}


def purpose_of(project: str, name: str) -> str:
    """What a sealed secret is bound to."""
    return f"secret:{project}:{name}"


async def _sizes(session: AsyncSession, project: str, names: Collection[str]) -> dict[str, int]:
    """The bytes of each value, as far as the project has them."""
    sealed = select(Secret.name, func.length(Secret.sealed)).where(Secret.project == project, Secret.name.in_(names))
    return {name: size - SEAL_BYTES for name, size in (await session.execute(sealed)).all()}


def _too_large(size: int) -> str:
    return f"the secrets of a job may have {MAX_JOB_BYTES} bytes in all, and these have {size}; set shorter ones"


def _advice(name: str, project: str) -> str:
    return f"the project {project!r} has no secret {name!r}; set it with `rubato secret set {name} --project {project}`"


def _open(vault: Vault, project: str, row: AttemptSecret) -> str:
    return vault.open(Sealed(row.key_id, row.sealed), purpose_of(project, row.name))
