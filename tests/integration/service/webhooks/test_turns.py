"""Webhooks beside each other: whose turn it is, what goes first, and what is forgotten."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import Engine, event

from service.webhooks.dispatch import MIN_REST_S, Dispatcher
from service.webhooks.lookups import MAX_LEFT, resolve_by_system
from service.webhooks.outbox import CLAIM_LIFETIME, RETENTION, forget_old
from service.webhooks.sending import Parcel, Sender, Sent
from service.webhooks.turns import MAX_WEBHOOKS, REST
from tests.https_server import HOST, HttpsServer
from tests.integration.service.conftest import keep_in_step
from tests.webhook_hands import HERE, WEBHOOKS, add, deliveries, dispatcher, kinds

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


class FakeSender(Sender):
    """Delivers to paths but those below `/dead`, which fail at once, or hang."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []
        self.alive = asyncio.Event()
        """Something arrived."""
        self.may_fail = asyncio.Event()
        self.may_fail.set()

    async def send(self, parcel: Parcel, secret: str, now: datetime) -> Sent:
        path = urlsplit(parcel.url).path
        self.sent.append(path)
        if path.startswith("/dead"):
            await self.may_fail.wait()
            return Sent(None, "There was no answer within 10 s.")
        self.alive.set()
        return Sent(204)


async def test_endpoints_that_hang_do_not_take_the_turns_of_the_others(bench: Bench, server: HttpsServer) -> None:
    for number in range(MAX_WEBHOOKS + 1):
        await add(bench, server, "status", name=f"dead-{number}", path=f"/dead/{number}")
    await add(bench, server, "status", name="well", path="/well")
    for number in range(3):
        await bench.submit(f"job-{number}")
        await bench.post(f"/jobs/job-{number}/cancel", 202)
    sender = FakeSender()
    loop = Dispatcher(bench.context, sender)
    await loop.run_once()
    assert len(sender.sent) == MAX_WEBHOOKS
    bench.clock.advance(REST.total_seconds())
    sender.may_fail.clear()
    sender.alive.clear()
    running = asyncio.ensure_future(loop.run_once())
    try:
        async with asyncio.timeout(60):
            await sender.alive.wait()
    finally:
        sender.may_fail.set()
        await running
    assert f"/dead/{MAX_WEBHOOKS}" in sender.sent, "each has its turn, also among those that fail"


async def test_names_that_do_not_resolve_hold_up_their_own_project_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, server: HttpsServer
) -> None:
    hanging, may_end = threading.Semaphore(0), threading.Event()
    ask_system = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if not str(host).endswith(".example"):
            return ask_system(host, *arguments, **options)
        if host != HOST:
            hanging.release()
            may_end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return ask_system("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    await bench.post("/projects", 201, {"name": "vision"})
    for number in range(MAX_LEFT):
        url = server.url(host=f"dead-{number}.example")
        await bench.post("/projects/vision/webhooks", 201, {"name": f"dead-{number}", "url": url, "events": ["status"]})
    await add(bench, server, "status")
    await bench.submit("foreign", project="vision")
    await bench.schedule()
    loop = dispatcher(bench, server, resolve_by_system)

    async def tries() -> list[int]:
        names = [f"dead-{number}" for number in range(MAX_LEFT)]
        pages = [await bench.get(f"/projects/vision/webhooks/{name}/deliveries") for name in names]
        return [one["tries"] for page in pages for one in page["items"]]

    try:
        given_up = asyncio.ensure_future(loop.run_once())
        for _ in range(MAX_LEFT):
            assert await asyncio.to_thread(hanging.acquire, timeout=60)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        bench.clock.advance(CLAIM_LIFETIME.total_seconds())
        await bench.submit()
        await bench.schedule()
        async with asyncio.timeout(60):
            await loop.run_once()
        assert kinds(server) == ["job.status"]
        assert await tries() == [1] * MAX_LEFT, "it waits for its own lookups, and that is no try that failed"
    finally:
        may_end.set()
    async with asyncio.timeout(60):
        while await tries() != [2] * MAX_LEFT:
            await loop.run_once()


async def test_a_test_goes_before_what_waits(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.post("/jobs/digits/cancel", 202)
    await bench.post(f"{WEBHOOKS}/team/test", 202, wait=0)
    server.answers = [500]
    await dispatcher(bench, server).run_once()
    assert kinds(server) == ["webhook.test"]


async def test_what_is_due_is_found_by_an_index(make_bench: MakeBench, server: HttpsServer) -> None:
    looks: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool) -> None:
        if "deliveries" in statement and statement.startswith("SELECT"):
            looks.append((statement, parameters))

    async with make_bench("", webhooks=True, webhook_networks=(HERE,)) as bench:
        await add(bench, server, "status")
        await bench.submit()
        await bench.schedule()
        event.listen(Engine, "before_cursor_execute", note)
        try:
            await dispatcher(bench, server).run_once()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        with closing(sqlite3.connect(bench.settings.home / "rubato.db")) as database:
            plans = [
                database.execute(f"EXPLAIN QUERY PLAN {look}", parameters).fetchall() for look, parameters in looks
            ]
    assert len(server.received) == 1
    assert plans
    for plan in plans:
        steps = [step for *_, step in plan]
        assert any("ix_deliveries_pending" in step for step in steps), steps
        assert not any("TEMP B-TREE" in step or "SCAN deliveries" in step for step in steps), steps


async def test_a_webhook_that_is_deleted_meanwhile_takes_no_report_down(
    make_bench: MakeBench, new_postgres: Callable[[], str], server: HttpsServer
) -> None:
    url = new_postgres()
    async with make_bench(url, webhooks=True, webhook_networks=(HERE,)) as bench:
        await add(bench, server, "failure")
        await add(bench, server, "failure", name="stays")
        controller = await bench.start()
        address = url.replace("+psycopg", "")
        with psycopg.connect(address) as deleting, psycopg.connect(address, autocommit=True) as watching:
            deleting.execute("DELETE FROM webhooks WHERE name = 'team'")
            report = asyncio.ensure_future(controller.report(events=(controller.event("worker.lost"),)))
            while not watching.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone():
                assert not report.done()
                await asyncio.sleep(0)
            deleting.commit()
            await report
        assert [one["type"] for one in await deliveries(bench, "stays")] == ["worker.lost"]


async def test_what_is_too_old_is_forgotten_in_stretches_and_not_sent_any_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, server: HttpsServer
) -> None:
    await add(bench, server, "status")
    for index in range(3):
        await bench.submit(f"job-{index}")
        await bench.post(f"/jobs/job-{index}/cancel", 202)
    assert len(before := await deliveries(bench)) > 4
    bench.clock.advance(RETENTION.total_seconds() + 1)  # webhooks were off for so long
    monkeypatch.setattr("service.webhooks.outbox.ROWS", 2)
    async with bench.context.database.write() as session:
        assert await forget_old(session, bench.clock()), "there are more"
    assert len(await deliveries(bench)) == len(before) - 2
    sender = FakeSender()
    keep_in_step(monkeypatch, bench.clock)
    running = asyncio.ensure_future(Dispatcher(bench.context, sender).run())
    while await deliveries(bench):
        assert not running.done()
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sender.sent == []


async def test_what_is_old_by_a_clock_that_has_just_jumped_is_sent_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, server: HttpsServer
) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.post("/jobs/digits/cancel", 202)
    before = {one["id"] for one in await deliveries(bench)}
    keep_in_step(monkeypatch, bench.clock)
    bench.context.heartbeat.look(bench.clock())
    bench.clock.advance(RETENTION.total_seconds() + 1)
    sender = FakeSender()
    running = asyncio.ensure_future(Dispatcher(bench.context, sender).run())
    async with asyncio.timeout(60):
        while len(sender.sent) < len(before):
            assert not running.done()
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert {one["id"] for one in await deliveries(bench)} == before


async def test_by_a_clock_that_is_not_the_databases_nothing_is_sent(
    make_bench: MakeBench, new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch, server: HttpsServer
) -> None:
    """The bench's clock stands at another time. Others would take its claims for run out, and send all again."""
    async with make_bench(new_postgres(), webhooks=True, webhook_networks=(HERE,)) as bench:
        await add(bench, server, "status")
        await bench.submit()
        await bench.post("/jobs/digits/cancel", 202)
        sender = FakeSender()
        running = asyncio.ensure_future(Dispatcher(bench.context, sender).run())
        async with asyncio.timeout(60):
            while bench.context.heartbeat.out_of_step is None:
                assert not running.done()
                await asyncio.sleep(0.01)
            await asyncio.sleep(2 * MIN_REST_S)
            assert sender.sent == []
            keep_in_step(monkeypatch, bench.clock)
            await sender.alive.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
