"""Two replicas on one PostgreSQL: no doubled decision, no lost one, and news that crosses by polling."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import anyio
import pytest

from rubato.wire.cluster import ProcessIdentity
from service.readiness import FRESH
from tests.simulated_controller import metric, one_node

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

Pair = tuple["Bench", "Bench"]

PATIENCE_S = 60.0


@pytest.fixture
async def replicas(make_bench: MakeBench, new_postgres: Callable[[], str]) -> AsyncIterator[Pair]:
    url = new_postgres()
    poll = timedelta(milliseconds=50)
    async with (
        make_bench(url, poll_interval=poll) as first,
        make_bench(url, clock=first.clock, poll_interval=poll) as second,
    ):
        assert first.token == second.token, "they share a home"
        yield first, second


async def test_both_may_start_on_an_empty_database_at_once(
    make_bench: MakeBench, new_postgres: Callable[[], str]
) -> None:
    url = new_postgres()

    async def start() -> None:
        async with make_bench(url) as bench:
            # A check without an answer in time is a finding: of a busy machine, one asks again, as a balancer does.
            with anyio.fail_after(PATIENCE_S):
                while (await bench.client.get("/readyz")).status_code != 200:
                    bench.clock.advance(FRESH.total_seconds())

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(start())


async def test_a_round_of_both_schedulers_starts_each_job_once(replicas: Pair) -> None:
    first, second = replicas
    first.agent.nodes = one_node(5)
    for index in range(8):
        await first.submit(f"job-{index}", workers={"initial": 1, "min": 1, "max": 1})
    await first.agent.sync()
    for _ in range(3):
        await asyncio.gather(first.loop.run_once(), second.loop.run_once())
        # The lease lets one of them pass until it runs out: then the other.
        first.clock.advance(31)
        await first.agent.sync()
    statuses = Counter(item["status"] for item in (await second.get("/jobs"))["items"])
    assert statuses == {"starting": 5, "queued": 3}, "never over capacity"
    for index in range(5):
        events = (await second.get(f"/jobs/job-{index}/events"))["items"]
        assert [item["data"].get("to") for item in events if item["kind"] == "job.status"] == ["starting"]


async def test_of_two_that_take_a_name_one_wins(replicas: Pair) -> None:
    spec = {"name": "digits", "recipe": "image-classifier"}
    for _ in range(5):
        responses = await asyncio.gather(*(bench.client.post("/api/v1/jobs", json=spec) for bench in replicas))
        assert sorted(response.status_code for response in responses) == [201, 409]
        assert {response.json().get("code") for response in responses} == {None, "name_taken"}
        await replicas[0].post("/jobs/digits/cancel", 202)


async def test_one_idempotency_key_makes_one_job(replicas: Pair) -> None:
    spec = {"name": "digits", "recipe": "image-classifier"}
    key = {"Idempotency-Key": "one"}
    requests = [bench.client.post("/api/v1/jobs", json=spec, headers=key) for bench in replicas * 3]
    responses = await asyncio.gather(*requests)
    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["id"] for response in responses}) == 1


async def test_of_two_successors_one_gets_the_attempt(replicas: Pair) -> None:
    first, second = replicas
    controller = await first.start()
    first.clock.advance(50)
    rivals = [
        await bench.controller_of(controller.job_id, process=ProcessIdentity(f"node-{pid}", f"boot-{pid}", pid, 1))
        for bench, pid in ((first, 1), (second, 2))
    ]
    responses = await asyncio.gather(*(rival.try_acquire() for rival in rivals))
    assert sorted(response.status_code for response in responses) == [200, 409]
    assert (await first.job("digits"))["attempt"] == 2


async def test_a_wish_given_to_one_wakes_the_poll_at_the_other(replicas: Pair) -> None:
    first, second = replicas
    controller = await first.start()
    version = (await controller.desired()).version
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        poll = group.create_task(controller.desired(after=version, wait=20))
        waiting = group.create_task(first.client.get("/api/v1/jobs/digits", params={"wait": 20, "for": "pausing"}))
        await second.post("/jobs/digits/scale", 202, {"workers": 3})
        await first.loop.run_once()
        await second.post("/jobs/digits/pause", 202)
    assert poll.result().version > version
    assert (await controller.desired()).workers == 3
    assert waiting.result().json()["status"] == "pausing"


async def test_reports_through_both_keep_one_order(replicas: Pair) -> None:
    first, second = replicas
    controller = await first.start()

    async def ask_for_scales() -> None:
        for workers in (2, 3, 4, 5, 6):
            await second.post("/jobs/digits/scale", 202, {"workers": workers})

    async def report() -> None:
        for step in range(1, 11):
            controller.client = (first, second)[step % 2].client
            await controller.report(step=step, metrics=(metric(step),), events=(controller.event("worker.ready"),))

    await asyncio.gather(ask_for_scales(), report())
    events = (await first.get("/jobs/digits/events"))["items"]
    assert [item["position"] for item in events] == list(range(1, len(events) + 1))
    kinds = Counter(item["kind"] for item in events)
    assert (kinds["worker.ready"], kinds["job.scale_requested"]) == (10, 5)
    rows = (await second.get("/jobs/digits/metrics"))["items"]
    assert [(row["position"], row["step"]) for row in rows] == [(step, step) for step in range(1, 11)]
