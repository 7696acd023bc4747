"""The service stopped for longer than every lease, or buried in one job's output: nobody is lost, others are served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rubato.wire.cluster import Outcome
from tests.integration.service.processes import ServiceProcess, controller_of, events_of, submit
from tests.simulated_controller import PROCESS, SimulatedController, log_line, metric
from tests.stopping import stopped

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

LEASE_S = 20.0
MARGIN_S = 1.0
STOPPED_S = 26.0
"""Longer than lease and margin. 90 s with the usual lease of 30 s; the lease must outlast the test's own pauses."""
ROUNDS = 30
STORM_LINES = 120
STORM_LINE = "x" * 16_000
"""A batch of two megabytes, as large as a reporter makes them."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(
        tmp_path / "home", RUBATO_LEASE=f"{LEASE_S}", RUBATO_LEASE_MARGIN=f"{MARGIN_S}", RUBATO_AGENT_LEASE="2"
    )
    process.start()
    yield process
    process.end()


async def test_a_service_that_stood_still_takes_nobody_for_dead_and_a_cancel_wins(service: ServiceProcess) -> None:
    async with service.client() as client, asyncio.TaskGroup() as group:
        agent = service.agent(client)
        leaders = []
        for name in ("first", "second", "third"):
            job_id = await submit(client, name)
            leaders.append(await controller_of(client, agent, job_id))
            await leaders[-1].report(step=1)
        tickets = {item.job_id: item.ticket for item in (await agent.sync()).run}
        rivals = [
            SimulatedController(client, one.job_id, tickets[one.job_id], process=replace(PROCESS, pid=99))
            for one in leaders
        ]
        await asyncio.gather(*(one.report(step=2) for one in leaders))
        with stopped(service.pid):
            # All of it waits, and comes at once when the service wakes up: before its own loop, or after.
            asked = [group.create_task(rival.try_acquire()) for rival in rivals]
            told = [group.create_task(one.send(one.next_report(step=3))) for one in leaders[:2]]
            cancelled = group.create_task(client.post(f"/api/v1/jobs/{leaders[2].job_id}/cancel"))
            # The outage itself is what is tested: nothing happens that could be waited for.
            await asyncio.sleep(STOPPED_S)
        refusals = [await one for one in asked]
        assert [(reply.status_code, reply.json()["code"]) for reply in refusals] == [(409, "lease_held")] * 3
        assert [(await one).status_code for one in told] == [200, 200]
        assert (await cancelled).status_code == 202
        for one in leaders:
            changes = [event["data"]["to"] for event in await events_of(client, one.job_id, "job.status")]
            assert changes[:2] == ["starting", "running"]
            assert "recovering" not in changes
        await leaders[2].report(step=4, outcome=Outcome("cancelled"))
        assert (await client.get(f"/api/v1/jobs/{leaders[2].job_id}")).json()["status"] == "cancelled"
        assert {len(await events_of(client, one.job_id, "attempt.acquired")) for one in leaders} == {1}


async def test_a_storm_of_output_of_one_job_leaves_the_others_served(service: ServiceProcess) -> None:
    """As fast as the service takes it: a controller would send a batch a second."""
    async with service.client() as client, service.client() as other:
        agent = service.agent(client)
        loud = await controller_of(client, agent, await submit(client, "loud"))
        quiet = await controller_of(other, agent, await submit(client, "quiet"))
        doomed = await controller_of(other, agent, await submit(client, "doomed"))
        is_over = asyncio.Event()
        batches = 0

        async def storm() -> None:
            nonlocal batches
            while not is_over.is_set():
                lines = tuple(log_line(f"{batches}.{index} {STORM_LINE}") for index in range(STORM_LINES))
                await loud.report(logs=lines)
                batches += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(storm())
            for step in range(1, ROUNDS + 1):
                await quiet.report(step=step, metrics=(metric(step),), logs=(log_line(f"step {step}"),))
                for path in ("/api/v1/jobs", "/api/v1/jobs/quiet", "/api/v1/jobs/quiet/logs", "/readyz"):
                    assert (await other.get(path)).status_code == 200, path
                assert (await quiet.desired()).run == "run"
            assert (await other.post("/api/v1/jobs/doomed/cancel")).status_code == 202
            await doomed.report(outcome=Outcome("cancelled"))
            while batches < ROUNDS // 3:
                await other.get("/api/v1/jobs/quiet")
            is_over.set()
        assert (await other.get("/api/v1/jobs/doomed")).json()["status"] == "cancelled"
        lines = (await other.get("/api/v1/jobs/quiet/logs", params={"tail": 10_000})).json()["items"]
        assert [line["line"] for line in lines] == [f"step {step}" for step in range(1, ROUNDS + 1)]
        tail = (await other.get("/api/v1/jobs/loud/logs", params={"tail": 10})).json()["items"]
        expected = [f"{batches - 1}.{index}" for index in range(STORM_LINES - 10, STORM_LINES)]
        assert [line["line"].split()[0] for line in tail] == expected
