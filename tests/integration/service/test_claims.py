"""Many controllers that claim the same attempts at once, through one service or two: each attempt is one's."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from rubato.wire.cluster import Acquired, ProcessIdentity
from rubato.wire.codec import from_json
from service.models import Attempt
from tests.simulated_controller import SimulatedController, one_node

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

CLAIMERS = 8
JOBS = 25
"""Of which each claimer claims each: 200 claims."""


async def claim_all(controllers: list[SimulatedController]) -> list[SimulatedController]:
    """One claimer, which goes for one job after the other; gives those that it got."""
    got = []
    for controller in controllers:
        response = await controller.try_acquire()
        if response.status_code == 200:
            controller.acquired = from_json(Acquired, response.json())
            got.append(controller)
        else:
            assert (response.status_code, response.json()["code"]) == (409, "lease_held"), response.text
    return got


async def attempts_of(bench: Bench) -> list[tuple[str, int, str]]:
    """Job, number and boot of the process of every attempt in the database."""
    async with bench.context.database.read() as session:
        rows = await session.scalars(select(Attempt).order_by(Attempt.job_id, Attempt.number))
        return [(row.job_id, row.number, row.boot_id) for row in rows]


async def test_of_two_hundred_claims_by_eight_none_is_double(make_bench: MakeBench, database_url: str) -> None:
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(make_bench(database_url))
        services = [first]
        if database_url:  # of SQLite there is one service
            services.append(await stack.enter_async_context(make_bench(database_url, clock=first.clock)))
        first.agent.nodes = one_node(JOBS)
        for number in range(JOBS):
            await first.submit(f"job-{number}", workers={"initial": 1, "min": 1, "max": 1})
        tickets: dict[str, str] = {}
        for _ in range(JOBS):  # a round starts as many as it has time for, and one at least
            await first.schedule()
            tickets |= {item.job_id: item.ticket for item in (await first.agent.sync()).run}
            if len(tickets) == JOBS:
                break
        assert len(tickets) == JOBS
        former: list[SimulatedController] = []
        expected: list[tuple[str, int, str]] = []
        for attempt in (1, 2):
            rivals = []
            for one, service in zip(range(CLAIMERS), itertools.cycle(services), strict=False):
                process = ProcessIdentity("node-1", f"boot-{one}", 100 + one, 1)
                # Two have the same order, so that they are after the same jobs at the same time, through both services.
                begin = one // 2 * JOBS // (CLAIMERS // 2)
                order = [*tickets.items()][begin:] + [*tickets.items()][:begin]
                rivals.append([SimulatedController(service.client, job, ticket, process) for job, ticket in order])
            taken = await asyncio.gather(*(claim_all(controllers) for controllers in rivals))
            got = [controller for by_one in taken for controller in by_one]
            assert Counter(controller.job_id for controller in got) == dict.fromkeys(tickets, 1)
            if database_url:  # SQLite has one writer
                assert sum(bool(by_one) for by_one in taken) > 1, "they took turns for one that did all"
            expected += [(one.job_id, attempt, one.process.boot_id) for one in got]
            assert await attempts_of(first) == sorted(expected)
            for controller in got:
                assert controller.acquired is not None
                assert controller.acquired.attempt == attempt
                await controller.report()
            for stale in former:
                refused = await stale.send(stale.next_report())
                assert (refused.status_code, refused.json()["code"]) == (409, "fenced")
            former = got
            # Silent from now on, for the lease and its margin.
            first.clock.advance(50)
            await first.agent.sync()
