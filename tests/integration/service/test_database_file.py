"""The file of a SQLite database is gone, another one or damaged: the service says so, stops, and starts in no other."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.service.processes import ServiceProcess, submit

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(900)]

PATIENCE_S = 300.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path / "home")
    process.start()
    yield process
    process.end()


def said(service: ServiceProcess) -> str:
    return (service.home.parent / "service.log").read_text()


def refused_start(service: ServiceProcess) -> None:
    process = service.spawn("--port", "0")
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 1
    assert out == "", "it never listened"


@pytest.mark.parametrize("how", ["removed", pytest.param("replaced", marks=pytest.mark.long)])
async def test_a_file_that_is_gone_stops_the_service_and_nothing_is_acknowledged(
    service: ServiceProcess, how: str
) -> None:
    path = service.home / "rubato.db"
    async with service.client() as client:
        await submit(client, "stored")
        kept = service.home / "kept"
        kept.mkdir()
        for name in ("rubato.db", "rubato.db-wal"):
            os.link(service.home / name, kept / name)
        path.unlink()
        if how == "replaced":
            path.write_bytes(b"")
        try:
            response = await client.post("/api/v1/jobs", json={"name": "late", "recipe": "image-classifier"})
        except httpx.TransportError:
            pass  # it has stopped already
        else:
            assert response.status_code == 503, response.text
            assert response.headers["Retry-After"]
    assert await asyncio.to_thread(service.wait, PATIENCE_S) == 1
    assert f"{path} was {'removed' if how == 'removed' else 'replaced by another file'} while" in said(service)
    # As a keeper starts it again: with what lies there now.
    await asyncio.to_thread(refused_start, service)
    what = "gone" if how == "removed" else "empty"
    assert f"{path} is {what}, and a service has worked on it before" in said(service)
    path.unlink(missing_ok=True)
    await asyncio.to_thread(refused_start, service)
    assert f"{path} is gone, and a service has worked on it before" in said(service)
    for name in ("rubato.db", "rubato.db-wal"):
        (service.home / name).unlink(missing_ok=True)
        shutil.copy(kept / name, service.home / name)
    await asyncio.to_thread(service.start)
    async with service.client() as client:
        assert (await client.get("/api/v1/jobs/stored")).status_code == 200


async def test_a_damaged_file_is_told_at_the_start(service: ServiceProcess) -> None:
    async with service.client() as client:
        await submit(client, "stored")
    assert service.stop() == 0
    path = service.home / "rubato.db"
    path.write_bytes(b"\xff" * path.stat().st_size)
    await asyncio.to_thread(refused_start, service)
    assert f"{path} is damaged (file is not a database)" in said(service)
    assert "Traceback" not in said(service)
