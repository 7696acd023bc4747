"""The service under load: a process of its own, with a home of its own, on SQLite or PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.processes import ROOT, Processes, free_port
from tests.simulated_controller import SimulatedAgent, bearer

START_S = 60.0
CONNECTIONS = 2000
IDLE_S = 3.0
"""Far less than the 75 s after which the server closes an idle connection, maybe while a request is on its way."""


@dataclass(frozen=True)
class Service:
    """Where it listens, who may ask, and what it takes."""

    url: str
    home: Path
    database_url: str
    """Of SQLAlchemy, for a synchronous engine."""
    process: psutil.Popen

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is the embedded one."""
        return self.database_url.startswith("sqlite")

    @property
    def token(self) -> str:
        """The admin's."""
        return (self.home / "token").read_text().strip()

    def client(self, connections: int = CONNECTIONS) -> httpx.AsyncClient:
        """Signed in as admin; as many connections as there are requests under way, so many of them kept."""
        limits = httpx.Limits(max_keepalive_connections=connections, keepalive_expiry=IDLE_S)
        # No TLS here; certificates of authorities would be read for each client.
        return httpx.AsyncClient(
            base_url=self.url, headers=bearer(self.token), timeout=60, limits=limits, verify=False, trust_env=False
        )

    def agent(self, client: httpx.AsyncClient) -> SimulatedAgent:
        """The agent of its cluster."""
        return SimulatedAgent(client, (self.home / "cluster-token").read_text().strip())

    def memory_bytes(self) -> int:
        """What the process holds that is its own: pages that others map, too, count by their share."""
        return int(self.process.memory_full_info().pss)

    def cpu_s(self) -> float:
        """Processor time it has used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def running_service(folder: Path, database_url: str = "") -> Iterator[Service]:
    """Start it, wait until it is ready, and end it.

    Args:    folder: for its home and its log.  database_url: of a PostgreSQL; nothing: SQLite in the home.
    Raises:  RuntimeError: it ended, or was not ready in time; with the end of its log.
    """
    home, port = folder / "home", free_port()
    environment = {"RUBATO_HOME": str(home), "PYTHONPATH": str(ROOT)}
    # All of the load comes with one token.
    environment |= {"RUBATO_REQUESTS_PER_SECOND": "1e6", "RUBATO_REQUEST_BURST": "1000000"}
    environment["RUBATO_STREAMS_PER_USER"] = "10000"
    if database_url:
        environment["RUBATO_DATABASE_URL"] = database_url
    with Processes(folder / "service.log") as processes:
        process = processes.python("-m", "api", "--port", str(port), **environment)
        service = Service(f"http://127.0.0.1:{port}", home, database_url or f"sqlite:///{home / 'rubato.db'}", process)
        ends_at = time.monotonic() + START_S
        while not _is_ready(service.url):
            if process.poll() is not None or time.monotonic() > ends_at:
                raise RuntimeError(f"the service did not start:\n{processes.output()}")
            time.sleep(0.05)
        yield service


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
