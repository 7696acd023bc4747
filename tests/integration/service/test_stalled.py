"""A replica that stands still in a transaction, within a message: it keeps its locks until another ends it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import pq
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from structlog.testing import capture_logs

from service import database as database_module
from service.database import APPLICATION_NAME, Database
from service.models import Lease
from service.notify import Hub
from tests.integration.service.conftest import Bench, keep_in_step
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio

STALLED_S = 5.0
STATEMENT_TIMEOUT_MS = 500
LONGER_THAN_ANY_BUFFER = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"


@pytest.fixture
def url(new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(database_module, "STALLED_S", STALLED_S)
    monkeypatch.setattr(database_module, "STATEMENT_TIMEOUT_MS", STATEMENT_TIMEOUT_MS)
    return new_postgres()


def _connect(url: str, name: str) -> psycopg.Connection:
    options = f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c idle_in_transaction_session_timeout=1000"
    return psycopg.connect(url.replace("+psycopg", ""), application_name=name, options=options)


@pytest.fixture(params=[APPLICATION_NAME, "pg_dump"])
def reader(url: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    with closing(_connect(url, request.param)) as connection:
        yield connection


def _with_an_answer_unread(replica: psycopg.Connection) -> str:
    replica.execute("SELECT * FROM leases FOR UPDATE")
    replica.pgconn.send_query(LONGER_THAN_ANY_BUFFER.encode())
    replica.pgconn.flush()
    return "ClientWrite"


def _with_a_question_half_asked(replica: psycopg.Connection) -> str:
    replica.execute("SELECT 1")
    replica.pgconn.enter_pipeline_mode()
    replica.pgconn.send_query_params(b"SELECT * FROM leases FOR UPDATE", None)
    replica.pgconn.send_flush_request()  # done, and the end of the message is still to come
    replica.pgconn.flush()
    return "ClientRead"


@pytest.mark.parametrize("stand_still", [_with_an_answer_unread, _with_a_question_half_asked])
async def test_what_a_replica_has_locked_is_free_again(
    url: str, reader: psycopg.Connection, stand_still: Callable[[psycopg.Connection], str]
) -> None:
    database = Database(url, Hub(1))
    await database.start()
    try:
        async with database.write() as session:
            await session.execute(text("INSERT INTO leases VALUES ('scheduler', 'one', now())"))
        awaited = stand_still(reader)
        backend, begun = reader.info.backend_pid, time.monotonic()
        with closing(_connect(url, "watcher")) as watcher:
            watcher.autocommit = True

            def waits_for_reader() -> bool:
                seen = watcher.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", (backend,)).fetchone()
                return seen == (awaited,)

            wait_for(waits_for_reader, f"{awaited} of a replica that stands still", 10)
            assert await database.end_stalled() == 0, "it may be read yet"
            wait_for(lambda: time.monotonic() - begun > 2 * STALLED_S, "its time", 30)
            assert waits_for_reader(), "no time-out of PostgreSQL ends it"
        locks = select(Lease).with_for_update()
        with pytest.raises(OperationalError, match="statement timeout"):
            async with database.write() as session:
                await session.execute(locks)
        if reader.info.parameter_status("application_name") != APPLICATION_NAME:
            assert await database.end_stalled() == 0, "it is not one of ours"
            return
        assert await database.end_stalled() == 1
        async with database.write() as session:
            assert (await session.execute(locks)).first() is not None
        assert reader.pgconn.status == pq.ConnStatus.OK, "nobody has told the one that stands still"
        with pytest.raises(psycopg.OperationalError):
            reader.execute("SELECT 1")
    finally:
        await database.close()


async def test_where_nobody_may_be_ended_the_rounds_go_on_and_it_is_told_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: Database) -> int:
        raise ProgrammingError("SELECT", {}, Exception("permission denied"))

    monkeypatch.setattr(Database, "end_stalled", refuse)
    keep_in_step(monkeypatch, bench.clock)
    monkeypatch.setattr("service.scheduling.loop.NOTE_S", 0.0)
    await bench.agent.sync()
    with capture_logs() as logs:
        rounds = asyncio.create_task(bench.loop.run())
        for name in ("digits", "another"):
            await bench.submit(name)
            until = {"wait": 25, "for": "starting"}
            assert (await bench.get(f"/jobs/{name}", **until))["status"] == "starting"
        rounds.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await rounds
    told = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert told == ["stalled_transactions_cannot_be_ended"]
