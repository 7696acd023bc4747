"""A PostgreSQL that is away, or refuses, when the service starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
import structlog
from sqlalchemy import make_url

from rubato.errors import UserError
from service import first_connection
from service.database import Database
from service.notify import Hub
from tests.postgres import new_database, postgres_server
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio


async def refusal_of(url: str) -> str:
    database = Database(url, Hub(1))
    with pytest.raises(UserError) as raised:
        await database.start()
    await database.close()
    return str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"database": "rubat"}, '"rubat" does not exist'), ({"username": "ruba"}, '"ruba"')],
)
async def test_one_that_refuses_is_not_waited_for(
    new_postgres: Callable[[], str], change: dict[str, str], says: str
) -> None:
    url = make_url(new_postgres()).set(password="hunter2", **change)  # type: ignore[arg-type]
    began = time.monotonic()
    told = await refusal_of(url.render_as_string(hide_password=False))
    assert time.monotonic() - began < first_connection.STARTING_S
    assert f"database {url.database!r}, user {url.username!r}" in told
    assert says in told
    assert "RUBATO_DATABASE_URL" in told
    assert "hunter2" not in told


async def test_one_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_connection, "STARTING_S", 0.1)
    told = await refusal_of("postgresql+psycopg://ada:hunter2@127.0.0.1:1/rubato")
    assert told.startswith("PostgreSQL at 127.0.0.1:1 took no connection for 0.1 s (database 'rubato', user 'ada'): ")
    assert "refused" in told
    assert "host and port in RUBATO_DATABASE_URL" in told
    assert "hunter2" not in told


async def test_one_that_is_only_starting_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_connection, "STARTING_S", 90.0)
    with postgres_server() as server:
        url = new_database(server.url)
        server.end("fast")
        database = Database(url, Hub(1))
        with structlog.testing.capture_logs() as logs:
            starting = asyncio.create_task(database.start())
            await asyncio.to_thread(wait_for, lambda: bool(logs), "a word that the database is not there yet", 30)
            assert not starting.done()
            await asyncio.to_thread(server.start)
            await starting
        assert [line["event"] for line in logs if "database" in line["event"]] == ["database_not_there_yet"]
        assert logs[0]["waiting_s"] == 90.0
        await database.close()
