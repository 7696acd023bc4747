"""`rubato doctor`: what on this machine, in the home or at the service would get in the way. Only looks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rubato.cli.local_runs import bytes_of
from rubato.errors import ApiError, RubatoError, ServiceUnreachable, UserError
from rubato.home import Home, find_token, find_url, is_loopback, is_url_named
from rubato.wire.storage import parse_storage
from rubato.wire.units import plural

if TYPE_CHECKING:
    from rubato.client import Client

MIN_PYTHON = (3, 11)
FIXED_SQLITE = (3, 51, 3)
"""Older ones can lose a WAL page when a checkpoint is interrupted at the wrong moment."""
LOW_DISK_BYTES = 2 * 10**9
LOW_SHM_BYTES = 256 * 10**6
LOW_MEMORY_BYTES = 2 * 10**9
DISTRIBUTIONS = {
    "train": ("torch", "numpy", "safetensors"),
    "service": ("fastapi", "uvicorn", "sqlalchemy", "alembic", "aiosqlite", "prometheus-client", "cryptography"),
    "cluster": ("ray",),
    "recipes": ("scikit-learn",),
}


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Health:
    """One thing that was looked at."""

    level: Level
    what: str
    detail: str


def examine(home: Home, url: str | None) -> list[Health]:
    """Look at everything; one failing look does not hide the others."""
    looks: tuple[Callable[[], Iterator[Health]], ...] = (
        look_at_python,
        look_at_packages,
        look_at_machine,
        lambda: look_at_home(home),
        lambda: look_at_service(home, url),
    )
    return [found for look in looks for found in look()]


def look_at_python() -> Iterator[Health]:
    """Interpreter and SQLite."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    fine = sys.version_info >= MIN_PYTHON
    yield Health(
        Level.OK if fine else Level.PROBLEM, "python", version if fine else f"{version}; 3.11 or newer is needed"
    )
    if sqlite3.sqlite_version_info >= FIXED_SQLITE:
        yield Health(Level.OK, "sqlite", sqlite3.sqlite_version)
    else:
        yield Health(
            Level.WARNING,
            "sqlite",
            f"{sqlite3.sqlite_version}; {'.'.join(map(str, FIXED_SQLITE))} mends a rare fault of its write-ahead log; "
            "fine for trying out, but for lasting service use PostgreSQL (RUBATO_DATABASE_URL) or a newer Python",
        )


def look_at_packages() -> Iterator[Health]:
    """What is installed, by extra. Reads versions without importing: torch alone takes seconds."""
    for extra, names in DISTRIBUTIONS.items():
        found, missing = [], []
        for name in names:
            try:
                found.append(f"{name} {importlib.metadata.version(name)}")
            except importlib.metadata.PackageNotFoundError:
                missing.append(name)
        if missing:
            advice = (
                f"not installed: {', '.join(missing)}; needed here only for rubato[{extra}] (`make setup` installs all)"
            )
            yield Health(Level.WARNING, f"packages [{extra}]", advice)
        else:
            yield Health(Level.OK, f"packages [{extra}]", ", ".join(found))


def look_at_machine() -> Iterator[Health]:
    """Cores, memory, shared memory, and the folder for Ray's sockets."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    level = Level.OK if memory >= LOW_MEMORY_BYTES else Level.WARNING
    yield Health(level, "machine", f"{cores} cores, {memory / 1e9:.1f} GB of memory free; a worker takes about 0.4 GB")
    try:
        shared = shutil.disk_usage("/dev/shm").free
    except OSError:
        yield Health(Level.PROBLEM, "shared memory", "there is no /dev/shm; Ray needs it (containers: --shm-size=1g)")
    else:
        fine = shared >= LOW_SHM_BYTES
        advice = "" if fine else "; Ray needs about 256 MB (containers: --shm-size=1g)"
        yield Health(Level.OK if fine else Level.PROBLEM, "shared memory", f"{shared / 1e6:.0f} MB free{advice}")
    if not hasattr(os, "pidfd_open"):
        yield Health(Level.PROBLEM, "kernel", "pidfd_open is missing; `rubato up` needs Linux 5.3 or newer")
    if not os.access(tempfile.gettempdir(), os.W_OK):
        yield Health(Level.PROBLEM, "temporary folder", f"{tempfile.gettempdir()} is not writable; set TMPDIR")


def look_at_home(home: Home) -> Iterator[Health]:
    """Folder, disk, the permissions of secrets, the storage, and what is recorded as running."""
    from rubato.cli.keeper.daemon import is_held
    from rubato.cli.keeper.process_table import is_alive, is_own_namespace

    if not home.path.is_dir():
        yield Health(Level.OK, "home", f"{home.path} does not exist yet; `rubato up` makes it")
        return
    free = shutil.disk_usage(home.path).free
    fine = free >= LOW_DISK_BYTES
    detail = f"{home.path}, {free / 1e9:.1f} GB free"
    yield Health(Level.OK if fine else Level.WARNING, "home", detail if fine else f"{detail}; checkpoints need room")
    for name in ("token", "cluster-token", "scraper-token", "ray-token", "hmac-key", "secret-keys", "login.json"):
        path = home.path / name
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Health(Level.PROBLEM, f"permissions of {name}", f"others can read it; chmod 600 {path}")
    yield look_at_storage(home)
    yield from look_at_runs(home)
    record = home.read_record()
    if record is None:
        yield Health(Level.OK, "keeper", "down")
        return
    dead = [role for role, process in record.processes.items() if not is_alive(process)]
    if not is_held(home):
        detail = "run.json is there, but no keeper lives; `rubato up` takes over what still runs, `rubato down` ends it"
        yield Health(Level.WARNING, "keeper", detail)
    elif dead or not is_own_namespace(record.boot_id):
        yield Health(Level.WARNING, "keeper", f"up, but not running just now: {', '.join(dead)}; see {home.path}/*.log")
    else:
        pids = ", ".join(f"{role} {process.pid}" for role, process in record.processes.items())
        yield Health(Level.OK, "keeper", f"up since {record.started_at}, pids {pids}")


def look_at_runs(home: Home) -> Iterator[Health]:
    """What the folders of `rubato run` take; nothing removes them by itself."""
    from rubato.launch.records import run_ids, runs_folder

    if count := len(run_ids(home.path)):
        size = bytes_of(runs_folder(home.path)) / 1e9
        advice = "`rubato ps --runs` lists them, `rubato delete run_...` removes one"
        yield Health(Level.OK, "runs", f"{plural(count, 'run')} of `rubato run`, {size:.1f} GB; {advice}")


def look_at_storage(home: Home) -> Health:
    """Whether the next `rubato up` here can put checkpoints where it will; object stores are not asked."""
    from rubato.checkpoint.storage import open_folder

    named = os.environ.get("RUBATO_STORAGE") or home.keep_storage(None) or str(home.path / "checkpoints")
    try:
        where = parse_storage(named)
        open_folder(where)  # which looks for the package that speaks to it, and connects to nothing
    except UserError as error:
        return Health(Level.PROBLEM, "storage", str(error))
    if not where.is_local:
        return Health(Level.OK, "storage", f"{where}, its package is installed; it was not asked")
    path = Path(where.path)
    if not path.is_absolute():
        return Health(
            Level.PROBLEM, "storage", f"RUBATO_STORAGE must be absolute, for all nodes to find it; got {where}"
        )
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Health(Level.OK, "storage", f"{path}, {shutil.disk_usage(there).free / 1e9:.1f} GB free")
    detail = f"{path}: you cannot write to {there}; mend its owner, or name another folder with RUBATO_STORAGE"
    return Health(Level.PROBLEM, "storage", detail)


def look_at_service(home: Home, url: str | None) -> Iterator[Health]:
    """Whether it answers, knows the token, and has a cluster."""
    from rubato.client import Client

    address = find_url(url, home)
    is_named = is_url_named(url)
    is_down = not is_named and home.read_login() is None and home.read_record() is None
    if not is_down and find_token(None, address, home, is_named=is_named) is None:
        where = f"no token for {address}; `rubato login {address}`, or set RUBATO_TOKEN" + (
            "" if is_loopback(address) else " (files are for this machine)"
        )
        yield Health(Level.WARNING, "token", where)
    try:
        with Client(url, home=home) as client:
            who = client.whoami()
            yield Health(Level.OK, "service", f"answers at {address}, you are {who.get('user')} ({who.get('role')})")
            yield from _difference(client)
            yield from _checks_of(client)
            clusters = client.clusters()
    except ServiceUnreachable as error:
        yield Health(Level.WARNING, "service", str(error))
        return
    except ApiError as error:
        yield Health(Level.PROBLEM, "service", f"{address}: {error}")
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            # These it tells without its database, too.
            with Client(url, home=home) as client, contextlib.suppress(RubatoError):
                yield from _checks_of(client)
        return
    except RubatoError as error:
        yield Health(Level.PROBLEM, "service", f"{address}: {error}")
        return
    if not clusters:
        yield Health(Level.PROBLEM, "cluster", f"no agent has reported; see {home.log_file('agent')}")
    for cluster in clusters:
        fine = cluster.status == "online"
        detail = f"{cluster.status}, {cluster.slots_used:.0f} of {cluster.slots_total:.0f} slots used"
        level = Level.OK if fine else Level.PROBLEM
        yield Health(level, f"cluster {cluster.id}", detail if fine else f"{detail}; last seen {cluster.last_seen}")


def _difference(client: Client) -> Iterator[Health]:
    """Told where client and service are of different releases."""
    here, there = importlib.metadata.version("rubato"), client.version().get("version")
    if there != here:
        detail = f"it is release {there}, this command is {here}; bring both to the same one"
        yield Health(Level.WARNING, "service: release", detail)


def _checks_of(client: Client) -> Iterator[Health]:
    """What the service finds wrong with itself; what is fine is one line."""
    try:
        found = client.readiness()
    except ApiError as error:
        yield Health(Level.WARNING, "service: checks", f"it does not tell: {error}")
        return
    checks = [check for check in found.get("checks", []) if isinstance(check, dict)]
    wrong = [check for check in checks if not check.get("ok")]
    # What is behind all of them, such as a database that is away, is told once.
    alike: dict[str, list[dict[str, Any]]] = {}
    for check in wrong:
        alike.setdefault(str(check.get("detail")), []).append(check)
    for detail, group in alike.items():
        level = Level.PROBLEM if any(check.get("required") for check in group) else Level.WARNING
        yield Health(level, f"service: {', '.join(str(check.get('name')) for check in group)}", detail)
    if checks and not wrong:
        yield Health(Level.OK, "service: checks", ", ".join(f"{check['name']} {check['detail']}" for check in checks))
