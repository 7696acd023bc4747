"""Brings a service up and down: home, keys, database, leftovers of a crash, the scheduling loop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import structlog
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from service.auth import Authority, Role, load_key
from service.backup.swap import settle_restore
from service.clock import Clock, utc_now
from service.context import Context
from service.database import Database
from service.heartbeat import Heartbeat
from service.job_secrets import Redactors
from service.leases import release_leases
from service.limits import Limits
from service.logs import LogPosition, LogStore
from service.models import IS_NOT_FINAL, Job
from service.notify import Hub
from service.packages import OLDEST_UPLOAD_S, PackageStore
from service.readiness import Examiner
from service.rotation import seal_anew
from service.rounds import WatchedLoop
from service.settings import Settings
from service.storage import StorageDesk
from service.stored import open_store
from service.sweep import Sweeper
from service.vault import open_vault
from service.vigil import rearm_unheard
from service.webhooks.dispatch import Dispatcher
from service.webhooks.outbox import ARE_ON
from service.webhooks.sending import Sender

ADMIN_TOKEN_FILE = "token"
CLUSTER_TOKEN_FILE = "cluster-token"
SCRAPER_TOKEN_FILE = "scraper-token"

SAFETY_POLL_INTERVAL = timedelta(seconds=5)
"""Where every change is notified, looking again is only a safety net."""

RELEASE_S = 2.0
"""An end waits so long for the database: whoever stops services kills them soon."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Running:
    """A started service."""

    context: Context
    scheduling: WatchedLoop
    dispatcher: Dispatcher
    sweeper: Sweeper
    examiner: Examiner
    admin_token_id: str
    """Of the token in the home."""

    async def make_login_code(self) -> str:
        """A code that signs a browser in as the home's admin, once; for whoever may read the home only."""
        async with self.context.database.write() as session:
            return await self.context.authority.make_login_code(session, self.admin_token_id, self.context.clock())


@asynccontextmanager
async def run_service(settings: Settings, *, clock: Clock = utc_now, with_loop: bool = True) -> AsyncIterator[Running]:
    """A started service; stopped at the end. Tests step the loop by hand (`with_loop=False`).

    Raises:
        HomeInUse: another service works on the same SQLite database.
        UserError: the package that speaks to the storage is missing; a restore into this home was cut off; PostgreSQL
            is not there, or refuses.
    """
    storage = settings.storage_uri
    local = [Path(storage.path)] if storage.is_local else []
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    settle_restore(settings.home)
    for folder in (settings.home, settings.home / "logs", settings.home / "packages", *local):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not storage.is_local:
        open_store(storage)  # a missing package is told now, not when somebody wants a file
    # Nobody else writes to a SQLite database; other replicas' writes are notified while the listener stands.
    safety_s = SAFETY_POLL_INTERVAL.total_seconds()
    hub = Hub(safety_s if settings.is_sqlite else settings.poll_interval.total_seconds(), safety_s)
    database = Database(settings.database_url, hub, info={ARE_ON: settings.webhooks})
    await database.start()
    try:
        vault = open_vault(settings.home, settings.secret_keys_file)
        context = Context(
            settings=settings,
            database=database,
            hub=hub,
            authority=Authority(load_key(settings.home)),
            vault=vault,
            redactors=Redactors(vault),
            logs=LogStore(settings.home / "logs", settings.log_segment_bytes),
            packages=PackageStore(settings.home / "packages", settings.max_package_bytes),
            storage=StorageDesk(storage),
            limits=Limits(
                settings.requests_per_second,
                settings.request_burst,
                settings.streams_per_user,
                settings.failed_sign_ins_per_minute,
            ),
            heartbeat=Heartbeat(),
            clock=clock,
            holder=secrets.token_hex(8),
        )
        admin_token_id = await _prepare(context)
        scheduling = WatchedLoop(context)
        dispatcher = Dispatcher(context, Sender(settings.webhook_networks, settings.webhook_ca_file))
        sweeper = Sweeper(context)
        loops = [scheduling.run, sweeper.run, *([dispatcher.run] if settings.webhooks else [])] if with_loop else []
        tasks = [asyncio.create_task(run()) for run in loops]
        try:
            yield Running(context, scheduling, dispatcher, sweeper, Examiner(context), admin_token_id)
        finally:
            hub.close()
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await _release_roles(context)
    finally:
        await database.close()


async def _release_roles(context: Context) -> None:
    """Let another replica schedule and sweep at once. Where the database does not answer, in half a minute."""
    if context.settings.is_sqlite:
        return
    try:
        async with asyncio.timeout(RELEASE_S), context.database.write() as session:
            await release_leases(session, context.holder)
    except (DBAPIError, OSError) as error:
        log.warning("roles_not_released", error=repr(error)[:500])


async def _prepare(context: Context) -> str:
    """Tokens, and what a crash may have left; gives the id of the admin's token."""
    now = context.clock()
    home = context.settings.home
    async with context.database.write() as session:
        admin = await context.authority.ensure_token(session, home / ADMIN_TOKEN_FILE, Role.ADMIN, now)
        await context.authority.ensure_token(session, home / CLUSTER_TOKEN_FILE, Role.CLUSTER, now)
        await context.authority.ensure_token(session, home / SCRAPER_TOKEN_FILE, Role.SCRAPER, now)
        await seal_anew(session, context.vault)
        if context.settings.is_sqlite:
            await release_leases(session)  # the process before this one is dead, however it ended
    await rearm_unheard(context)
    context.packages.remove_parts(0 if context.settings.is_sqlite else OLDEST_UPLOAD_S)
    if context.settings.is_sqlite:
        # Elsewhere another replica may be writing just there; whoever appends next cuts the file himself.
        await _cut_log_tails(context)
    return admin


async def _cut_log_tails(context: Context) -> None:
    """Remove log lines that were appended but whose batch was never acknowledged; it will be sent again."""
    statement = select(Job.id, Job.log_segment, Job.log_offset).where(IS_NOT_FINAL)
    async with context.database.read() as session:
        rows = (await session.execute(statement)).all()
    for job_id, segment, offset in rows:
        removed = await asyncio.to_thread(context.logs.cut_tail, job_id, LogPosition(segment, offset))
        if removed:
            log.info("log_tail_cut", job=job_id, bytes=removed)
