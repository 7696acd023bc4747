"""Jobs that run under simulated controllers: they speak the cluster's protocol, and train nothing."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from benchmarks.load.service import Service
from rubato.wire.cluster import NodeReport, Outcome
from tests.simulated_controller import SimulatedAgent, SimulatedController

AT_ONCE = 16
CANCELLED = Outcome(state="cancelled")
NODE = NodeReport(node_id="node-1", address="127.0.0.1", cpu=100_000, hostname="host-1")

_names = itertools.count()


def new_spec() -> dict[str, object]:
    """A job of one worker, with a name of its own."""
    return {"name": f"load-{next(_names)}", "recipe": "image-classifier"}


async def submit(client: httpx.AsyncClient) -> str:
    """A new job; its id."""
    answer = await client.post("/api/v1/jobs", json=new_spec())
    answer.raise_for_status()
    return str(answer.json()["id"])


async def cancel(client: httpx.AsyncClient, jobs: Sequence[str]) -> None:
    """End all of them, some at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def end(job_id: str) -> None:
        async with turn:
            answer = await client.post(f"/api/v1/jobs/{job_id}/cancel", json={"force": True})
            answer.raise_for_status()

    async with asyncio.TaskGroup() as group:
        for job_id in jobs:
            group.create_task(end(job_id))


@asynccontextmanager
async def running_jobs(service: Service, count: int) -> AsyncIterator[list[SimulatedController]]:
    """So many jobs that run; their controllers poll for wishes all the while, as real ones do. They end with it.

    Raises:  ExceptionGroup: the service refused a controller or the agent; whatever was measured is then worth nothing.
    """
    async with AsyncExitStack() as own, service.client() as client, asyncio.TaskGroup() as group:
        jobs = [await submit(client) for _ in range(count)]
        agent = service.agent(client)
        agent.nodes = (NODE,)
        tickets = dict[str, str]()
        while not tickets.keys() >= set(jobs):
            tickets |= await _sync(agent)
        background = [group.create_task(_keep_syncing(agent))]
        # Each with connections of its own, as real ones have: one pool looks at all of its thousand for each request.
        clients = [await own.enter_async_context(service.client(connections=2)) for _ in jobs]
        controllers = [
            SimulatedController(line, job_id, tickets[job_id]) for line, job_id in zip(clients, jobs, strict=True)
        ]
        for controller in controllers:
            await controller.acquire()
            await controller.report()
            background.append(group.create_task(_keep_polling(controller)))
        yield controllers
        for task in background:
            task.cancel()
        await cancel(client, jobs)
        for controller in controllers:
            await controller.report(outcome=CANCELLED)


async def _sync(agent: SimulatedAgent) -> dict[str, str]:
    return {item.job_id: item.ticket for item in (await agent.sync(wait=10)).run}


async def _keep_syncing(agent: SimulatedAgent) -> None:
    while True:
        await _sync(agent)


async def _keep_polling(controller: SimulatedController) -> None:
    version = 0
    while True:
        version = (await controller.desired(after=version, wait=25)).version
