"""The database: SQLite with one writer, or PostgreSQL; reading and writing transactions as context managers."""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Connection, Table, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from service.database_file import MARK, DatabaseFile, DatabaseLost
from service.first_connection import wait_for_postgres
from service.listen import Replicas
from service.migrations.upgrade import upgrade_to_head
from service.models import Base
from service.notify import Hub
from service.patience import in_time, watch_connections
from service.sqlite_driver import open_connection

SQLITE_READERS = 4
POSTGRES_CONNECTIONS = 10
PING_AFTER_S = 1.0
STATEMENT_TIMEOUT_MS = 10_000
IDLE_IN_TRANSACTION_MS = 15_000
"""How long PostgreSQL lets a transaction wait for its client: else a replica that was stopped or unplugged inside one
would keep its locks for ever. More than ANSWER_TIMEOUT_S: a replica that lives gives up by itself before."""
STALLED_S = IDLE_IN_TRANSACTION_MS / 1000
"""The same for one whose client stands still in the middle of a message: PostgreSQL cancels no statement while it sends
or receives one, and through a local socket or a pooler no limit of TCP ends that."""
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT = 10, 5, 3
UNACKNOWLEDGED_MS = 25_000
"""As long as the keepalives take to find the other end gone; for bytes under way, during which none are sent."""
APPLICATION_NAME = "rubato service"
"""How every connection of a service calls itself: who lives on a PostgreSQL is seen by it."""
ANSWER_TIMEOUT_S = 12.0
"""Longest transaction, with its wait for a connection. A PostgreSQL that stands still, or whose host is gone without a
word, does not keep its own limit for statements."""
_ALWAYS: dict[str, Any] = {"max_overflow": 0, "hide_parameters": True}
"""Errors are logged, and what statements carry may be secret: environments, addresses of webhooks."""

_END_STALLED = text(
    "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()"
    " AND usename = session_user AND application_name = :name"
    " AND (wait_event = 'ClientWrite' OR wait_event = 'ClientRead' AND state = 'active')"
    " AND query_start < clock_timestamp() - make_interval(secs => :stalled_s)"
)


class HomeInUse(Exception):
    """Another service already works on this SQLite database."""


class Database:
    """Engines, transactions, and the lock that keeps a second service off the same SQLite file."""

    def __init__(self, url: str, hub: Hub, *, info: Mapping[str, Any] | None = None) -> None:
        """`info`: what each session knows of the settings."""
        self._url = url
        self._info = dict(info or {})
        self._hub = hub
        self.is_sqlite = url.startswith("sqlite")
        self._replicas = None if self.is_sqlite else Replicas(url, hub)
        self._lock_fd: int | None = None
        self.file: DatabaseFile | None = None
        """Of SQLite, once started."""
        # SQLite has one writer at a time anyway. Waiting for it here instead of in SQLite's busy handler is fair, and a
        # writer that never meets SQLITE_BUSY needs no retries.
        self._write_turn: asyncio.Lock | None = asyncio.Lock() if self.is_sqlite else None
        self._writing_since: float | None = None
        if self.is_sqlite:
            connect = partial(open_connection, url)
            self._writer = create_async_engine(url, async_creator=connect, pool_size=1, **_ALWAYS)
            self._reader = create_async_engine(url, async_creator=connect, pool_size=SQLITE_READERS, **_ALWAYS)
            _configure_sqlite(self._writer, begin="BEGIN IMMEDIATE")
            _configure_sqlite(self._reader, begin="BEGIN")
        else:
            self._writer = self._reader = create_async_engine(
                url,
                pool_size=POSTGRES_CONNECTIONS,
                connect_args=_postgres_arguments(),
                **_ALWAYS,
            )
            watch_connections(self._writer)
            _ping_idle(self._writer)

    async def start(self) -> None:
        """Take the file lock (SQLite) and bring the tables up to date.

        Raises:
            HomeInUse: another service holds the lock.
            DatabaseLost: the file is damaged, or gone or empty although there was one.
            UserError: PostgreSQL is not there, or refuses; somebody holds a lock on a table that is to be migrated.
        """
        if self.is_sqlite:
            self._lock_fd = hold_file_lock(self._url)
            self.file = self._check_file_before_start(self._lock_fd)
        else:
            _, arguments = self._writer.dialect.create_connect_args(make_url(self._url))
            await wait_for_postgres({**arguments, **_postgres_arguments()})
        with self._judged():
            async with self._writer.begin() as connection:
                await connection.run_sync(upgrade_to_head)
        if self.file is not None and self._lock_fd is not None:
            self.file.begin()
            os.pwrite(self._lock_fd, f"{os.getpid()}\n{MARK}\n".encode(), 0)
        if self._replicas is not None:
            self._replicas.start()

    def _check_file_before_start(self, lock_fd: int) -> DatabaseFile:
        file = DatabaseFile(Path(make_url(self._url).database or ""))
        try:
            file.check_before_start(os.pread(lock_fd, 64, 0).decode(errors="replace"))
        except DatabaseLost:
            os.close(lock_fd)  # with its mark: the next start is refused as well
            self._lock_fd = None
            raise
        return file

    def check_file(self) -> None:
        """Look whether the file of SQLite is still there.

        Raises:
            DatabaseLost: it is not.
        """
        if self.file is not None:
            self.file.check()

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Tell a damaged file from a busy database."""
        try:
            yield
        except DBAPIError as error:
            if self.file is not None:
                self.file.judge(error.orig)
            raise

    async def close(self) -> None:
        """Give the connections and the lock back."""
        if self._replicas is not None:
            await self._replicas.close()
        await self._reader.dispose()
        if self._writer is not self._reader:
            await self._writer.dispose()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        """One consistent look; nothing written in it lasts.

        Raises:
            DatabaseSilent: PostgreSQL did not answer in time.
            DatabaseLost: the file of SQLite is damaged.
        """
        reading = AsyncSession(self._reader, expire_on_commit=False, autoflush=False, info=self._info)
        async with self._in_time(), reading as session:
            with self._judged():
                yield session

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        """One transaction, rolled back on any exception; notifications go out after the commit.

        Raises:
            DatabaseSilent: PostgreSQL did not answer in time. As after any failure of a commit, it may be stored.
            DatabaseLost: the file of SQLite is gone or damaged; nothing of it is acknowledged.
        """
        if self._write_turn is not None:
            async with self._write_turn, self._timed(), self._transaction() as session:
                yield session
        else:
            async with self._in_time(), self._transaction() as session:
                yield session

    @property
    def writing_for(self) -> timedelta:
        """How long SQLite's one writer has been at its transaction, of which nobody has seen anything yet."""
        since = self._writing_since
        return timedelta(0) if since is None else timedelta(seconds=time.monotonic() - since)

    @asynccontextmanager
    async def _timed(self) -> AsyncIterator[None]:
        self._writing_since = time.monotonic()
        try:
            yield
        finally:
            self._writing_since = None

    async def now(self) -> datetime | None:
        """What the clock of the server says; None: a file has none."""
        if self.is_sqlite:
            return None
        async with self.read() as session:
            told: datetime = (await session.execute(text("SELECT clock_timestamp()"))).scalar_one()
        return told

    async def end_stalled(self) -> int:
        """End the transactions of replicas that stand still in the middle of a message; gives how many.

        They would keep their locks for as long as they stand still.
        """
        if self.is_sqlite:
            return 0
        async with self.read() as session:
            ended = await session.execute(_END_STALLED, {"name": APPLICATION_NAME, "stalled_s": STALLED_S})
            return int(ended.scalar_one())

    def _in_time(self) -> AbstractAsyncContextManager[None]:
        # SQLite is in this process: it waits for a disk at most, and its one writer must not be abandoned half way.
        return nullcontext() if self.is_sqlite else in_time(ANSWER_TIMEOUT_S)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(self._writer, expire_on_commit=False, info=self._info) as session:
            with self._judged():
                async with session.begin():
                    yield session
                    if self._replicas is not None:
                        await self._replicas.tell(session, session.info.get("topics", ()))
            self.check_file()  # what went into a file that nobody can open any more is not stored
            self._hub.publish(session.info.get("topics", ()))
            for tell in session.info.get("after_commit", ()):
                tell()


def hold_file_lock(url: str) -> int:
    """Lock a SQLite database against another service; gives the descriptor that holds the lock.

    Raises:
        HomeInUse: another service holds it.
    """
    database = make_url(url).database
    if not database or database == ":memory:":
        raise ValueError("RUBATO_DATABASE_URL needs a file: sqlite+aiosqlite:////absolute/path/rubato.db")
    path = Path(f"{database}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # flock ends with the process, however it dies: a stale lock cannot stay behind.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").partition("\n")[0] or "unknown"
        os.close(descriptor)
        raise HomeInUse(
            f"another service (pid {holder}) already works on {database}. Stop it first (rubato down), "
            "or give this one another RUBATO_HOME and port."
        ) from None
    mark = os.pread(descriptor, 64, 0).decode(errors="replace").partition("\n")[2]
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n{mark}".encode(), 0)
    return descriptor


def insert_for(session: AsyncSession, table: type[Base] | Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that knows ON CONFLICT; both databases have it, SQLAlchemy spells it by dialect."""
    return insert_of(session.get_bind().dialect.name, table)


def insert_of(dialect: str, table: type[Base] | Table) -> sqlite.Insert | postgresql.Insert:
    """The same, of a dialect by its name."""
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def _postgres_arguments() -> dict[str, Any]:
    """How to connect: each end finds out by itself that the other one is gone."""
    of_session = {
        "statement_timeout": STATEMENT_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_MS,
        "timezone": "UTC",
        "tcp_keepalives_idle": KEEPALIVE_IDLE_S,
        "tcp_keepalives_interval": KEEPALIVE_INTERVAL_S,
        "tcp_keepalives_count": KEEPALIVE_COUNT,
        "tcp_user_timeout": UNACKNOWLEDGED_MS,
    }
    return {
        "options": " ".join(f"-c {name}={value}" for name, value in of_session.items()),
        "application_name": APPLICATION_NAME,
        "keepalives": 1,
        "keepalives_idle": KEEPALIVE_IDLE_S,
        "keepalives_interval": KEEPALIVE_INTERVAL_S,
        "keepalives_count": KEEPALIVE_COUNT,
        "tcp_user_timeout": UNACKNOWLEDGED_MS,
    }


def _ping_idle(engine: AsyncEngine) -> None:
    """Look whether a connection that lay idle still stands, before it is given out; one in steady use is not asked.

    What `pool_pre_ping` does every time: under load a round trip for each transaction.
    """
    pool, dialect = engine.sync_engine, engine.dialect

    @event.listens_for(pool, "checkin")
    def _on_checkin(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["idle_since"] = time.monotonic()

    @event.listens_for(pool, "checkout")
    def _on_checkout(connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        idle_since = record.info.get("idle_since")
        if idle_since is None or time.monotonic() - idle_since < PING_AFTER_S:
            return
        try:
            dialect.do_ping(connection)
        except psycopg.Error as error:
            # The pool drops it, and all that are older than this moment, and connects anew.
            raise InvalidatePoolError("the connection did not outlive its rest") from error


def _configure_sqlite(engine: AsyncEngine, *, begin: str) -> None:
    @event.listens_for(engine.sync_engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        # The driver's own transaction handling is off; the begin event below speaks instead.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            # FULL: an acknowledged commit survives a power cut, not only the death of the process.
            "synchronous=FULL",
            "foreign_keys=ON",
            "busy_timeout=5000",
            "cache_size=-8000",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "invalidate")
    def _on_invalidate(connection: Any, _record: Any, _error: BaseException | None) -> None:
        # Of a transaction that was cancelled. Closing does not end it as long as anything, such as the traceback, holds
        # a cursor of it: until that is collected nobody else could write.
        connection.rollback()

    @event.listens_for(engine.sync_engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)
