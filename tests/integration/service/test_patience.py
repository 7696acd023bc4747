"""A PostgreSQL that stands still holds nobody for longer than a transaction may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from service import database as database_module
from service.database import Database
from service.notify import Hub
from service.patience import DatabaseSilent, in_time, watch_connections
from tests.postgres import PostgresServer, new_database, postgres_server

pytestmark = pytest.mark.anyio

SHORT_S = 1.0
PSYCOPG_GIVES_UP_S = 5.0
"""Its first look at whether a cancelled statement has ended."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as found:
        yield found


async def ask(database: Database, statement: str = "SELECT 1") -> None:
    async with database.read() as session:
        await session.execute(text(statement))


async def change(database: Database) -> None:
    async with database.write() as session:
        await session.execute(text("CREATE TABLE IF NOT EXISTS kept (number int)"))


@pytest.mark.parametrize("use", [ask, change])
async def test_whoever_asks_a_server_that_stands_still_hears_so_in_time(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, use: Callable[[Database], Awaitable[None]]
) -> None:
    database = Database(new_database(server.url), Hub(1))
    await ask(database)
    with server.stopped(), monkeypatch.context() as patched:
        patched.setattr(database_module, "ANSWER_TIMEOUT_S", SHORT_S)
        began = time.monotonic()
        with pytest.raises(DatabaseSilent, match="no answer within 1 s"):
            await use(database)
        assert time.monotonic() - began < PSYCOPG_GIVES_UP_S
    await use(database)
    await database.close()


async def test_a_connection_that_was_given_back_is_not_closed_under_another(new_postgres: Callable[[], str]) -> None:
    engine = create_async_engine(new_postgres(), pool_size=1, max_overflow=0)
    watch_connections(engine)
    is_given_back = asyncio.Event()

    async def use_it() -> None:
        await is_given_back.wait()
        async with engine.connect() as connection:
            await connection.execute(text(f"SELECT pg_sleep({SHORT_S})"))

    other = asyncio.create_task(use_it())
    async with in_time(SHORT_S / 2):
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        is_given_back.set()
        await asyncio.sleep(SHORT_S * 0.75)
    await other
    await engine.dispose()


async def test_an_error_that_comes_in_time_stays_what_it_is(new_postgres: Callable[[], str]) -> None:
    database = Database(new_postgres(), Hub(1))
    with pytest.raises(OperationalError, match="terminating connection"):
        await ask(database, "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(TimeoutError, match="one's own"):
        async with database.read():
            raise TimeoutError("one's own")
    await ask(database)
    await database.close()
