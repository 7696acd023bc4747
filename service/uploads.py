"""Packages as use-cases: who may store and fetch them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from service.auth import Principal
from service.context import Context
from service.database import insert_for
from service.errors import ErrorKind, ServiceError, not_found
from service.jobs import find
from service.models import AuditEntry, Package


async def size_of(context: Context, sha256: str) -> int:
    """The bytes of a stored package.

    Raises:
        ServiceError: not_found.
    """
    path = context.packages.path(sha256)
    async with context.database.read() as session:
        package = await session.get(Package, sha256)
    if package is None or not path.is_file():
        raise not_found("package", sha256)
    return package.bytes


async def store(context: Context, sha256: str, chunks: AsyncIterator[bytes], *, actor: str) -> tuple[bool, int]:
    """Store an upload; gives whether it is new, and its bytes.

    Raises:
        ServiceError: package_too_large, package_invalid.
    """
    size, num_files = await context.packages.receive(sha256, chunks)
    now = context.clock()
    async with context.database.write() as session:
        row = {"sha256": sha256, "bytes": size, "num_files": num_files, "created_at": now}
        insert = insert_for(session, Package).values(row).on_conflict_do_nothing(index_elements=["sha256"])
        if (await session.execute(insert.returning(Package.sha256))).first() is None:
            return False, size
        detail = {"sha256": sha256, "bytes": size}
        session.add(AuditEntry(time=now, actor=actor, action="package.stored", job_id=None, detail=detail))
    return True, size


async def open_package(context: Context, sha256: str, principal: Principal) -> Path:
    """The package of the attempt's own job.

    Raises:
        ServiceError: not_found, forbidden.
    """
    path = context.packages.path(sha256)
    async with context.database.read() as session:
        job = await find(session, principal.job_id or "")
    if job.spec.get("package") != sha256:
        raise ServiceError(ErrorKind.FORBIDDEN, "The token is for a job with another package.")
    if not path.is_file():
        raise not_found("package", sha256)
    return path
