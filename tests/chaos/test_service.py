"""kill -9 of the service at random points of what people ask of it: none lost, none double, on both databases."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.service.processes import ServiceProcess, all_jobs, controller_of, granted, submit
from tests.postgres import new_database, running_postgres

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(1000)]

REQUESTS = 200
AT_ONCE = 4
KILLED_AFTER = (15, 35)
"""Replies between two kills."""
SEED = int(os.environ.get("RUBATO_CHAOS_SEED", "1"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceProcess]:
    if request.param == "sqlite":
        process = ServiceProcess(tmp_path / "home")
        yield process
        process.end()
    else:
        with running_postgres() as server:
            process = ServiceProcess(tmp_path / "home", RUBATO_DATABASE_URL=new_database(server))
            yield process
            process.end()


class Killer:
    """Kills the service at random moments and starts it again; those who ask wait for it, and ask again."""

    def __init__(self, service: ServiceProcess, chance: random.Random) -> None:
        self.cut_off = 0
        """Requests that were under way when the service was killed: stored or not, but never answered."""
        self.kills = 0
        self._service = service
        self._chance = chance
        self._replies = 0
        self._next = chance.randint(*KILLED_AFTER)
        self._client = service.client()
        self._is_up = asyncio.Event()
        self._is_up.set()

    async def ask(self, send: Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]) -> httpx.Response:
        """Send until there is a reply."""
        while True:
            await self._is_up.wait()
            try:
                response = await send(self._client)
            except httpx.TransportError:
                self.cut_off += 1
                continue
            self._replies += 1
            if self._replies >= self._next and self._is_up.is_set():
                await self._kill()
            return response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _kill(self) -> None:
        self._is_up.clear()
        # Somewhere within the next requests, which take some milliseconds each.
        await asyncio.sleep(self._chance.uniform(0, 0.02))
        self._service.kill()
        self.kills += 1
        await asyncio.to_thread(self._service.start)
        await self._client.aclose()
        self._client = self._service.client()
        self._next = self._replies + self._chance.randint(*KILLED_AFTER)
        self._is_up.set()


async def test_kill_9_among_200_submits_loses_and_doubles_none(service: ServiceProcess) -> None:
    """Each client sends its request again under its Idempotency-Key until it hears a reply."""
    service.start()
    killer = Killer(service, random.Random(SEED))
    turn = asyncio.Semaphore(AT_ONCE)
    replies: dict[str, str] = {}

    async def submit(number: int) -> None:
        name = f"job-{number}"

        async def send(client: httpx.AsyncClient) -> httpx.Response:
            spec = {"name": name, "recipe": "image-classifier"}
            return await client.post("/api/v1/jobs", json=spec, headers={"Idempotency-Key": name})

        async with turn:
            response = await killer.ask(send)
        assert response.status_code == 201, response.text
        replies[name] = response.json()["id"]

    async with asyncio.timeout(900), asyncio.TaskGroup() as group:
        for number in range(REQUESTS):
            group.create_task(submit(number))
    await killer.close()
    async with service.client() as client:
        stored = await all_jobs(client)
        submitted = [await _events(client, job_id, "job.submitted") for job_id in replies.values()]
    assert killer.kills >= REQUESTS // KILLED_AFTER[1] // 2, f"seed {SEED}: only {killer.kills} kills"
    assert killer.cut_off, f"seed {SEED}: no request was under way at any of {killer.kills} kills"
    assert sorted((job["name"], job["id"]) for job in stored) == sorted(replies.items()), f"seed {SEED}"
    assert [len(events) for events in submitted] == [1] * REQUESTS, f"seed {SEED}"


async def test_kill_9_among_200_scales_loses_and_doubles_none(service: ServiceProcess) -> None:
    """Each scale is sent again until it is acknowledged; the log has each once, in order, and the last one holds."""
    service.start()
    chance = random.Random(SEED)
    async with service.client() as client:
        job_id = await submit(client, "scaled", workers={"initial": 1, "min": 1, "max": 8})
        controller = await controller_of(client, service.agent(client), job_id)
        await controller.report()
    killer = Killer(service, chance)
    counts = [1]
    for _ in range(REQUESTS):
        counts.append(chance.choice([count for count in range(1, 9) if count != counts[-1]]))

    async def keep_reporting(ended: asyncio.Event) -> None:
        """More requests that are under way when the service dies."""
        step = 0
        while not ended.is_set():
            step += 1
            report = controller.next_report(step=step)

            async def send(client: httpx.AsyncClient) -> httpx.Response:
                controller.client = client
                return await controller.send(report)  # noqa: B023

            response = await killer.ask(send)
            assert response.status_code == 200, response.text

    async with asyncio.timeout(900), asyncio.TaskGroup() as group:
        ended = asyncio.Event()
        group.create_task(keep_reporting(ended))
        for count in counts[1:]:

            async def scale(client: httpx.AsyncClient) -> httpx.Response:
                return await client.post("/api/v1/jobs/scaled/scale", json={"workers": count})  # noqa: B023

            response = await killer.ask(scale)
            assert response.status_code in (200, 202), response.text
            assert response.json()["desired_workers"] == count
        ended.set()
    await killer.close()
    async with service.client() as client:
        controller.client = client
        asked = await _events(client, job_id, "job.scale_requested")
        now = (await client.get("/api/v1/jobs/scaled")).json()
        # The scheduler grants what was wished for last once it hears of slots again: nobody reported any meanwhile.
        await service.agent(client).sync()
        async with asyncio.timeout(60):
            await granted(controller, counts[-1])
    assert killer.kills >= REQUESTS // KILLED_AFTER[1] // 2, f"seed {SEED}: only {killer.kills} kills"
    assert killer.cut_off, f"seed {SEED}: no request was under way at any of {killer.kills} kills"
    assert [(event["data"]["from"], event["data"]["to"]) for event in asked] == list(itertools.pairwise(counts))
    assert now["desired_workers"] == counts[-1]


async def _events(client: httpx.AsyncClient, job_id: str, kind: str) -> list[dict[str, Any]]:
    """Of one kind; all of the job's are gap-free."""
    response = await client.get(f"/api/v1/jobs/{job_id}/events", params={"limit": 10_000})
    items = response.raise_for_status().json()["items"]
    assert [item["position"] for item in items] == list(range(1, len(items) + 1))
    return [item for item in items if item["kind"] == kind]
