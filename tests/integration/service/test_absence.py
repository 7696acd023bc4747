"""The service was away, or its clock was set: whoever could not be heard meanwhile is not taken for dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import select

from api.app import create_app
from service.database import Database
from service.models import Job, Lease
from service.notify import SCHEDULER
from service.settings import Settings
from tests.integration.service.conftest import BASE_URL, Bench, ManualClock
from tests.simulated_controller import PROCESS, SimulatedAgent, bearer

if TYPE_CHECKING:
    from rubato.wire.status import Status

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

PATIENCE_S = 300.0


@asynccontextmanager
async def with_its_loop(home: Path, database_url: str, *, is_in_step: bool = True) -> AsyncIterator[Bench]:
    """A service whose loop runs by itself, on a clock that a test moves; the database's goes with it, or on its own."""
    clock = ManualClock()
    settings = Settings(home=home, database_url=database_url, web_dist=home / "dist")
    app = create_app(settings, clock=clock)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    with pytest.MonkeyPatch.context() as patched:
        if is_in_step:
            keep_in_step(patched, clock)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client,
        ):
            token = (home / "token").read_text().strip()
            client.headers.update(bearer(token))
            agent = SimulatedAgent(client, (home / "cluster-token").read_text().strip())
            yield Bench(app, settings, clock, client, token, agent)


def keep_in_step(patched: pytest.MonkeyPatch, clock: ManualClock) -> None:
    """Let the database's clock say the same."""

    async def now(_: Database) -> datetime:
        return clock()

    patched.setattr(Database, "now", now)


async def until(bench: Bench, job_id: str, holds: Callable[[Job], bool]) -> Job:
    async def look() -> Job:
        async with bench.context.database.read() as session:
            return await session.get_one(Job, job_id)

    found: Job = await bench.context.hub.wait_until([SCHEDULER], look, holds, PATIENCE_S)
    assert holds(found)
    return found


async def statuses(bench: Bench, job_id: str) -> list[Status]:
    items = (await bench.get(f"/jobs/{job_id}/events", limit=1000))["items"]
    return [item["data"]["to"] for item in items if item["kind"] == "job.status"]


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
async def test_a_clock_that_jumps_expires_nobody(tmp_path: Path, database_url: str, jump_s: float) -> None:
    async with with_its_loop(tmp_path / "home", database_url) as bench:
        job: dict[str, Any] = await bench.submit()
        await bench.agent.sync()
        await until(bench, job["id"], lambda seen: seen.status == "starting")
        controller = await bench.controller_of(job["id"])
        await controller.acquire()
        await controller.report()
        rival = await bench.controller_of(job["id"], process=replace(PROCESS, pid=99))
        bench.clock.advance(jump_s)
        # At once: the loop has not looked yet, and by the clock alone a jump forward has ended the lease.
        refused = await rival.try_acquire()
        assert (refused.status_code, refused.json()["code"]) == (409, "lease_held")
        lease_s = bench.settings.lease.total_seconds()

        def is_rearmed(seen: Job) -> bool:
            assert seen.lease_expires_at is not None
            return 0 < (seen.lease_expires_at - bench.clock.now).total_seconds() <= lease_s

        await until(bench, job["id"], is_rearmed)
        assert (await rival.try_acquire()).json()["code"] == "lease_held"
        await controller.report(step=1)
        assert await statuses(bench, job["id"]) == ["starting", "running"]
        assert (await bench.job(job["id"]))["attempt"] == 1
        cancelled = await bench.post(f"/jobs/{job['id']}/cancel", 202)
        assert cancelled["status"] == "stopping"


async def test_by_a_clock_that_is_not_the_database_s_nothing_is_judged(
    tmp_path: Path, new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_its_loop(tmp_path / "home", new_postgres(), is_in_step=False) as bench:
        job = await bench.submit()
        await bench.agent.sync()

        async def look() -> str | None:
            return bench.context.heartbeat.out_of_step

        found = await bench.context.hub.wait_until([SCHEDULER], look, lambda seen: seen is not None, PATIENCE_S)
        assert found is not None
        assert found.endswith("behind that of the database")
        checks = {check["name"]: check for check in (await bench.client.get("/readyz")).json()["checks"]}
        assert not checks["scheduler"]["ok"]
        assert "synchronise" in checks["scheduler"]["detail"]
        async with bench.context.database.read() as session:
            assert (await session.scalars(select(Lease.name).where(Lease.name == "scheduler"))).all() == []
        assert (await bench.job(job["id"]))["status"] == "queued"
        keep_in_step(monkeypatch, bench.clock)
        await until(bench, job["id"], lambda seen: seen.status == "starting")
        assert bench.context.heartbeat.why_unsure(bench.clock(), 3600) is None
