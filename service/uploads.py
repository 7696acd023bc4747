"""Packages as use-cases: who may store and fetch them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
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
from service.packages import OLDEST_UPLOAD_S, Aside
from service.threads import HOME_FILES, run_in

Transaction = Callable[[], AbstractAsyncContextManager[AsyncSession]]
"""Begins a write, which is committed behind its last line."""
package_of_job = Job.spec["package"].as_string()


async def size_of(context: Context, sha256: str) -> int:
    """The bytes of a stored package.

    Raises:
        ServiceError: not_found.
    """
    context.packages.path(sha256)
    async with context.database.read() as session:
        package = await session.get(Package, sha256)
    if package is None or not await context.packages.holds(sha256):
        raise not_found("package", sha256)
    return package.bytes


async def store(context: Context, sha256: str, chunks: AsyncIterator[bytes], *, actor: str) -> tuple[bool, int]:
    """Store an upload; gives whether it is new, and its bytes.

    Raises:
        ServiceError: package_too_large, package_invalid, not_ready (it was removed in the same moment).
    """
    async with context.packages.receive(sha256, chunks) as upload:
        # Before its row: no transaction waits for a disk. Without the row nobody finds the file.
        await upload.keep()
        size, now = upload.num_bytes, context.clock()
        async with context.database.write() as session:
            row = {"sha256": sha256, "bytes": size, "num_files": upload.num_files, "created_at": now}
            insert = insert_for(session, Package).values(row)
            # Also where it was there: who uploads it is about to use it, and unused ones go.
            renewed = insert.on_conflict_do_update(index_elements=["sha256"], set_={"created_at": now})
            is_new = await session.get(Package, sha256) is None
            await session.execute(renewed)
            if is_new:
                detail = {"sha256": sha256, "bytes": size}
                session.add(AuditEntry(time=now, actor=actor, action="package.stored", job_id=None, detail=detail))
    # From the row on nobody removes it; whoever did so just before may have taken this very file.
    if not await context.packages.holds(sha256):
        raise ServiceError(ErrorKind.NOT_READY, "An old copy of the package was removed just now; upload it again.")
    return is_new, size


async def find_unused(context: Context, before: datetime, limit: int) -> list[str]:
    """Packages that were stored before then and that no job has (any more)."""
    used = select(package_of_job).where(package_of_job.is_not(None))
    unused = select(Package.sha256).where(Package.created_at < before, Package.sha256.not_in(used))
    async with context.database.read() as session:
        return list(await session.scalars(unused.order_by(Package.created_at).limit(limit)))


async def remove_unused(context: Context, transaction: Transaction, sha256: str, before: datetime) -> bool:
    """Remove such a package, unless somebody uses it meanwhile; gives whether it is gone.

    The row is held from the look until it is gone: a submit that names it waits, and finds out. The file goes after
    that, and no lock is held while a disk is waited for:

    1. *Put it aside*, under a name that nobody else uses.
    2. *Look* whether the row is there again: an upload of the same package may have come meanwhile, and the file that
       was put aside may be its.
    3. *Bring it back* then, else remove it.

    An upload writes its file, then its row, then looks for the file. Step 2 of a removal that took the file after that
    look finds the row. What a crash leaves behind, `finish_removals` takes.
    """
    async with transaction() as session:
        package = await session.get(Package, sha256, with_for_update=True)
        if package is None or package.created_at >= before:
            return False
        if await session.scalar(select(Job.id).where(package_of_job == sha256).limit(1)) is not None:
            return False
        await session.delete(package)
    await _remove_file(context, sha256)
    return True


async def finish_removals(context: Context) -> None:
    """Go on with the removals that a crash cut off, and remove files that one left without their row.

    A file is old by then: that of an upload gets its row at once. And the database must know more of the old files than
    it does not: one that is empty, or of another home, knows none, or few.
    """
    for aside in await run_in(HOME_FILES, context.packages.list_aside):
        await _settle(context, aside)
    old = await run_in(HOME_FILES, context.packages.list_old, OLDEST_UPLOAD_S)
    async with context.database.read() as session:
        known = set(await session.scalars(select(Package.sha256)))
    unknown = [sha256 for sha256 in old if sha256 not in known]
    if 2 * len(unknown) >= len(old):
        return
    for sha256 in unknown:
        await _remove_file(context, sha256)


async def _remove_file(context: Context, sha256: str) -> None:
    """Remove the file of a package that has no row, unless it has one again by then."""
    aside = await run_in(HOME_FILES, context.packages.put_aside, sha256)
    if aside is not None:
        await _settle(context, aside)


async def _settle(context: Context, aside: Aside) -> None:
    async with context.database.read() as session:
        is_wanted = await session.get(Package, aside.sha256) is not None
    await run_in(HOME_FILES, context.packages.settle, aside, is_wanted=is_wanted)


async def open_package(context: Context, sha256: str, principal: Principal) -> Path:
    """The package of the attempt's own job.

    Raises:
        ServiceError: not_found, forbidden.
    """
    async with context.database.read() as session:
        job = await find(session, principal.job_id or "")
    if job.spec.get("package") != sha256:
        raise ServiceError(ErrorKind.FORBIDDEN, "The token is for a job with another package.")
    if not await context.packages.holds(sha256):
        raise not_found("package", sha256)
    return context.packages.path(sha256)
