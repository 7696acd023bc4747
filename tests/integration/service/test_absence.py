"""The service was away, or its clock was set: whoever could not be heard meanwhile is not taken for dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import delete, select

from api.app import create_app
from service.models import Job, Lease
from service.notify import SCHEDULER
from service.settings import Settings
from service.vigil import note_listening, rearm_unheard
from tests.integration.service.conftest import BASE_URL, Bench, ManualClock, keep_in_step
from tests.integration.service.test_removal import finished, left_of, logs_of, remove, rows_of, sweep_all
from tests.simulated_controller import PROCESS, SimulatedAgent, bearer

if TYPE_CHECKING:
    from rubato.wire.status import Status
    from tests.integration.service.conftest import MakeBench

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


async def test_by_a_clock_that_has_just_jumped_no_limit_is_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start("limited", limits={"max_duration": "2h"})
    await bench.submit("patient", workers={"initial": 99, "min": 99, "max": 99}, limits={"queue_timeout": "2h"})
    await bench.schedule()
    bench.context.heartbeat.look(bench.clock())
    bench.clock.advance(86_400)
    for _ in range(2):
        await controller.report()
        await bench.schedule()
        assert (await bench.job("limited"))["status"] == "running"
        assert (await bench.job("patient"))["status"] == "queued"
        bench.context.heartbeat.look(bench.clock())  # as the loop does, once a second
    monkeypatch.setattr("service.heartbeat.SETTLING_S", 0.0)
    await bench.schedule()
    assert (await bench.job("limited"))["status"] == "stopping"
    assert (await bench.job("patient"))["status"] == "failed"


async def test_a_clock_that_has_just_jumped_ends_no_history(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_bench(keep_logs_days=1, keep_events_days=1) as bench:
        job_id, deleted = await finished(bench), await finished(bench, "deleted")
        sweeper = bench.app.state.running.sweeper
        bench.context.heartbeat.look(bench.clock())
        bench.clock.advance(2 * 86_400)
        await sweeper.run_once()
        bench.context.heartbeat.look(bench.clock())  # as the loop does, once a second
        await sweeper.run_once()
        assert (await rows_of(bench, job_id))["events"]
        assert list(logs_of(bench, job_id).iterdir())
        await remove(bench, deleted, 204)
        await sweep_all(bench)
        assert await left_of(bench, deleted) == [], "somebody asked for that"
        bench.context.heartbeat.look(bench.clock())
        monkeypatch.setattr("service.heartbeat.SETTLING_S", 0.0)
        await sweeper.run_once()
        assert (await rows_of(bench, job_id))["events"] == 0


async def test_whoever_starts_next_schedules_at_once(make_bench: MakeBench, database_url: str) -> None:
    clock = ManualClock()
    async with make_bench(database_url, clock=clock) as bench:
        await bench.submit("first")
        await bench.schedule()
        assert (await bench.job("first"))["status"] == "starting"
        await bench.app.state.running.sweeper.run_once()
    async with make_bench(database_url, clock=clock) as bench:
        async with bench.context.database.read() as session:
            assert (await session.scalars(select(Lease).where(Lease.holder != ""))).all() == []
        await bench.submit("second")
        await bench.schedule()
        assert (await bench.job("second"))["status"] == "starting"


async def test_the_role_of_a_process_that_was_killed_is_free_at_once_in_a_file(make_bench: MakeBench) -> None:
    clock = ManualClock()
    async with make_bench(clock=clock) as bench:
        await hold(bench, "killed", clock.now + timedelta(seconds=30))
    async with make_bench(clock=clock) as bench:
        await bench.submit()
        await bench.schedule()
        assert (await bench.job("digits"))["status"] == "starting"


async def test_a_role_taken_by_a_clock_that_was_set_back_since_is_free(bench: Bench) -> None:
    await bench.submit()
    await hold(bench, "another", bench.clock.now + timedelta(seconds=30))
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "queued"
    await hold(bench, "another", bench.clock.now + timedelta(hours=1))
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "starting"


async def test_readyz_says_who_decides(make_bench: MakeBench, new_postgres: Callable[[], str]) -> None:
    async with make_bench(new_postgres()) as bench:
        await bench.submit()
        await bench.schedule()
        assert "another replica" not in await told_of_the_scheduler(bench)
        bench.clock.advance(2)
        await hold(bench, "another", bench.clock.now + timedelta(seconds=30))
        assert (await told_of_the_scheduler(bench)).endswith("; another replica decides")


async def test_a_replica_that_restarts_keeps_no_silent_controller_alive(
    make_bench: MakeBench, new_postgres: Callable[[], str]
) -> None:
    url, clock = new_postgres(), ManualClock()
    async with make_bench(url, clock=clock) as first:
        await first.start()
        await first.post("/jobs/digits/cancel", 202, {"force": True})
        for _ in range(4):
            clock.advance(50)
            await note_listening(first.context)
            async with make_bench(url, clock=clock) as second:
                assert not await rearm_unheard(second.context)
        await first.loop.run_once()
        assert (await first.job("digits"))["status"] == "cancelled"
        clock.advance(7)
        assert await rearm_unheard(first.context), "nobody listened any more"
        clock.advance(-3600)
        assert await rearm_unheard(first.context), "it was set back: what that replica noted says nothing"


async def hold(bench: Bench, holder: str, until: datetime) -> None:
    async with bench.context.database.write() as session:
        await session.execute(delete(Lease).where(Lease.name == "scheduler"))
        session.add(Lease(name="scheduler", holder=holder, expires_at=until))


async def told_of_the_scheduler(bench: Bench) -> str:
    checks = (await bench.client.get("/readyz")).json()["checks"]
    return str(next(check["detail"] for check in checks if check["name"] == "scheduler"))
