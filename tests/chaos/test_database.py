"""The database goes away under the service: callers hear 503 and when to ask again, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.database import ANSWER_TIMEOUT_S
from tests.integration.service.processes import ServiceProcess, controller_of, submit
from tests.integration.service.traffic import SENDERS, Traffic, assert_nothing_lost, some_stored
from tests.postgres import PostgresServer, new_database, postgres_server
from tests.small_disk import fill, small_disk

__all__ = ["small_disk"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

GONE_S = 60.0
BACK_WITHIN_S = 90.0
"""The promise is ten seconds after the database is back, on a machine that has nothing else to do."""
ANSWERED_WITHIN_S = 2.5 * ANSWER_TIMEOUT_S
"""Of one request: it may look, then write."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def service(postgres: PostgresServer, tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "home", RUBATO_DATABASE_URL=new_database(postgres.url))
    process.start()
    yield process
    process.end()


@pytest.mark.parametrize(
    "fault",
    [pytest.param("restarted", marks=pytest.mark.short), "crashed", "gone", "silent"],
)
async def test_callers_hear_503_while_postgres_is_away_and_nothing_is_lost(
    service: ServiceProcess, postgres: PostgresServer, fault: str
) -> None:
    async with service.client() as client:
        job_id = await submit(client, "watched")
        traffic = Traffic(client, await controller_of(client, service.agent(client), job_id))
        async with traffic.flowing():
            await traffic.until(some_stored, BACK_WITHIN_S)
            if fault == "silent":
                with postgres.stopped():
                    await traffic.until(lambda answers: answers[503] >= SENDERS, ANSWERED_WITHIN_S)
            else:
                await asyncio.to_thread(postgres.end, "immediate" if fault == "crashed" else "fast")
                await traffic.until(lambda answers: answers[503] >= SENDERS, ANSWERED_WITHIN_S)
                if fault == "gone":
                    await asyncio.sleep(GONE_S)
                await asyncio.to_thread(postgres.start)
            await traffic.until(some_stored, BACK_WITHIN_S)
        await assert_nothing_lost(client, traffic)
    assert traffic.slowest_s < ANSWERED_WITHIN_S
    assert "Traceback" not in (service.home.parent / "service.log").read_text()


async def test_a_full_disk_refuses_and_loses_nothing(small_disk: Path) -> None:
    service = ServiceProcess(small_disk / "home")
    service.start()
    try:
        async with service.client() as client:
            job_id = await submit(client, "watched")
            traffic = Traffic(client, await controller_of(client, service.agent(client), job_id))
            async with traffic.flowing():
                await traffic.until(some_stored, BACK_WITHIN_S)
                ballast = fill(small_disk)
                await traffic.until(lambda answers: answers[503] >= SENDERS, ANSWERED_WITHIN_S)
                assert (await client.get("/api/v1/jobs/watched")).status_code == 200, "what is stored can be read"
                ballast.unlink()
                await traffic.until(some_stored, BACK_WITHIN_S)
            await assert_nothing_lost(client, traffic)
    finally:
        service.end()
    with contextlib.closing(sqlite3.connect(service.home / "rubato.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
