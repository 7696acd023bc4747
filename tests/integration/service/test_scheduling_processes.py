"""The scheduler in a real service process, which is killed between its decisions; the controllers are simulated."""

from __future__ import annotations

import asyncio

import pytest

from rubato.wire.cluster import Outcome
from tests.integration.service.processes import ServiceProcess, controller_of, granted, submit
from tests.simulated_controller import one_node, training

pytestmark = pytest.mark.anyio

PATIENCE_S = 60
"""For a machine that is busy; nothing here waits for a time to pass."""


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
async def test_slots_are_shared_and_taken_back_across_a_kill_of_the_service(service: ServiceProcess) -> None:
    service.start()
    async with asyncio.timeout(PATIENCE_S * 2):
        async with service.client() as client:
            agent = service.agent(client)
            agent.nodes = one_node(2)
            elastic_id = await submit(
                client, "elastic", workers={"initial": 1, "min": 1, "max": 2, "autoscale": "capacity"}
            )
            elastic = await controller_of(client, agent, elastic_id)
            await granted(elastic, 2)
            await elastic.report(**training(2))
            small_id = await submit(client, "small")
            await granted(elastic, 1)
            service.kill()
        service.start()
        async with service.client() as client:
            elastic.client = agent.client = client
            # The grant outlived the service; the slot is given away only now that its worker has left.
            assert (await elastic.desired()).workers == 1
            assert (await client.get(f"/api/v1/jobs/{small_id}")).json()["status"] == "queued"
            await elastic.report(**training(1))
            small = await controller_of(client, agent, small_id)
            assert small.acquired is not None
            assert small.acquired.desired.workers == 1
            shown = (await client.get("/api/v1/queue")).json()
            assert shown["items"] == []
            assert {item["name"]: item["granted_workers"] for item in shown["running"]} == {"elastic": 1, "small": 1}


async def test_a_job_is_stopped_by_the_clock_of_the_service(service: ServiceProcess) -> None:
    service.start()
    async with service.client() as client, asyncio.timeout(PATIENCE_S):
        agent = service.agent(client)
        controller = await controller_of(client, agent, await submit(client, "limited"))
        await controller.report()
        # Only now: the time counts from when the job got its slots, and its controller must be there to stop it.
        changed = await client.patch("/api/v1/jobs/limited", json={"limits": {"max_duration": 1}})
        assert changed.status_code == 200, changed.text
        told = await controller.desired()
        while told.run != "stop":
            told = await controller.desired(after=told.version, wait=5)
        await controller.report(outcome=Outcome(state="cancelled"))
        job = (await client.get("/api/v1/jobs/limited")).json()
        assert (job["status"], job["reason"]) == ("cancelled", "deadline_exceeded")
