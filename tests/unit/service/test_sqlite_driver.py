from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from service.sqlite_driver import Connection, open_connection

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    url = f"sqlite+aiosqlite:///{tmp_path / 'a b.db'}"
    made = create_async_engine(url, async_creator=partial(open_connection, url))
    async with made.begin() as connection:
        await connection.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY, name TEXT UNIQUE)"))
    yield made
    await made.dispose()


async def test_statements_give_what_they_ought_to(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        inserted = await connection.execute(text("INSERT INTO things (name) VALUES ('a')"))
        assert (inserted.lastrowid, inserted.rowcount) == (1, 1)
        await connection.execute(text("INSERT INTO things (name) VALUES (:n)"), [{"n": "b"}, {"n": "c"}])
        changed = await connection.execute(text("UPDATE things SET name = name || '!' WHERE id > 1"))
        assert changed.rowcount == 2
        returned = await connection.execute(text("DELETE FROM things WHERE id = 3 RETURNING name"))
        assert returned.all() == [("c!",)]
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT id, name FROM things ORDER BY id"))
        assert list(found.keys()) == ["id", "name"]
        assert found.all() == [(1, "a"), (2, "b!")]
        assert (await connection.execute(text("SELECT 1 WHERE 0"))).all() == []


async def test_errors_keep_their_kind_and_roll_back(engine: AsyncEngine) -> None:
    async def insert_twice() -> None:
        async with engine.begin() as connection:
            for _ in range(2):
                await connection.execute(text("INSERT INTO things (name) VALUES ('a')"))

    async def ask_nobody() -> None:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT * FROM nobody"))

    with pytest.raises(IntegrityError):
        await insert_twice()
    with pytest.raises(OperationalError, match="nobody"):
        await ask_nobody()
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM things")) == 0


async def test_a_statement_takes_one_visit(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = 0
    ask = Connection._execute

    async def counted(self: Connection, *arguments: object, **named: object) -> object:
        nonlocal visits
        visits += 1
        return await ask(self, *arguments, **named)

    monkeypatch.setattr(Connection, "_execute", counted)
    async with engine.begin() as connection:
        before = visits
        await connection.execute(text("INSERT INTO things (name) VALUES ('a')"))
        assert (await connection.execute(text("SELECT name FROM things"))).all() == [("a",)]
        assert visits - before == 2
