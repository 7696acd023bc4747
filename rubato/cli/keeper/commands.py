"""How each process of a home is started: command line and environment."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import rubato
from rubato.cli.keeper.ports import find_free_ports, find_node_address
from rubato.errors import KeeperError
from rubato.home import Home, write_atomically

HOST = "127.0.0.1"
CLUSTER = "default"
MARK = "RUBATO_KEEPER"
"""Environment variable that every process of a keeper inherits, with the keeper's own random value."""
MIN_SLOTS = 8
"""On a laptop of two cores one still wants to scale to four workers and see what happens."""
DATABASE_URL = "RUBATO_DATABASE_URL"
"""May hold a password: the service's alone, never in Ray's environment, where users' code runs."""
STORAGE = "RUBATO_STORAGE"
OBJECT_STORE_BYTES = 128 * 1024 * 1024
"""Tensors never travel through Ray's object store, so the default of 30 % of memory would be a waste."""


@dataclass(frozen=True)
class Layout:
    """What stays the same while a keeper lives."""

    home: Home
    port: int
    slots: int
    ray_temp_dir: Path
    mark: str

    @property
    def url(self) -> str:
        """Address of the service."""
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True)
class RayPlan:
    """One start of Ray: its ports are chosen anew each time, so that a taken one is a matter of one restart."""

    host: str
    port: int
    command: list[str]
    environment: dict[str, str]

    @property
    def address(self) -> str:
        """Where the agent finds it."""
        return f"{self.host}:{self.port}"


def find_checkout() -> Path:
    """The folder with `api`, `service` and `jobs` beside `rubato`.

    Raises:
        KeeperError: rubato is installed without them, or their packages are missing.
    """
    if not sys.platform.startswith("linux"):
        raise KeeperError(
            f"`rubato up` needs Linux (it finds its processes by /proc), this is {sys.platform}; "
            "use docker compose, or a service elsewhere with --url"
        )
    root = Path(rubato.__file__).resolve().parent.parent
    missing = [name for name in ("api", "jobs") if not (root / name).is_dir()]
    if missing:
        raise KeeperError(
            f"the service runs from a checkout of Rubato, and {root} holds no {' and no '.join(missing)}; "
            "call `rubato up` of a checkout (`make up`), or use a service elsewhere with --url"
        )
    for module, extra in (("ray", "cluster"), ("uvicorn", "service")):
        if importlib.util.find_spec(module) is None:
            raise KeeperError(f"{module} is not installed here; run `make setup`, or pip install -e '.[{extra}]'")
    return root


def default_slots() -> int:
    """CPU slots that an embedded Ray offers."""
    return max(MIN_SLOTS, len(os.sched_getaffinity(0)))


def ensure_ray_token(home: Home) -> Path:
    """The token of this home's Ray; `ray start` does not make one by itself."""
    path = home.path / "ray-token"
    if not path.is_file() or path.stat().st_size == 0:
        write_atomically(path, secrets.token_hex(32), mode=0o600)
    return path


def base_environment(layout: Layout, checkout: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment all processes of a home share."""
    # A RAY_* of the user's shell (an address, a token, a feature flag) is meant for another cluster.
    dropped = ("PYTHONPATH", DATABASE_URL)
    kept = {key: value for key, value in inherited.items() if not key.startswith("RAY_") and key not in dropped}
    return {
        **kept,
        MARK: layout.mark,
        "RUBATO_HOME": str(layout.home.path),
        "PYTHONPATH": str(checkout),
        "PYTHONUNBUFFERED": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(ensure_ray_token(layout.home)),
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def plan_ray(layout: Layout, environment: Mapping[str, str]) -> RayPlan:
    """A head node that shares no port, folder or token with another Ray of this machine."""
    gcs, client, agent, metrics = find_free_ports(4)
    host = find_node_address()
    # Ray refuses the flag where its client server, which nobody here uses, cannot run for want of grpc.
    client_port = [f"--ray-client-server-port={client}"] if importlib.util.find_spec("grpc") else []
    command = [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        f"--node-ip-address={host}",
        f"--port={gcs}",
        f"--num-cpus={layout.slots}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={layout.ray_temp_dir}",
        # These have fixed default ports (10001, 52365): a second home would find them taken.
        *client_port,
        f"--dashboard-agent-listen-port={agent}",
        # Nothing here reads the dashboard, the autoscaler's monitor or the log files on a driver.
        "--include-dashboard=false",
        "--include-log-monitor=false",
        "--no-monitor",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
    ]
    return RayPlan(host, gcs, command, {**environment, "DASHBOARD_METRIC_PORT": str(metrics)})


def service_command() -> list[str]:
    """The service: FastAPI and the scheduler in one process."""
    return [sys.executable, "-P", "-m", "api"]


def service_environment(layout: Layout, environment: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Where the service listens, its database and storage: those that the keeper is told now, else the last ones."""
    kept = {
        DATABASE_URL: layout.home.keep_database_url(inherited.get(DATABASE_URL)),
        STORAGE: layout.home.keep_storage(inherited.get(STORAGE)),
    }
    named = {name: value for name, value in kept.items() if value}
    return {**environment, **named, "RUBATO_HOST": HOST, "RUBATO_PORT": str(layout.port)}


def agent_command(layout: Layout, ray_address: str) -> list[str]:
    """The agent: makes the cluster do what the service says."""
    return [
        *(sys.executable, "-P", "-m", "jobs.agent"),
        *("--url", layout.url, "--ray-address", ray_address, "--cluster", CLUSTER),
        *(
            "--agent-id",
            "keeper",
        ),  # which has one at a time: the next one acts at once
    ]
