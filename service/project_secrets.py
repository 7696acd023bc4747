"""Secrets of projects, as people set them: written, listed by name, removed, and never shown."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from rubato.errors import Finding
from rubato.wire.spec import MAX_SECRET_NAME, is_secret_name
from service.clock import to_rfc3339
from service.context import Context
from service.database import insert_for
from service.errors import ErrorKind, ServiceError, not_found
from service.job_secrets import purpose_of
from service.models import Secret
from service.pages import cut, read_key
from service.people import audit, find_lasting_project, find_project, is_storable, storable
from service.redaction import MIN_CHARS, lines_of
from service.requests import Asked, check_tag
from service.tags import tag_of

MAX_CHARS = 16 * 1024
"""Room for a private key with its certificates; the system bounds an environment variable at 128 KiB."""


async def set_secret(
    context: Context, project: str, name: str, value: str, asked: Asked
) -> tuple[dict[str, Any], bool]:
    """Store a value in place of another one; gives what is shown of it, and whether it is new.

    Raises:
        ServiceError: invalid_request (the name or the value), not_found (the project), not_ready (there is no key),
            precondition_failed (also where there is none to replace).
    """
    _check(name, value)
    now = context.clock()
    sealed = context.vault.seal(value, purpose_of(project, name))
    async with context.database.write() as session:
        await find_lasting_project(session, project)
        former = await session.get(Secret, (project, name), with_for_update=True)
        check_tag(name, None if former is None else _edition(former), asked.if_match)
        row = {"key_id": sealed.key_id, "sealed": sealed.data, "updated_at": now, "updated_by": asked.actor}
        insert = insert_for(session, Secret).values(project=project, name=name, created_at=now, **row)
        await session.execute(insert.on_conflict_do_update(index_elements=["project", "name"], set_=row))
        audit(session, context, asked.caller, "secret.set", {"project": project, "secret": name})
        stored = await session.get_one(Secret, (project, name), populate_existing=True)
        return _secret_json(stored), former is None


async def list_secrets(
    context: Context, project: str, *, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the project's secrets by name: names, times and by whom, never values.

    Raises:
        ServiceError: not_found (the project).
    """
    statement = select(Secret).where(Secret.project == project).order_by(Secret.name).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(Secret.name > storable(read_key(cursor, "secrets")))
    async with context.database.read() as session:
        await find_project(session, project)
        rows = (await session.scalars(statement)).all()
    page, next_cursor = cut(rows, limit, lambda secret: secret.name, of="secrets")
    return [_secret_json(secret) for secret in page], next_cursor


async def delete_secret(context: Context, project: str, name: str, asked: Asked) -> None:
    """Remove a secret. Attempts that were given it keep it; the next one of a job that needs it fails, and says so.

    Raises:
        ServiceError: not_found, precondition_failed.
    """
    if not (is_storable(project) and is_storable(name)):
        raise not_found("secret", name[:80])
    async with context.database.write() as session:
        secret = await session.get(Secret, (project, name), with_for_update=True)
        if secret is None:
            raise not_found("secret", name[:80])
        check_tag(name, _edition(secret), asked.if_match)
        await session.delete(secret)
        audit(session, context, asked.caller, "secret.deleted", {"project": project, "secret": name})


def _check(name: str, value: str) -> None:
    findings = []
    if not is_secret_name(name):
        rule = f"must be the name of an environment variable, of at most {MAX_SECRET_NAME} characters"
        findings.append(Finding("name", rule))
    if len(value) > MAX_CHARS or all(len(line) < MIN_CHARS for line in lines_of(value)):
        rule = f"must have {MIN_CHARS} to {MAX_CHARS} characters, {MIN_CHARS} of them in one line: "
        rule += "a shorter one could not be taken out of logs"
        findings.append(Finding("value", rule))
    if findings:
        summary = "; ".join(map(str, findings))
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"The secret is not valid: {summary}.", findings=findings)


def _edition(secret: Secret) -> str:
    """By when and by whom it was set: the value is sealed anew with each new key, and says nothing."""
    return tag_of(secret.created_at.isoformat(), secret.updated_at.isoformat(), secret.updated_by)


def _secret_json(secret: Secret) -> dict[str, Any]:
    return {
        "name": secret.name,
        "etag": _edition(secret),
        "project": secret.project,
        "created_at": to_rfc3339(secret.created_at),
        "updated_at": to_rfc3339(secret.updated_at),
        "updated_by": secret.updated_by,
    }
