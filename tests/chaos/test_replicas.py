"""One of two replicas on one PostgreSQL stands still, inside whatever it did: the other one serves, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.leases import LIFETIME
from tests.integration.service.processes import ServiceProcess, controller_of, events_of, submit
from tests.integration.service.traffic import SENDERS, Traffic, assert_nothing_lost, some_stored
from tests.postgres import new_database, postgres_server
from tests.simulated_controller import one_node
from tests.stopping import stopped

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

LEASE_S = 20.0
STOPPED_S = LIFETIME.total_seconds() + 3
"""Longer than the lease of the scheduler, and those of controllers."""
SERVED_WITHIN_S = 60.0
"""What the stopped one had locked is free again when PostgreSQL ends its transaction, after 15 s."""
PATIENCE_S = 240.0
"""Of who asked the one that stands still."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    with postgres_server() as postgres:
        settings = {
            "RUBATO_DATABASE_URL": new_database(postgres.url),
            "RUBATO_LEASE": f"{LEASE_S}",
            "RUBATO_LEASE_MARGIN": "1",
            "RUBATO_AGENT_LEASE": "2",
        }
        first, second = (ServiceProcess(tmp_path / "home", **settings) for _ in range(2))
        try:
            first.start()
            second.start()
            yield first, second
        finally:
            first.end()
            second.end()


async def test_the_other_one_serves_and_no_stale_decision_counts(
    replicas: tuple[ServiceProcess, ServiceProcess],
) -> None:
    """Each in turn: one of them has decided last, and wakes up with what it believed before."""
    async with replicas[0].client() as one, replicas[1].client() as two:
        one.timeout = two.timeout = httpx.Timeout(PATIENCE_S)
        for name, sleeper, asleep, awake in (("a", replicas[0], one, two), ("b", replicas[1], two, one)):
            agent = replicas[0].agent(awake)
            agent.nodes = one_node(10_000)
            leaders = [
                await controller_of(client, agent, await submit(client, f"{name}-{place}"))
                for place, client in (("asleep", asleep), ("awake", awake))
            ]
            cut_off, served = Traffic(asleep, leaders[0], f"{name}-cut"), Traffic(awake, leaders[1], f"{name}-served")
            async with cut_off.flowing():
                await cut_off.until(some_stored, SERVED_WITHIN_S)
                with stopped(sleeper.pid):
                    wakes_at = time.monotonic() + STOPPED_S
                    async with served.flowing():
                        await served.until(some_stored, SERVED_WITHIN_S)
                        answered = cut_off.answers.total()
                        late = await controller_of(awake, agent, await submit(awake, f"{name}-late"))
                        await late.report(step=1)
                        # Meanwhile the sleeper's leases run out: that it sleeps is what is tested.
                        while time.monotonic() < wakes_at:
                            await served.until(lambda answers: answers.total() >= SENDERS, SERVED_WITHIN_S)
                            await late.report()
                    assert cut_off.answers.total() == answered, "it did not stand still"
                await cut_off.until(some_stored, SERVED_WITHIN_S)
            for traffic in (cut_off, served):
                await assert_nothing_lost(awake, traffic)
            for leader in (leaders[1], late):
                changes = await events_of(asleep, leader.job_id, "job.status")
                assert [event["data"]["to"] for event in changes] == ["starting", "running"]
                assert len(await events_of(asleep, leader.job_id, "attempt.acquired")) == 1
    assert "Traceback" not in (replicas[0].home.parent / "service.log").read_text()
