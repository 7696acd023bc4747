"""A watcher of all jobs hears of every change, however long it waited for the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rubato.wire.cluster import Outcome, Result
from service import watch
from service.access import Principal, Role
from service.clock import utc_now
from service.jobs import find
from service.watch import JobWatch
from tests.simulated_controller import PROCESS

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

ADMIN = Principal(Role.ADMIN, "admin")


@asynccontextmanager
async def when_all_wait(bench: Bench, for_s: float, *work: Callable[[], Awaitable[Any]]) -> AsyncIterator[list[Any]]:
    """All of it waits for the writer's turn, for so long by the clock; it is done behind the block."""
    turn = bench.context.database._write_turn
    assert turn is not None
    waiting: list[asyncio.Future[Any]] = []
    results: list[Any] = []
    async with turn:
        for one in work:
            waiting.append(asyncio.ensure_future(one()))
            while len(turn._waiters or ()) < len(waiting):  # type: ignore[attr-defined]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        bench.clock.advance(for_s)
        yield results
    results += await asyncio.gather(*waiting)


async def changed(watcher: JobWatch) -> dict[str, Any]:
    return {shown["name"]: shown["status"] for _, shown in await watcher.changes()}


async def reports(bench: Bench) -> Callable[[], Awaitable[Any]]:
    controller = await bench.start()
    ended = Outcome(state="succeeded", result=Result(step=9, digest="d" * 64))
    return lambda: controller.report(outcome=ended)


async def acquires(bench: Bench) -> Callable[[], Awaitable[Any]]:
    job = await bench.submit()
    await bench.schedule()
    return (await bench.controller_of(job["id"])).acquire


async def schedules(bench: Bench) -> Callable[[], Awaitable[Any]]:
    await bench.agent.sync()
    await bench.submit()

    async def change() -> None:
        for _ in range(2):  # a round whose turn came late leaves it to the next one
            await bench.loop.run_once()

    return change


async def sweeps(bench: Bench) -> Callable[[], Awaitable[Any]]:
    await (await reports(bench))()
    bench.clock.advance(2 * 86_400)
    return bench.app.state.running.sweeper.run_once


@pytest.mark.parametrize("begin", [reports, acquires, schedules, sweeps])
async def test_what_waited_long_for_the_writer_is_told(
    make_bench: MakeBench, begin: Callable[[Bench], Awaitable[Callable[[], Awaitable[Any]]]]
) -> None:
    async with make_bench(keep_events_days=1) as bench:
        change = await begin(bench)
        bench.clock.advance(25)
        watcher = JobWatch(bench.context, ADMIN)
        await watcher.snapshot()
        async with when_all_wait(bench, 20, change):
            assert await changed(watcher) == {}
        assert list(await changed(watcher)) == ["digits"]


async def test_who_waited_for_the_writer_with_its_controller_is_not_silent(make_bench: MakeBench) -> None:
    async with make_bench() as bench:
        controller = await bench.start()
        rival = await bench.controller_of(controller.job_id, process=replace(PROCESS, pid=99))
        bench.clock.advance(31)
        async with when_all_wait(bench, 60, bench.loop.run_once, rival.try_acquire, controller.report) as waited:
            pass
        [_, refused, _] = waited
        assert (refused.status_code, refused.json()["code"]) == (409, "lease_held")
        job = await bench.job("digits")
        assert (job["status"], job["attempt"]) == ("running", 1)


async def test_what_was_long_in_the_writing_is_told(make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that stands still in the commit itself."""
    monkeypatch.setattr(watch, "MARGIN", timedelta(0))
    async with make_bench(clock=utc_now) as bench:
        await bench.submit()
        watcher = JobWatch(bench.context, ADMIN)
        await watcher.snapshot()
        async with bench.context.database.write() as session:
            job = await find(session, "digits")
            job.updated_at, job.message, job.revision = bench.context.clock(), "changed", job.revision + 1
            await session.flush()
            for _ in range(3):
                await asyncio.sleep(0.1)
                assert await watcher.changes() == []
        [(_, shown)] = await watcher.changes()
        assert shown["message"] == "changed"
