"""The database goes away under the service: callers hear 503 and when to ask again, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from service.database import ANSWER_TIMEOUT_S
from tests.integration.service.processes import ServiceProcess, all_jobs, controller_of, submit
from tests.postgres import PostgresServer, new_database, postgres_server
from tests.simulated_controller import SimulatedController, log_line, metric
from tests.small_disk import fill, small_disk

__all__ = ["small_disk"]
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

SENDERS = 4
GONE_S = 8.0
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


class Traffic:
    """Submits, reports and looks that go on whatever happens; knows what was answered."""

    def __init__(self, client: httpx.AsyncClient, controller: SimulatedController) -> None:
        self.answers: Counter[int] = Counter()
        self.slowest_s = 0.0
        self.acknowledged: set[str] = set()
        self.steps = 0
        self._client = client
        self._controller = controller
        self._answered = asyncio.Condition()
        self._is_over = False

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Senders run within; on leaving each finishes what it has begun."""
        async with asyncio.TaskGroup() as group:
            for number in range(SENDERS):
                group.create_task(self._submit(number))
            group.create_task(self._report())
            group.create_task(self._look())
            yield
            self._is_over = True

    async def until(self, is_enough: Callable[[Counter[int]], bool], within_s: float) -> None:
        """Wait for answers from now on.

        Raises:  TimeoutError: they did not come.
        """
        before = self.answers.copy()
        async with asyncio.timeout(within_s), self._answered:
            await self._answered.wait_for(lambda: is_enough(self.answers - before))

    async def _submit(self, sender: int) -> None:
        number = 0
        while not self._is_over:
            name = f"job-{sender}-{number}"
            spec, headers = {"name": name, "recipe": "image-classifier"}, {"Idempotency-Key": name}
            response = await self._send(lambda: self._client.post("/api/v1/jobs", json=spec, headers=headers))  # noqa: B023
            if response.status_code == 201:
                self.acknowledged.add(name)
                number += 1

    async def _report(self) -> None:
        while not self._is_over:
            step = self.steps + 1
            report = self._controller.next_report(step=step, metrics=(metric(step),), logs=(log_line(f"step {step}"),))
            while (await self._send(lambda: self._controller.send(report))).status_code != 200:  # noqa: B023
                pass
            self.steps += 1

    async def _look(self) -> None:
        while not self._is_over:
            await self._send(lambda: self._client.get("/api/v1/jobs", params={"limit": 20}))

    async def _send(self, send: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
        began = time.monotonic()
        response = await send()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        assert response.status_code in (200, 201, 503), response.text
        if response.status_code == 503:
            assert response.json()["code"] == "not_ready"
            assert int(response.headers["Retry-After"]) >= 1
            await asyncio.sleep(0.2)
        async with self._answered:
            self.answers[response.status_code] += 1
            self._answered.notify_all()
        return response


def _some_stored(answers: Counter[int]) -> bool:
    return answers[201] >= 2 * SENDERS and answers[200] >= 10


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
            await traffic.until(_some_stored, BACK_WITHIN_S)
            if fault == "silent":
                with postgres.stopped():
                    await traffic.until(lambda answers: answers[503] >= SENDERS, ANSWERED_WITHIN_S)
            else:
                await asyncio.to_thread(postgres.end, "immediate" if fault == "crashed" else "fast")
                await traffic.until(lambda answers: answers[503] >= SENDERS, ANSWERED_WITHIN_S)
                if fault == "gone":
                    await asyncio.sleep(GONE_S)
                await asyncio.to_thread(postgres.start)
            await traffic.until(_some_stored, BACK_WITHIN_S)
        await _nothing_lost(client, traffic)
    assert traffic.slowest_s < ANSWERED_WITHIN_S
    assert "Traceback" not in (service.home.parent / "service.log").read_text()


async def _nothing_lost(client: httpx.AsyncClient, traffic: Traffic) -> None:
    """What was acknowledged is there, once and in order."""
    names = [job["name"] for job in await all_jobs(client)]
    rows = (await client.get("/api/v1/jobs/watched/metrics", params={"limit": 10_000})).json()["items"]
    events = (await client.get("/api/v1/jobs/watched/events", params={"limit": 10_000})).json()["items"]
    lines = (await client.get("/api/v1/jobs/watched/logs", params={"tail": 10_000})).json()["items"]
    assert len(set(names)) == len(names), "doubled"
    assert traffic.acknowledged <= set(names), f"lost: {traffic.acknowledged - set(names)}"
    steps = list(range(1, traffic.steps + 1))
    assert [row["step"] for row in rows] == steps
    assert [item["line"] for item in lines] == [f"step {step}" for step in steps]
    assert [item["position"] for item in events] == list(range(1, len(events) + 1))


async def test_a_full_disk_refuses_and_loses_nothing(small_disk: Path) -> None:
    service = ServiceProcess(small_disk / "home")
    service.start()
    try:
        async with service.client() as client:
            job_id = await submit(client, "watched")
            traffic = Traffic(client, await controller_of(client, service.agent(client), job_id))
            async with traffic.flowing():
                await traffic.until(_some_stored, BACK_WITHIN_S)
                ballast = fill(small_disk)
                await traffic.until(lambda answers: answers[503] >= SENDERS, ANSWERED_WITHIN_S)
                assert (await client.get("/api/v1/jobs/watched")).status_code == 200, "what is stored can be read"
                ballast.unlink()
                await traffic.until(_some_stored, BACK_WITHIN_S)
            await _nothing_lost(client, traffic)
    finally:
        service.end()
    with contextlib.closing(sqlite3.connect(service.home / "rubato.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
