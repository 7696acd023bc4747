"""Submits, reports and looks that go on whatever happens to the service, and what must be stored of them after it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

from tests.integration.service.processes import all_jobs
from tests.simulated_controller import SimulatedController, log_line, metric

SENDERS = 4
PAUSE_S = 0.1
"""Between two jobs of a sender: thousands of them would only show how long a busy machine takes to place them."""


class Traffic:
    """Submits, reports and looks that go on whatever happens; knows what was answered."""

    def __init__(self, client: httpx.AsyncClient, controller: SimulatedController, prefix: str = "job") -> None:
        """
        Args:    controller: leads one job, whose reports it sends.
                 prefix: of the names of its jobs.
        """
        self.job_id = controller.job_id
        self.answers: Counter[int] = Counter()
        self.slowest_s = 0.0
        self.acknowledged: set[str] = set()
        self.steps = 0
        self._client = client
        self._prefix = prefix
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
            name = f"{self._prefix}-{sender}-{number}"
            spec, headers = {"name": name, "recipe": "image-classifier"}, {"Idempotency-Key": name}
            response = await self._send(lambda: self._client.post("/api/v1/jobs", json=spec, headers=headers))  # noqa: B023
            if response.status_code == 201:
                self.acknowledged.add(name)
                number += 1
            await asyncio.sleep(PAUSE_S)

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


def some_stored(answers: Counter[int]) -> bool:
    return answers[201] >= 2 * SENDERS and answers[200] >= 10


async def assert_nothing_lost(client: httpx.AsyncClient, traffic: Traffic) -> None:
    """What was acknowledged is there, once and in order."""
    job, names = f"/api/v1/jobs/{traffic.job_id}", [job["name"] for job in await all_jobs(client)]
    rows = (await client.get(f"{job}/metrics", params={"limit": 10_000})).json()["items"]
    events = (await client.get(f"{job}/events", params={"limit": 10_000})).json()["items"]
    lines = (await client.get(f"{job}/logs", params={"tail": 10_000})).json()["items"]
    assert len(set(names)) == len(names), "doubled"
    assert traffic.acknowledged <= set(names), f"lost: {traffic.acknowledged - set(names)}"
    steps = list(range(1, traffic.steps + 1))
    assert [row["step"] for row in rows] == steps
    assert [item["line"] for item in lines] == [f"step {step}" for step in steps]
    assert [item["position"] for item in events] == list(range(1, len(events) + 1))
