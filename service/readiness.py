"""Whether the service can do its work, check by check. Told to everybody, so no address and no error text is in it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog
from sqlalchemy import select, text, update

from service.clusters import is_online
from service.context import Context
from service.errors import ServiceError
from service.leases import LIFETIME, is_held
from service.migrations.upgrade import head_revision, knows_revision
from service.models import IS_STANDING, AttemptSecret, Checkpoint, Cluster, Lease, Secret, Webhook
from service.scheduling.loop import LEASE_NAME as SCHEDULER_LEASE
from service.threads import DISK_LOOKS
from service.vault import missing_key

CHECK_S = 3.0
"""A check without an answer for so long has failed; probes commonly wait five."""
FRESH = timedelta(seconds=1)
"""So long one look answers all who ask: anybody may, and each look is a turn of SQLite's one writer."""
STALE_S = 30.0
"""Rounds come once a second; the longest statement takes 15 s."""
LOW_DISK_BYTES = 1_000_000_000
FULL_DISK_BYTES = 64_000_000
"""What the largest package and a report still fit into; below it, writes begin to fail."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    is_ok: bool
    detail: str
    is_required: bool = True
    """Whether the service cannot take requests without it; otherwise only jobs wait."""


@dataclass(frozen=True)
class Readiness:
    """All of them."""

    checks: tuple[Check, ...]

    @property
    def is_ready(self) -> bool:
        """Whether requests can be taken."""
        return all(check.is_ok for check in self.checks if check.is_required)

    @property
    def status(self) -> str:
        """ok; degraded: requests are taken, but something is wrong; failing."""
        if not self.is_ready:
            return "failing"
        return "ok" if all(check.is_ok for check in self.checks) else "degraded"


class DiskLook:
    """How much room a disk has: one look at a time, however often it is asked. One that hangs is waited for by all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._look: Future[int] | None = None

    async def free_bytes(self) -> int:
        """What is free for those who may write there.

        Raises:
            OSError: the folder cannot be looked at.
        """
        if self._look is None or self._look.done():
            self._look = DISK_LOOKS.submit(lambda: shutil.disk_usage(self._folder).free)
        # Shielded: whoever gives up takes nothing away from the others.
        return await asyncio.shield(asyncio.wrap_future(self._look))


class Examiner:
    """Tells whether a service is ready, and looks at most once within `FRESH`, however many ask."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._look: asyncio.Task[tuple[Check, ...]] | None = None
        self._looked_at = context.clock()
        self._disk = DiskLook(context.settings.home)

    async def examine(self) -> Readiness:
        """What a look finds that is under way, or found a moment ago, or begins now."""
        if self._look is None or (self._look.done() and not self._is_fresh()):
            self._look = asyncio.create_task(self._look_now(), name="readiness")
        # Shielded: who leaves early takes nothing away from the others.
        checks = await asyncio.shield(self._look)
        if self._context.hub.is_closed:
            checks = (Check("service", is_ok=False, detail="is going down"), *checks)
        return Readiness(checks)

    def _is_fresh(self) -> bool:
        # Of a clock that was set back nothing is known.
        return timedelta(0) <= self._context.clock() - self._looked_at < FRESH

    async def _look_now(self) -> tuple[Check, ...]:
        checks = await _look_at_everything(self._context, self._disk)
        self._looked_at = self._context.clock()
        return checks


async def _look_at_everything(context: Context, disk: DiskLook) -> tuple[Check, ...]:
    """A look that fails or hangs is a finding, not an error."""
    looks: tuple[tuple[str, bool, Callable[[Context], Awaitable[Check]]], ...] = (
        ("database", True, _look_at_database),
        ("migrations", True, _look_at_migrations),
        ("disk", True, lambda _: _look_at_disk(disk)),
        ("storage", False, _look_at_storage),
        ("secrets", False, _look_at_secrets),
        ("scheduler", False, _look_at_scheduler),
        ("agent", False, _look_at_agents),
    )
    return tuple([await _bounded(name, is_required, look(context)) for name, is_required, look in looks])


async def _bounded(name: str, is_required: bool, look: Awaitable[Check]) -> Check:
    try:
        async with asyncio.timeout(CHECK_S):
            return await look
    except TimeoutError:
        return Check(name, is_ok=False, detail=f"no answer within {CHECK_S:g} s", is_required=is_required)
    except Exception as error:
        log.warning("readiness_check_failed", check=name, error=str(error).splitlines()[:1])
        detail = f"failed ({type(error).__name__}); the service's log says more"
        return Check(name, is_ok=False, detail=detail, is_required=is_required)


async def _look_at_database(context: Context) -> Check:
    async with context.database.write() as session:
        # Of a read-only replica or file, a write is refused also where it would change nothing.
        await session.execute(update(Lease).where(Lease.name == "nobody").values(holder="nobody"))
    return Check("database", is_ok=True, detail="reachable and writable")


async def _look_at_migrations(context: Context) -> Check:
    async with context.database.read() as session:
        found = await session.scalar(text("SELECT version_num FROM alembic_version"))
    newest = head_revision()
    if found == newest:
        return Check("migrations", is_ok=True, detail=f"at {found}")
    # A newer release has migrated, as in a rolling update: this replica is to be replaced, not taken away.
    is_behind = found is None or knows_revision(str(found))
    detail = f"the database is at {found}, this release is at {newest}"
    return Check("migrations", is_ok=False, detail=detail, is_required=is_behind)


async def _look_at_disk(disk: DiskLook) -> Check:
    free = await disk.free_bytes()
    detail = f"{free / 1e9:.1f} GB free"
    if free < FULL_DISK_BYTES:
        return Check("disk", is_ok=False, detail=f"{detail}; logs and packages cannot be stored")
    if free < LOW_DISK_BYTES:
        return Check("disk", is_ok=False, detail=f"{detail}; it will be full soon", is_required=False)
    return Check("disk", is_ok=True, detail=detail)


async def _look_at_storage(context: Context) -> Check:
    newest = select(Checkpoint.job_id).where(IS_STANDING).order_by(Checkpoint.id.desc()).limit(1)
    async with context.database.read() as session:
        job_id = await session.scalar(newest)
    if job_id is None:
        return Check("storage", is_ok=True, detail="no checkpoint was told of yet")
    try:
        holds = await context.storage.holds(job_id)
    except ServiceError as error:
        log.warning("readiness_check_failed", check="storage", error=error.message)
        detail = "does not answer: checkpoints cannot be downloaded, pinned or deleted; the service's log says more"
        return Check("storage", is_ok=False, detail=detail, is_required=False)
    if not holds:
        detail = "the newest checkpoint is not there: service and workers must see the same RUBATO_STORAGE"
        return Check("storage", is_ok=False, detail=detail, is_required=False)
    return Check("storage", is_ok=True, detail="holds the newest checkpoint")


async def _look_at_secrets(context: Context) -> Check:
    vault = context.vault
    if vault.fault:
        return Check("secrets", is_ok=False, detail=f"cannot be used: {vault.fault}", is_required=False)
    keys: set[str] = set()
    async with context.database.read() as session:
        for table in (Secret, AttemptSecret, Webhook):
            keys |= set((await session.scalars(select(table.key_id).distinct())).all())
    missing = sorted(key for key in keys if not vault.knows(key))
    if missing:
        return Check("secrets", is_ok=False, detail=missing_key(missing[0]), is_required=False)
    return Check("secrets", is_ok=True, detail="their key is there")


async def _look_at_scheduler(context: Context) -> Check:
    out_of_step = context.heartbeat.out_of_step
    if out_of_step is not None:
        detail = f"is at rest: {out_of_step}; synchronise both machines (NTP), it then goes on by itself"
        return Check("scheduler", is_ok=False, detail=detail, is_required=False)
    age = context.heartbeat.age_s
    if age is None:
        return Check("scheduler", is_ok=False, detail="has not run yet", is_required=False)
    fault = context.heartbeat.fault
    if fault is not None:
        detail = f"its last round failed ({fault}), {age:.1f} s ago; the service's log says more"
        return Check("scheduler", is_ok=False, detail=detail, is_required=False)
    detail = f"its last round ended {age:.1f} s ago"
    async with context.database.read() as session:
        lease = await session.get(Lease, SCHEDULER_LEASE)
    if lease is not None and lease.holder != context.holder and is_held(lease.expires_at, context.clock(), LIFETIME):
        detail += "; another replica decides"
    return Check("scheduler", is_ok=age < STALE_S, detail=detail, is_required=False)


async def _look_at_agents(context: Context) -> Check:
    now = context.clock()
    async with context.database.read() as session:
        clusters = (await session.scalars(select(Cluster).order_by(Cluster.id))).all()
    if not clusters:
        return Check("agent", is_ok=False, detail="none has reported yet: no job can start", is_required=False)
    silent = [cluster.id for cluster in clusters if not is_online(cluster, context.settings, now)]
    if len(silent) == len(clusters):
        return Check("agent", is_ok=False, detail=f"silent: {', '.join(silent)}", is_required=False)
    return Check("agent", is_ok=True, detail=f"{len(clusters) - len(silent)} of {len(clusters)} clusters online")
