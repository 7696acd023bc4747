"""Packages as use-cases: who may store and fetch them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import Principal
from service.context import Context
from service.database import insert_for
from service.errors import ErrorKind, ServiceError, not_found
from service.jobs import find
from service.models import AuditEntry, Job, Package

package_of_job = Job.spec["package"].as_string()


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
    async with context.packages.receive(sha256, chunks) as upload:
        size, now = upload.num_bytes, context.clock()
        async with context.database.write() as session:
            row = {"sha256": sha256, "bytes": size, "num_files": upload.num_files, "created_at": now}
            insert = insert_for(session, Package).values(row)
            # Also where it was there: who uploads it is about to use it, and unused ones go.
            renewed = insert.on_conflict_do_update(index_elements=["sha256"], set_={"created_at": now})
            is_new = await session.get(Package, sha256) is None
            await session.execute(renewed)
            await upload.keep()  # behind the row, which whoever removes the package holds
            if is_new:
                detail = {"sha256": sha256, "bytes": size}
                session.add(AuditEntry(time=now, actor=actor, action="package.stored", job_id=None, detail=detail))
    return is_new, size


async def find_unused(context: Context, before: datetime, limit: int) -> list[str]:
    """Packages that were stored before then and that no job has (any more)."""
    used = select(package_of_job).where(package_of_job.is_not(None))
    unused = select(Package.sha256).where(Package.created_at < before, Package.sha256.not_in(used))
    async with context.database.read() as session:
        return list(await session.scalars(unused.order_by(Package.created_at).limit(limit)))


async def remove_unused(context: Context, session: AsyncSession, sha256: str, before: datetime) -> bool:
    """Remove such a package, unless somebody uses it meanwhile; gives whether it is gone.

    The row is held from before the look until the file is gone: a submit that names it waits, and so does an upload.
    """
    package = await session.get(Package, sha256, with_for_update=True)
    if package is None or package.created_at >= before:
        return False
    if await session.scalar(select(Job.id).where(package_of_job == sha256).limit(1)) is not None:
        return False
    await session.delete(package)
    await session.flush()
    await asyncio.to_thread(context.packages.path(sha256).unlink, missing_ok=True)
    return True


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
