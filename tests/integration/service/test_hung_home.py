"""A home whose disk hangs holds up what needs that disk, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from service import packages, readiness
from service.threads import SEARCHES, run_in
from tests.integration.service.test_backup import packed

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

PATIENCE_S = 120.0
DEFAULT_THREADS = 32
"""Of asyncio's own pool there are at most so many."""


@dataclass
class Disk:
    """Hangs from the first call on, until it is let go."""

    goes: threading.Event = field(default_factory=threading.Event)
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    calls: int = 0

    def hanging(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            self.waiting.release()
            self.goes.wait()
            return real(*args, **kwargs)

        return call

    async def has_begun(self) -> None:
        assert await run_in(SEARCHES, self.waiting.acquire, timeout=PATIENCE_S)


@pytest.fixture
def disk() -> Iterator[Disk]:
    found = Disk()
    yield found
    found.goes.set()


async def all_else_goes_on(bench: Bench, name: str) -> None:
    """What needs a transaction, and what needs a thread that everybody shares."""
    async with asyncio.timeout(PATIENCE_S):
        await bench.submit(name)
        await asyncio.to_thread(int)


async def test_probes_take_one_thread_however_long_the_disk_hangs(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "CHECK_S", 0.2)
    monkeypatch.setattr(readiness.shutil, "disk_usage", disk.hanging(readiness.shutil.disk_usage))
    try:
        for _ in range(DEFAULT_THREADS):
            bench.clock.advance(readiness.FRESH.total_seconds())
            response = await bench.client.get("/readyz")
            checks = {check["name"]: check for check in response.json()["checks"]}
            assert (response.status_code, checks["disk"]["detail"]) == (503, "no answer within 0.2 s")
        await all_else_goes_on(bench, "beside-a-hung-disk")
        assert disk.calls == 1
    finally:
        disk.goes.set()
    monkeypatch.setattr(readiness, "CHECK_S", 60.0)
    bench.clock.advance(readiness.FRESH.total_seconds())
    checks = {check["name"]: check for check in (await bench.client.get("/readyz")).json()["checks"]}
    assert checks["disk"]["ok"], checks


async def test_an_upload_that_hangs_holds_no_transaction(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_keep", disk.hanging(packages._keep))
    sha256, data = packed("hung")
    upload = asyncio.create_task(bench.client.put(f"/api/v1/packages/{sha256}", content=data))
    try:
        await disk.has_begun()
        await all_else_goes_on(bench, "beside-an-upload")
        assert not upload.done()
    finally:
        disk.goes.set()
        stored = await upload
    assert stored.status_code == 201, stored.text


@pytest.mark.parametrize("step", ["put_aside", "settle"])
async def test_a_removal_that_hangs_holds_no_transaction(
    make_bench: MakeBench, database_url: str, disk: Disk, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(packages.PackageStore, step, disk.hanging(getattr(packages.PackageStore, step)))
    async with make_bench(database_url, keep_packages_days=1) as bench:
        sha256, data = packed("unused")
        await bench.client.put(f"/api/v1/packages/{sha256}", content=data)
        bench.clock.advance(2 * 86_400)
        sweep = asyncio.create_task(bench.app.state.running.sweeper.run_once())
        try:
            await disk.has_begun()
            await all_else_goes_on(bench, "beside-a-removal")
            assert not sweep.done()
        finally:
            disk.goes.set()
            await sweep
        assert list((bench.settings.home / "packages").iterdir()) == []
