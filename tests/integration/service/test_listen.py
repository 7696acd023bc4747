"""Replicas wake each other by NOTIFY: long polls and streams end by a notification, never by another look."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from service import startup
from service.listen import LISTENER_NAME
from tests.integration.service.processes import ServiceProcess, controller_of, granted, open_stream, submit
from tests.postgres import PostgresServer, new_database, postgres_server
from tests.simulated_controller import SimulatedController

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

HOUR = timedelta(hours=1)
"""Between two looks: what comes within a test came by a notification."""
Pair = tuple["Bench", "Bench"]


async def is_fed(bench: Bench, wanted: bool) -> None:
    """Wait until the replica's listener stands, or has fallen."""
    with bench.context.hub.subscribe("anything") as subscription:
        while bench.context.hub.is_fed is not wanted:
            await subscription.wait(3600)


async def waits_for(bench: Bench, topic: str) -> None:
    """Wait until somebody at this replica waits for it."""
    while topic not in bench.context.hub.subscribers:  # noqa: ASYNC110  nobody is told who subscribes
        await asyncio.sleep(0.01)


@pytest.fixture
def database(new_postgres: Callable[[], str]) -> str:
    return new_postgres()


@pytest.fixture
async def replicas(make_bench: MakeBench, database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr(startup, "SAFETY_POLL_INTERVAL", HOUR)
    async with (
        make_bench(database, poll_interval=HOUR) as first,
        make_bench(database, clock=first.clock, poll_interval=HOUR) as second,
    ):
        await is_fed(first, True)
        await is_fed(second, True)
        yield first, second


async def led_by(scheduling: Bench, *, polling: Bench) -> SimulatedController:
    """A job that runs; one replica holds the scheduler's lease, its controller speaks to the other."""
    controller = await scheduling.start()
    controller.client = polling.client
    return controller


async def test_a_wish_at_one_ends_the_long_poll_at_the_other_without_a_poll(replicas: Pair) -> None:
    first, second = replicas
    controller = await led_by(second, polling=first)
    version = (await controller.desired()).version
    for workers in (2, 3, 4):
        poll = asyncio.create_task(controller.desired(after=version, wait=25))
        await waits_for(first, f"desired:{controller.job_id}")
        await second.post("/jobs/digits/scale", 202, {"workers": workers})
        await second.loop.run_once()
        version = (await poll).version
    assert (await controller.desired()).workers == 4
    assert (first.context.hub.polls, second.context.hub.polls) == (0, 0)


async def test_what_is_rolled_back_is_not_told(replicas: Pair) -> None:
    from service.notify import notify

    first, second = replicas
    with first.context.hub.subscribe("kept", "lost") as subscription:

        async def fail() -> None:
            async with second.context.database.write() as session:
                notify(session, "lost")
                raise RuntimeError("on purpose")

        with pytest.raises(RuntimeError, match="on purpose"):
            await fail()
        assert not await subscription.wait(0)
        async with second.context.database.write() as session:
            notify(session, "kept")
        async with asyncio.timeout(60):
            assert await subscription.wait(3600)


async def test_a_word_of_somebody_else_does_not_make_it_deaf(replicas: Pair, database: str) -> None:
    from service.notify import notify

    first, second = replicas
    async with await psycopg.AsyncConnection.connect(database.replace("+psycopg", ""), autocommit=True) as stranger:
        for payload in ("", "' '", "'stranger'"):
            await stranger.execute(f"NOTIFY rubato{', ' if payload else ''}{payload}".encode())
    with first.context.hub.subscribe("kept") as subscription:
        async with second.context.database.write() as session:
            notify(session, "kept")
        async with asyncio.timeout(60):
            assert await subscription.wait(3600)
    assert first.context.hub.is_fed


async def cut_listeners(url: str) -> int:
    """As a network does that goes away for a moment; gives how many connections."""
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s"
    async with await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        return int(
            (
                await (
                    await connection.execute(query + " AND datname = current_database()", (LISTENER_NAME,))
                ).fetchall()
            )[0][0]
        )


async def test_a_cut_listener_wakes_all_and_stands_again(replicas: Pair, database: str) -> None:
    first, second = replicas
    controller = await led_by(second, polling=first)
    version = (await controller.desired()).version
    poll = asyncio.create_task(controller.desired(after=version, wait=25))
    await waits_for(first, f"desired:{controller.job_id}")
    falls = [asyncio.create_task(is_fed(bench, False)) for bench in replicas]
    assert await cut_listeners(database) == 2
    await asyncio.gather(*falls)
    # Told to nobody while no listener stands; found by the look that follows when one does.
    await second.post("/jobs/digits/scale", 202, {"workers": 2})
    await second.loop.run_once()
    assert (await poll).version > version
    await is_fed(first, True)
    await is_fed(second, True)
    version = (await controller.desired()).version
    poll = asyncio.create_task(controller.desired(after=version, wait=25))
    await waits_for(first, f"desired:{controller.job_id}")
    await second.post("/jobs/digits/pause", 202)
    assert (await poll).run == "pause"
    assert (first.context.hub.polls, second.context.hub.polls) == (0, 0)


async def test_without_a_listener_replicas_poll(
    make_bench: MakeBench, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service import listen

    async def refuse(_: object) -> Any:
        raise psycopg.OperationalError("on purpose")

    monkeypatch.setattr(listen.Replicas, "_connect", refuse)
    poll_interval = timedelta(milliseconds=20)
    async with (
        make_bench(database, poll_interval=poll_interval) as first,
        make_bench(database, clock=first.clock, poll_interval=poll_interval) as second,
    ):
        controller = await led_by(second, polling=first)
        version = (await controller.desired()).version
        poll = asyncio.create_task(controller.desired(after=version, wait=25))
        await waits_for(first, f"desired:{controller.job_id}")
        await second.post("/jobs/digits/scale", 202, {"workers": 2})
        await second.loop.run_once()
        assert (await poll).version > version
        assert first.context.hub.polls > 0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


async def notices(service: ServiceProcess) -> float:
    """How many came to a replica, as Prometheus sees it."""
    token = (service.home / "scraper-token").read_text().strip()
    async with service.client() as client:
        text = (await client.get("/metrics", headers={"Authorization": f"Bearer {token}"})).text
    return next(
        float(line.split()[1]) for line in text.splitlines() if line.startswith("rubato_replica_notices_total ")
    )


async def ready(client: httpx.AsyncClient) -> None:
    """Wait until a replica has its database again."""
    while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110  another process
        await asyncio.sleep(0.05)


async def test_two_processes_and_a_server_that_is_restarted(server: PostgresServer, tmp_path: Path) -> None:
    url = new_database(server.url)
    # The fallback would be an hour: what comes after the restart came by a listener that stands again.
    environment = {"RUBATO_DATABASE_URL": url, "RUBATO_POLL_INTERVAL": "PT1H"}
    first, second = (ServiceProcess(tmp_path / "home", **environment) for _ in range(2))
    try:
        first.start()
        second.start()
        async with first.client() as here, second.client() as there:
            controller = await controller_of(here, first.agent(here), await submit(there, "digits"))
            await controller.report()
            for workers, restart in ((2, False), (3, True), (4, False)):
                if restart:
                    server.end("fast")
                    server.start()
                    await ready(here)
                    await ready(there)
                async with open_stream(here, f"/api/v1/jobs/{controller.job_id}/events") as messages:
                    response = await there.post("/api/v1/jobs/digits/scale", json={"workers": workers})
                    assert response.status_code == 202, response.text
                    async for message in messages:
                        data = message.data if message.event == "event" else {}
                        if data.get("kind") == "job.scale_requested" and data["data"]["to"] == workers:
                            break
                await granted(controller, workers)
        assert await notices(first) > 0
        assert await notices(second) > 0
    finally:
        first.end()
        second.end()
