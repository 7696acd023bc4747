"""The service as a real process: kill -9 between acknowledged writes, a second one on the same home, its messages."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import sqlite3
import subprocess
from pathlib import Path

import httpx
import pytest

from api.__main__ import main
from rubato.wire.cluster import Report
from tests.integration.service.processes import ServiceProcess, all_jobs, controller_of, submit
from tests.simulated_controller import SimulatedController, log_line, metric
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio

SEED = 20260131
ROUNDS = 4


class Traffic:
    """Submits and reports until the connection is cut, and remembers what was acknowledged."""

    def __init__(self, controller: SimulatedController) -> None:
        self.controller = controller
        self.jobs: set[str] = set()
        self.steps = 0
        self.unacknowledged: Report | None = None
        self._names = itertools.count()
        self._replies = asyncio.Semaphore(0)

    async def replies(self, count: int) -> None:
        """Wait for so many more acknowledgements."""
        for _ in range(count):
            await self._replies.acquire()

    async def submit(self, client: httpx.AsyncClient) -> None:
        """One job after another, until the cut."""
        while True:
            spec = {"name": f"job-{next(self._names)}", "recipe": "image-classifier"}
            try:
                response = await client.post("/api/v1/jobs", json=spec)
            except httpx.TransportError:
                return
            assert response.status_code == 201, response.text
            self.jobs.add(response.json()["id"])
            self._replies.release()

    async def report(self) -> None:
        """One step after another, until the cut; the last batch stays to be sent again."""
        while True:
            if self.unacknowledged is None:
                self.steps += 1
                self.unacknowledged = self.controller.next_report(
                    step=self.steps,
                    metrics=(metric(self.steps),),
                    events=(self.controller.event("worker.ready", f"step {self.steps}"),),
                    logs=(log_line(f"line {self.steps}"),),
                )
            try:
                response = await self.controller.send(self.unacknowledged)
            except httpx.TransportError:
                return
            assert response.status_code == 200, response.text
            assert response.json()["ack"] == self.unacknowledged.batch
            self.unacknowledged = None
            self._replies.release()


@pytest.mark.each_database
async def test_kill_9_loses_nothing_acknowledged(service: ServiceProcess, database_url: str) -> None:
    """Submits and reports run while the service is killed; what got its reply is there, once, in order."""
    chance = random.Random(SEED)
    service.start()
    async with service.client() as client:
        job_id = await submit(client, "watched")
        traffic = Traffic(await controller_of(client, service.agent(client), job_id))

    for _ in range(ROUNDS):
        async with service.client() as client, asyncio.timeout(30), asyncio.TaskGroup() as group:
            traffic.controller.client = client
            group.create_task(traffic.submit(client))
            group.create_task(traffic.report())
            await traffic.replies(chance.randint(5, 30))
            # The next requests are on their way now: some stored, some not, none answered.
            service.kill()
        service.start()

    async with service.client() as client:
        traffic.controller.client = client
        if traffic.unacknowledged is not None:
            assert (await traffic.controller.send(traffic.unacknowledged)).status_code == 200
        stored = {job["id"] for job in await all_jobs(client)}
        events = (await client.get("/api/v1/jobs/watched/events", params={"limit": 10_000})).json()["items"]
        rows = (await client.get("/api/v1/jobs/watched/metrics", params={"limit": 10_000})).json()["items"]
        logs = (await client.get("/api/v1/jobs/watched/logs", params={"tail": 10_000})).json()["items"]
    steps = list(range(1, traffic.steps + 1))
    assert len(steps) > ROUNDS, "the faults met traffic"
    assert traffic.jobs <= stored, f"seed {SEED}: lost {traffic.jobs - stored}"
    assert [item["position"] for item in events] == list(range(1, len(events) + 1))
    assert [item["message"] for item in events if item["kind"] == "worker.ready"] == [f"step {step}" for step in steps]
    assert [row["step"] for row in rows] == steps
    assert [item["line"] for item in logs] == [f"line {step}" for step in steps]
    if not database_url:
        with contextlib.closing(sqlite3.connect(service.home / "rubato.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


async def exit_code(process: subprocess.Popen[str]) -> int:
    """Of a service that is to end by itself."""
    try:
        return await asyncio.to_thread(process.wait, 20)
    finally:
        if process.poll() is None:
            process.kill()
        assert process.stdout is not None
        process.stdout.close()


@ON_SQLITE  # PostgreSQL bears several: test_replicas.py
async def test_a_second_service_on_the_same_home_refuses(service: ServiceProcess) -> None:
    service.start()
    assert await exit_code(service.spawn("--port", "0")) == 1
    log = (service.home.parent / "service.log").read_text()
    assert "already works on" in log
    assert "give this one another RUBATO_HOME" in log
    assert "Traceback" not in log
    async with service.client() as client:
        assert (await client.get("/readyz")).status_code == 200


@ON_SQLITE  # no statement reaches the database
async def test_who_leaves_in_the_middle_of_a_request_is_no_fault_of_the_service(service: ServiceProcess) -> None:
    service.start()
    kinds = ("application/json", "application/yaml")
    for kind in kinds:
        await leave_in_the_middle(service, kind)
    log = service.home.parent / "service.log"

    def told() -> list[str]:
        return [line for line in log.read_text().splitlines() if '"path": "/api/v1/jobs"' in line]

    await asyncio.to_thread(wait_for, lambda: len(told()) == len(kinds), "the lines of the requests", 20.0)
    assert [json.loads(line)["status"] for line in told()] == [422, 422]
    assert "unhandled_error" not in log.read_text()


async def leave_in_the_middle(service: ServiceProcess, kind: str) -> None:
    url, token = httpx.URL(service.url), (service.home / "token").read_text().strip()
    _, writer = await asyncio.open_connection(url.host, url.port)
    head = (
        f"POST /api/v1/jobs HTTP/1.1\r\nHost: {url.host}\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\n"
    )
    writer.write(f"{head}Content-Length: 1000\r\n\r\nname: half".encode())
    await writer.drain()
    writer.close()
    await writer.wait_closed()


@ON_SQLITE
async def test_the_printed_link_signs_in(service: ServiceProcess) -> None:
    service.start()
    async with httpx.AsyncClient() as browser:
        response = await browser.get(service.sign_in.split()[-1])
        assert response.status_code == 303
        page = await browser.get(service.url)
        assert page.status_code == 200
        assert "text/html" in page.headers["content-type"]
        assert (await browser.get(f"{service.url}/api/v1/me")).json()["user"] == "admin"


@pytest.mark.parametrize("told", [{"RUBATO_PUBLISHED_ON_LOOPBACK": "true"}, {"RUBATO_BEHIND_TLS_PROXY": "true"}])
async def test_no_login_is_written_into_the_log_of_a_server(tmp_path: Path, told: dict[str, str]) -> None:
    """Whoever reads a container's log is not its admin."""
    service = ServiceProcess(tmp_path / "home", RUBATO_HOST="0.0.0.0", **told)
    try:
        service.start()
        assert service.sign_in == f"Sign in with the token in {service.home / 'token'}\n"
        with contextlib.closing(sqlite3.connect(service.home / "rubato.db")) as database:
            assert database.execute("SELECT count(*) FROM sessions").fetchone() == (0,), "no code that nobody needs"
    finally:
        service.end()


async def test_wrong_settings_are_refused_with_advice(tmp_path: Path) -> None:
    assert await exit_code(ServiceProcess(tmp_path / "home").spawn("--host", "0.0.0.0")) == 2
    log = (tmp_path / "service.log").read_text()
    assert "--behind-tls-proxy" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ([], {"RUBATO_STORAGE": "checkpoints"}, "must be absolute"),
        ([], {"RUBATO_STORAGE": "s3://"}, "s3://BUCKET/PREFIX"),
        ([], {"RUBATO_DATABASE_URL": "mysql://x"}, "postgresql+psycopg://"),
        (["--port", "99999"], {}, "65535"),
    ],
)
def test_each_wrong_setting_has_its_advice(
    arguments: list[str],
    environment: dict[str, str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in ({"RUBATO_HOME": str(tmp_path)} | environment).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert says in capsys.readouterr().err
