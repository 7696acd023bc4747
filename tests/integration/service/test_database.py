"""Migrations and the two databases."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import DBAPIError, OperationalError, StatementError
from sqlalchemy.ext.asyncio import create_async_engine

from rubato.errors import UserError
from service import database as database_module
from service.database import Database, HomeInUse
from service.migrations import upgrade
from service.migrations.upgrade import alembic_config, head_revision
from service.models import Base, Package
from service.notify import Hub, notify
from service.patience import DatabaseSilent
from tests.cut_off import Cut

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(database_url: str, tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(database_url or f"sqlite+aiosqlite:///{tmp_path / 'rubato.db'}", Hub(1))
    await database.start()
    yield database
    await database.close()


async def _run(database: Database, function: Any) -> Any:
    async with database.write() as session:
        return await (await session.connection()).run_sync(function)


async def test_migrations_make_exactly_the_models(database: Database) -> None:
    def compare(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, Base.metadata))

    assert await _run(database, compare) == []


async def test_migrations_go_down_and_up_again(database: Database) -> None:
    def down_and_up(connection: Connection) -> tuple[set[str], set[str], str]:
        command.downgrade(alembic_config(connection), "base")
        empty = set(inspect(connection).get_table_names())
        command.upgrade(alembic_config(connection), "head")
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
        return empty, set(inspect(connection).get_table_names()), version

    empty, full, version = await _run(database, down_and_up)
    assert empty == {"alembic_version"}
    assert full == set(Base.metadata.tables) | {"alembic_version"}
    assert version == head_revision()


async def test_people_stay_signed_in_while_tables_change(database: Database) -> None:
    def around(connection: Connection) -> list[Any]:
        command.downgrade(alembic_config(connection), "0001")
        row = {"id": "tok_1", "hmac": "h" * 64, "now": "2026-01-31 12:00:00+00:00"}
        connection.execute(
            text("INSERT INTO tokens (id, name, role, token_hmac, created_at) VALUES (:id, 'a', 'admin', :hmac, :now)"),
            row,
        )
        columns = "secret_hmac, kind, token_id, created_at, expires_at"
        connection.execute(text(f"INSERT INTO sessions ({columns}) VALUES (:hmac, 'browser', :id, :now, :now)"), row)
        command.upgrade(alembic_config(connection), "head")
        return list(connection.execute(text("SELECT token_id FROM sessions JOIN tokens ON id = token_id")))

    assert await _run(database, around) == [("tok_1",)]


async def test_every_constraint_has_a_name(database: Database) -> None:
    def names(connection: Connection) -> list[Any]:
        inspector = inspect(connection)
        found = []
        for table in Base.metadata.tables:
            found.append(inspector.get_pk_constraint(table)["name"])
            found += [item["name"] for item in inspector.get_foreign_keys(table)]
            found += [item["name"] for item in inspector.get_unique_constraints(table)]
        return found

    found = await _run(database, names)
    assert all(name and name.split("_")[0] in ("pk", "fk", "uq") for name in found), found


async def test_times_come_back_aware_and_equal(database: Database) -> None:
    moment = datetime(2026, 3, 29, 3, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    async with database.write() as session:
        session.add(Package(sha256="a" * 64, bytes=1, num_files=1, created_at=moment))
    async with database.read() as session:
        found = await session.get_one(Package, "a" * 64)
    assert found.created_at == moment
    assert found.created_at.tzinfo is UTC
    with pytest.raises(StatementError, match="naive time"):
        async with database.write() as session:
            session.add(Package(sha256="b" * 64, bytes=1, num_files=1, created_at=moment.replace(tzinfo=None)))


async def test_a_transaction_is_whole_or_nothing_and_notifies_only_when_whole(bench: Bench) -> None:
    database = bench.context.database

    async def write(*, fails: bool) -> None:
        async with database.write() as session:
            session.add(Package(sha256="a" * 64, bytes=1, num_files=1, created_at=bench.clock()))
            notify(session, "topic")
            await session.flush()
            if fails:
                raise RuntimeError("before the commit")

    with bench.context.hub.subscribe("topic") as subscription:
        with pytest.raises(RuntimeError, match="before the commit"):
            await write(fails=True)
        assert not await subscription.wait(0)
        async with database.read() as session:
            assert await session.get(Package, "a" * 64) is None
        await write(fails=False)
        assert await subscription.wait(0)


class TestSqlite:
    async def test_it_is_durable_and_readers_do_not_wait(self, tmp_path: Path) -> None:
        database = Database(f"sqlite+aiosqlite:///{tmp_path / 'rubato.db'}", Hub(1))
        await database.start()
        async with database.write() as session:
            pragmas = [
                (await session.execute(text(f"PRAGMA {name}"))).scalar_one()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            ]
            assert pragmas == ["wal", 2, 1]
            session.add(Package(sha256="a" * 64, bytes=1, num_files=1, created_at=datetime.now(UTC)))
            await session.flush()
            async with database.read() as reader:
                assert await reader.get(Package, "a" * 64) is None
        await database.close()

    async def test_a_cancelled_transaction_lets_the_next_one_write_at_once(self, tmp_path: Path) -> None:
        """Also while something (here the tracebacks) still holds what it had open in the database."""
        database = Database(f"sqlite+aiosqlite:///{tmp_path / 'rubato.db'}", Hub(1))
        await database.start()

        async def write(name: str) -> None:
            async with database.write() as session:
                # A statement that has rows left when it is cut off stays open.
                (await session.scalars(select(Package).order_by(Package.sha256))).all()
                session.add(Package(sha256=name, bytes=1, num_files=1, created_at=datetime.now(UTC)))

        for name in ("first", "second", "third"):
            await write(name)
        held = []
        gc.disable()
        try:
            for after in range(30):
                try:
                    await Cut(write(f"{after}"), after)
                except asyncio.CancelledError as error:
                    held.append(error)
                await write(f"then {after}")
        finally:
            gc.enable()
        assert 4 < len(held) < 30, "it was cut off at each of its awaits, the last of which came before the last try"
        await database.close()

    async def test_a_second_one_on_the_file_refuses(self, tmp_path: Path) -> None:
        url = f"sqlite+aiosqlite:///{tmp_path / 'rubato.db'}"
        first, second = Database(url, Hub(1)), Database(url, Hub(1))
        await first.start()
        with pytest.raises(HomeInUse, match="another service"):
            await second.start()
        await first.close()
        await second.start()
        await second.close()


async def test_a_lost_postgres_connection_is_replaced(make_bench: MakeBench, new_postgres: Callable[[], str]) -> None:
    async with make_bench(new_postgres()) as bench:
        await bench.submit()
        # Ends this connection too, as a restart of the server would end all.
        end_all = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()")
        async with bench.context.database.read() as session:
            with pytest.raises(OperationalError):
                await session.execute(end_all)
        assert (await bench.job("digits"))["status"] == "queued"


async def refused(bench: Bench, because: str) -> None:
    large = {f"NAME_{number}": "x" * 3_000 for number in range(60)}
    spec = {"name": "another", "recipe": "image-classifier", "env": large}
    response = await bench.client.post("/api/v1/jobs", json=spec)
    assert (response.status_code, response.json()["code"]) == (503, "not_ready"), response.text
    assert because in response.json()["detail"]
    assert response.headers["retry-after"]


async def test_a_postgres_that_takes_no_changes_says_so(make_bench: MakeBench, new_postgres: Callable[[], str]) -> None:
    """After a fail-over to a standby, or where a provider shuts it for its disk."""
    async with make_bench(new_postgres()) as bench:
        await bench.submit()
        async with bench.context.database.write() as session:
            name = (await session.execute(text("SELECT current_database()"))).scalar_one()
            await session.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
        await bench.context.database._writer.dispose()  # as connections are new after a fail-over
        await refused(bench, "takes no changes")
        assert (await bench.job("digits"))["status"] == "queued"


async def test_a_full_sqlite_says_so(make_bench: MakeBench) -> None:
    async with make_bench() as bench:
        await bench.submit()
        async with bench.context.database.write() as session:
            await session.execute(text("PRAGMA max_page_count = 1"))
        await refused(bench, "is full")
        assert (await bench.job("digits"))["status"] == "queued"


async def test_a_replica_that_stops_inside_a_transaction_loses_its_locks(
    new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_postgres()
    other = Database(url, Hub(1))
    await other.start()
    monkeypatch.setattr(database_module, "IDLE_IN_TRANSACTION_MS", 200)
    stopped = Database(url, Hub(1))
    lock = text("LOCK TABLE packages IN ACCESS EXCLUSIVE MODE")

    async def hold_it_and_stop() -> None:
        async with stopped.write() as session:
            await session.execute(lock)
            async with other.write() as second:
                await second.execute(lock)  # waits at most STATEMENT_TIMEOUT_MS
            await session.execute(lock)

    with pytest.raises(DBAPIError, match="idle-in-transaction timeout"):
        await hold_it_and_stop()
    for database in (stopped, other):
        await database.close()


async def test_each_end_of_a_connection_finds_the_other_gone(new_postgres: Callable[[], str]) -> None:
    database = Database(new_postgres(), Hub(1))
    async with database.read() as session:
        connection = await (await session.connection()).get_raw_connection()
        asked = connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
    await database.close()
    assert (asked["keepalives"], asked["keepalives_idle"], asked["tcp_user_timeout"]) == ("1", "10", "25000")
    assert "-c tcp_keepalives_idle=10 " in asked["options"]


async def test_no_more_connections_are_made_than_the_documents_say(
    new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "POSTGRES_CONNECTIONS", 2)
    database = Database(new_postgres(), Hub(1))

    async def ask() -> int:
        async with database.read() as session:
            return int((await session.execute(text("SELECT 1"))).scalar_one())

    async with database.read() as first, database.read() as second:
        for session in (first, second):
            await session.execute(text("SELECT 1"))
        monkeypatch.setattr(database_module, "ANSWER_TIMEOUT_S", 0.5)
        with pytest.raises(DatabaseSilent):
            await ask()
    monkeypatch.setattr(database_module, "ANSWER_TIMEOUT_S", 12.0)
    assert await ask() == 1
    await database.close()


async def test_an_error_does_not_tell_what_was_to_be_written(database: Database) -> None:
    """It goes into the log: specs have environments, and addresses of webhooks are secrets."""

    async def store() -> None:
        async with database.write() as session:
            session.add(Package(sha256="a" * 64, bytes=1, num_files=1, created_at=datetime.now(UTC)))

    await store()
    with pytest.raises(DBAPIError, match="hidden") as raised:
        await store()
    assert f"'{'a' * 64}'" not in str(raised.value)


@asynccontextmanager
async def held(url: str, statement: str) -> AsyncIterator[None]:
    """What the statement locks, another session holds meanwhile."""
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text(statement))
        yield
    await engine.dispose()


async def test_a_migration_may_take_longer_than_a_request(
    new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So may the wait of a second replica for the first one's."""
    monkeypatch.setattr(database_module, "STATEMENT_TIMEOUT_MS", 1_000)
    url = new_postgres()
    database = Database(url, Hub(1))
    async with held(url, f"SELECT pg_advisory_xact_lock({upgrade.ADVISORY_LOCK})"):
        starting = asyncio.create_task(database.start())
        await asyncio.sleep(2.0)
        assert not starting.done()
    await starting
    await database.close()


async def test_a_migration_does_not_wait_for_ever_for_a_table(
    new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "TABLE_LOCK_MS", 100)
    url = new_postgres()
    database = Database(url, Hub(1))
    async with held(url, "CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)"):
        pass
    async with held(url, "LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"):
        with pytest.raises(UserError, match="holds a lock"):
            await database.start()
    await database.close()
