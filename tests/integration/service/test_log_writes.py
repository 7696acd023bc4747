"""Log lines are stored in order, once, and whatever their disk does: nothing else waits for it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

import service.ingest
from service import database, log_writes, logs
from tests.simulated_controller import PROCESS, log_line

if TYPE_CHECKING:
    import httpx

    from rubato.wire.cluster import Report
    from tests.integration.service.conftest import Bench, MakeBench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio

PATIENCE_S = 120.0


@dataclass
class Disk:
    """Of the logs; it syncs when it is told to."""

    goes: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """One for each sync that has begun."""
    real: Callable[[int], None] = os.fdatasync

    def sync(self, descriptor: int) -> None:
        self.waiting.release()
        self.goes.wait()
        self.real(descriptor)

    async def has_begun(self, syncs: int = 1) -> None:
        for _ in range(syncs):
            assert await asyncio.to_thread(self.waiting.acquire, timeout=PATIENCE_S)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk()
    found.goes.set()
    monkeypatch.setattr(logs.os, "fdatasync", found.sync)
    yield found
    found.goes.set()


async def lines(bench: Bench, name: str = "digits") -> list[str]:
    return [item["line"] for item in (await bench.get(f"/jobs/{name}/logs"))["items"]]


async def send_until_stored(controller: SimulatedController, report: Report) -> None:
    """As a controller does."""
    async with asyncio.timeout(PATIENCE_S):
        while (response := await controller.send(report)).status_code == 503:
            assert response.json()["code"] == "not_ready"
            await asyncio.sleep(0.05)
    assert response.status_code == 200, response.text


def refused(response: httpx.Response, because: str) -> None:
    assert (response.status_code, response.json()["code"]) == (503, "not_ready"), response.text
    assert because in response.json()["detail"]
    assert response.headers["retry-after"]


async def test_while_the_disk_hangs_all_else_goes_on(
    make_bench: MakeBench, database_url: str, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "POSTGRES_CONNECTIONS", 3)
    async with make_bench(database_url) as bench:
        bench.agent.nodes = (replace(bench.agent.nodes[0], cpu=64),)
        writers = [await bench.start(f"job-{number}") for number in range(14)]
        idle = await bench.start("idle")
        reports = [controller.next_report(logs=(log_line(controller.job_id),)) for controller in writers]
        disk.goes.clear()
        sent = [asyncio.ensure_future(one.send(report)) for one, report in zip(writers, reports, strict=True)]
        await disk.has_begun()
        try:
            async with asyncio.timeout(10):
                await bench.submit("another")
                await idle.report(step=5)
                await bench.post(f"/jobs/{writers[0].job_id}/cancel", 202)
                await bench.agent.sync()
                assert len((await bench.get("/jobs"))["items"]) == 16
            assert not any(one.done() for one in sent)
        finally:
            disk.goes.set()
            await asyncio.gather(*sent)
        for controller, report in zip(writers, reports, strict=True):
            await send_until_stored(controller, report)
            assert await lines(bench, controller.job_id) == [controller.job_id]


async def test_a_disk_that_hangs_longer_than_anybody_waits_keeps_the_order_of_lines(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    controller = await bench.start()
    report = controller.next_report(logs=(log_line("one"), log_line("two")))
    disk.goes.clear()
    with monkeypatch.context() as patched:
        patched.setattr(log_writes, "DISK_TIMEOUT_S", 2.0)
        refused(await controller.send(report), "does not answer")
    await disk.has_begun()
    # It is sent again, while the first one still hangs in the disk.
    refused(await controller.send(report), "busy with an earlier batch")
    disk.goes.set()
    await send_until_stored(controller, report)
    await controller.report(logs=(log_line("three"),))
    assert await lines(bench) == ["one", "two", "three"]


async def test_a_request_that_is_cut_off_lets_go_of_the_log_with_its_disk(bench: Bench, disk: Disk) -> None:
    controller = await bench.start()
    report = controller.next_report(logs=(log_line("one"),))
    disk.goes.clear()
    sending = asyncio.ensure_future(controller.send(report))
    await disk.has_begun()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    refused(await controller.send(report), "busy")
    disk.goes.set()
    await send_until_stored(controller, report)
    assert await lines(bench) == ["one"]


async def test_lines_whose_report_is_not_stored_are_cut(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    await controller.report(logs=(log_line("one"),))
    report = controller.next_report(logs=(log_line("two, and more"), log_line("three")))

    async def fail(*_: Any) -> None:
        raise RuntimeError("behind the lines, before the commit")

    with monkeypatch.context() as patched:
        patched.setattr(service.ingest, "take_answers", fail)
        assert (await controller.send(report)).status_code == 500
    assert await lines(bench) == ["one"]
    segment = bench.settings.home / "logs" / controller.job_id / "00000000.jsonl"
    assert b"three" in segment.read_bytes()
    again = replace(report, logs=(log_line("2"),))
    await send_until_stored(controller, again)
    assert await lines(bench) == ["one", "2"]
    assert b"three" not in segment.read_bytes()


async def test_a_superseded_controller_leaves_no_line_behind_its_successor(bench: Bench, disk: Disk) -> None:
    first = await bench.start()
    disk.goes.clear()
    sending = asyncio.ensure_future(first.send(first.next_report(logs=(log_line("of the first"), log_line("more")))))
    await disk.has_begun()
    second = await bench.controller_of(first.job_id, process=replace(PROCESS, pid=99))
    await second.acquire(gone=1)
    report = second.next_report(logs=(log_line("of the second"),))
    refused(await second.send(report), "busy")
    disk.goes.set()
    response = await sending
    assert (response.status_code, response.json()["code"]) == (409, "fenced")
    await send_until_stored(second, report)
    assert await lines(bench) == ["of the second"]


@pytest.fixture
async def replicas(make_bench: MakeBench, new_postgres: Callable[[], str]) -> AsyncIterator[tuple[Bench, Bench]]:
    url = new_postgres()
    async with make_bench(url) as first, make_bench(url, clock=first.clock) as second:
        yield first, second


@pytest.mark.parametrize("keeps_lock", [True, False])
async def test_a_replica_that_was_stopped_before_it_wrote_cuts_nothing_that_another_one_has_stored(
    replicas: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch, keeps_lock: bool
) -> None:
    """On a network file system it may lose its lock meanwhile."""
    stopped, other = replicas
    controller = await stopped.start()
    await controller.report(logs=(log_line("one"),))
    report = controller.next_report(logs=(log_line("two"),))
    entered, goes_on = threading.Event(), threading.Event()
    encode = logs._encode

    def stop(*parts: Any) -> bytes:
        entered.set()
        goes_on.wait(PATIENCE_S)
        return encode(*parts)

    monkeypatch.setattr(log_writes, "DISK_TIMEOUT_S", 2.0)
    monkeypatch.setattr(logs, "_encode", stop)
    if not keeps_lock:
        monkeypatch.setattr(logs.fcntl, "flock", lambda *_: None)
    sending = asyncio.ensure_future(controller.send(report))
    assert await asyncio.to_thread(entered.wait, PATIENCE_S)
    monkeypatch.setattr(logs, "_encode", encode)
    refused(await sending, "does not answer")
    controller.client = other.client
    if keeps_lock:
        refused(await controller.send(report), "busy")
        goes_on.set()
    monkeypatch.setattr(log_writes, "DISK_TIMEOUT_S", 12.0)
    await send_until_stored(controller, report)
    await controller.report(logs=(log_line("three"),))
    goes_on.set()
    # Its threads are free again once all of them have met here.
    barrier = threading.Barrier(log_writes.APPENDS._max_workers)
    for met in [log_writes.APPENDS.submit(barrier.wait, PATIENCE_S) for _ in range(barrier.parties)]:
        await asyncio.wrap_future(met)
    controller.client = stopped.client
    await controller.report(logs=(log_line("four"),))
    assert await lines(other) == ["one", "two", "three", "four"]
