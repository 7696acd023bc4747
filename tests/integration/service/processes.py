"""The service as a real process, to be killed and started again; and a reader of its event streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.simulated_controller import SimulatedAgent, SimulatedController, bearer

ROOT = Path(__file__).resolve().parents[3]


class ServiceProcess:
    """`python -m api` on a home of its own; every start takes a free port."""

    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        self.sign_in = ""
        """The line that says how to sign in."""

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a process without waiting for it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RUBATO_")}
        environment |= {"RUBATO_HOME": str(self.home), "PYTHONPATH": str(ROOT), **self._environment}
        log = (self.home.parent / "service.log").open("a")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "api", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it listens."""
        self._process = self.spawn("--port", "0")
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("Rubato listens on "), (line, (self.home.parent / "service.log").read_text())
        self.url = line.split()[-1]
        self.sign_in = self._process.stdout.readline()

    def kill(self) -> None:
        """SIGKILL, as a power cut for the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait(10) == -signal.SIGKILL
        self._close()

    def stop(self) -> int:
        """SIGTERM; gives the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(20)
        self._close()
        return code

    def wait(self, timeout_s: float) -> int:
        """Wait until it ends by itself; gives the exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_s)
        self._close()
        return code

    def end(self) -> None:
        """Leave nothing behind, whatever happened."""
        if self._process is not None:
            self.kill()

    def client(self) -> httpx.AsyncClient:
        """Signed in as admin."""
        token = (self.home / "token").read_text().strip()
        return httpx.AsyncClient(base_url=self.url, headers=bearer(token), timeout=60)

    def agent(self, client: httpx.AsyncClient) -> SimulatedAgent:
        """The agent of its cluster."""
        return SimulatedAgent(client, (self.home / "cluster-token").read_text().strip())

    def _close(self) -> None:
        assert self._process is not None
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None


async def submit(client: httpx.AsyncClient, name: str, **spec: Any) -> str:
    response = await client.post("/api/v1/jobs", json={"name": name, "recipe": "image-classifier", **spec})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def controller_of(client: httpx.AsyncClient, agent: SimulatedAgent, job_id: str) -> SimulatedController:
    """Wait until the job is to run, and lead it."""
    while True:
        tickets = {item.job_id: item.ticket for item in (await agent.sync(wait=2)).run}
        if job_id in tickets:
            controller = SimulatedController(client, job_id, tickets[job_id])
            await controller.acquire()
            return controller
        agent.version = 0


async def granted(controller: SimulatedController, workers: int) -> None:
    """Wait until the controller is told a number of workers."""
    told = await controller.desired()
    while told.workers != workers:
        told = await controller.desired(after=told.version, wait=5)


async def all_jobs(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Newest first, page by page."""
    found: list[dict[str, Any]] = []
    parameters = {"limit": "200"}
    while True:
        page = (await client.get("/api/v1/jobs", params=parameters)).raise_for_status().json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        parameters["cursor"] = page["next_cursor"]


async def events_of(client: httpx.AsyncClient, job_id: str, kind: str) -> list[dict[str, Any]]:
    """Those of a kind; its whole log has no gap."""
    items = (await client.get(f"/api/v1/jobs/{job_id}/events", params={"limit": 10_000})).json()["items"]
    assert [item["position"] for item in items] == list(range(1, len(items) + 1))
    return [item for item in items if item["kind"] == kind]


@dataclass
class StreamMessage:
    """One event of a stream, or a comment."""

    event: str = ""
    id: str | None = None
    data: Any = None
    comment: str = ""


@asynccontextmanager
async def open_stream(
    client: httpx.AsyncClient, path: str, *, last_event_id: str | None = None, **parameters: Any
) -> AsyncIterator[AsyncIterator[StreamMessage]]:
    """The messages of a stream, as they come."""
    headers = {"Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = last_event_id
    async with client.stream("GET", path, headers=headers, params=parameters) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _parse(response)


async def _parse(response: httpx.Response) -> AsyncIterator[StreamMessage]:
    message = StreamMessage()
    async for line in response.aiter_lines():
        if line == "":
            if message != StreamMessage():
                yield message
            message = StreamMessage()
        elif line.startswith(":"):
            message.comment = line[1:].strip()
        else:
            name, _, value = line.partition(": ")
            if name == "data":
                message.data = json.loads(value)
            else:
                setattr(message, name, value)
