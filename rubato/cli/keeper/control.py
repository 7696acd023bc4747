"""What `rubato up` and `rubato down` do: start a keeper and wait until jobs can run; end it, and what it left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rubato.cli.keeper import commands
from rubato.cli.keeper.daemon import end_recorded, family_of, is_held
from rubato.cli.keeper.ports import describe_holder, is_port_free
from rubato.cli.keeper.process_table import (
    identify,
    is_alive,
    is_own_namespace,
    send_signal,
    wait_until_gone,
)
from rubato.errors import KeeperError, RubatoError
from rubato.home import Home, RecordedProcess, RunRecord
from rubato.wire.storage import parse_storage

if TYPE_CHECKING:
    from rubato.client import Client

UP_TIMEOUT_S = 120.0
DOWN_TIMEOUT_S = 30.0
CHECKPOINT_WAIT_S = 10.0
KEEPER_START_S = 10.0
READY_POLL_S = 0.25
MAX_FAILURES = 4
"""Ends in a row after which `up` does not hope any more; with the keeper's back-off that is after some 4 seconds."""
_POLL_S = 0.1
Teller = Callable[[str], None]


@dataclass(frozen=True)
class UpState:
    """A home that is up."""

    url: str
    token_file: Path
    slots: int
    was_up: bool
    storage_before: str | None = None
    """Where checkpoints went so far, if they go elsewhere from now on."""


# --- up ---------------------------------------------------------------------------------------------------------------


def bring_up(
    home: Home, *, port: int | None, slots: int | None, tell: Teller, timeout_s: float = UP_TIMEOUT_S
) -> UpState:
    """Start the keeper unless one lives, and wait until jobs can run. Port: that of the last time; slots: those it has.

    Raises:
        KeeperError: the port is taken, the home is up with another port, storage, database or number of slots, or
            something did not start.
        UserError: RUBATO_STORAGE names no storage.
    """
    home.create()
    record = home.read_record()
    was_up = is_held(home)
    storage_before = find_storage_before(home)
    check_same(home, slots)
    if was_up:
        if port is not None and record is not None and record.url != f"http://{commands.HOST}:{port}":
            raise KeeperError(f"{home.path} is up already, at {record.url}; `rubato down` first to change the port")
    else:
        port = home.keep_port(None) if port is None else port
        check_port(home, port)
        commands.find_checkout()
        home.keep_port(port)
        start_keeper(home, port=port, slots=slots or commands.default_slots())
    state = _wait_until_ready(home, was_up=was_up, tell=tell, timeout_s=timeout_s)
    return replace(state, storage_before=storage_before)


def check_same(home: Home, slots: int | None, environment: Mapping[str, str] = os.environ) -> None:
    """Look whether what is asked for differs from what runs already; the storage is looked at by itself.

    Raises:
        KeeperError: Ray runs with another number of slots, or the service with another database.
    """
    record = home.read_record()
    if record is None:
        return
    lives = {role for role, process in record.processes.items() if is_alive(process)}
    if slots is not None and record.slots not in (0, slots) and "ray" in lives:
        raise KeeperError(f"{home.path} is up already, with {record.slots} slots; `rubato down` first to have {slots}")
    named = environment.get(commands.DATABASE_URL)
    # It may hold a password: neither is shown.
    if named and named != home.keep_database_url(None) and "service" in lives:
        raise KeeperError(
            f"{home.path} is up already, with another database than {commands.DATABASE_URL} names; `rubato down` first "
            "to change it"
        )


def find_storage_before(home: Home, environment: Mapping[str, str] = os.environ) -> str | None:
    """Where this home's checkpoints went so far, if RUBATO_STORAGE names another place now; else None.

    Raises:
        KeeperError: it names a relative folder, or another place than the service uses that runs already.
        UserError: it names no storage.
    """
    named = environment.get(commands.STORAGE)
    if not named:
        return None
    # Before it is remembered: a wrong one would be in the way of each later start, too.
    now = parse_storage(named)
    if now.is_local and not now.path.startswith("/"):
        raise KeeperError(f"{commands.STORAGE} must be absolute, for all nodes to find it; got {named!r}")
    kept, own = home.keep_storage(None), home.path / "checkpoints"
    before = parse_storage(kept or str(own))
    # The service writes the token at its first start: without it there is nothing from before.
    if now.absolute() == before.absolute() or not home.token_file.exists():
        return None
    record = home.read_record()
    if is_held(home) or (record is not None and _has_life(record)):
        raise KeeperError(
            f"{home.path} is up already, with its checkpoints in {before}; `rubato down` first to put them elsewhere"
        )
    # Homes of releases that did not keep it yet may have had another storage all along: then this folder is empty.
    is_left_behind = kept is not None or (own.is_dir() and any(own.iterdir()))
    return str(before) if is_left_behind else None


def check_port(home: Home, port: int) -> None:
    """Raise KeeperError where a port is taken, naming who holds it; this home's own service (its keeper died) may."""
    record = home.read_record()
    service = record.processes.get("service") if record else None
    if record is not None and record.url.endswith(f":{port}") and service is not None and is_alive(service):
        return
    if not is_port_free(port, commands.HOST):
        raise KeeperError(
            f"port {port} is taken by {describe_holder(port)}; end that, or take another: `rubato up --port {port + 1}`"
        )


def start_keeper(home: Home, *, port: int, slots: int) -> RecordedProcess:
    """Start a keeper in a session of its own: it outlives this terminal."""
    checkout = commands.find_checkout()
    with home.open_log("keeper") as output:
        child = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "rubato.cli.keeper"),
                *("--home", str(home.path), "--port", str(port), "--slots", str(slots)),
            ],
            env={**os.environ, "PYTHONPATH": str(checkout)},
            cwd=home.path,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    child.returncode = 0  # It outlives this process: nobody here waits for it.
    process = identify(child.pid)
    if process is None:
        raise KeeperError(f"the keeper ended at once; see {home.log_file('keeper')}")
    return process


@dataclass(frozen=True)
class Missing:
    """What a home still lacks before it can run jobs, and whose log may say why."""

    role: str
    what: str

    def __str__(self) -> str:
        return f"{self.role} {self.what}"


def _wait_until_ready(home: Home, *, was_up: bool, tell: Teller, timeout_s: float) -> UpState:
    began = time.monotonic()
    held_once = was_up
    told: Missing | None = None
    while True:
        held = is_held(home)
        held_once = held_once or held
        record = home.read_record()
        # A record without a keeper is that of a dead one: its successor takes over, or replaces, what it names.
        missing = find_missing(home, record) if held else Missing("keeper", "to start")
        if missing is None and record is not None:
            return UpState(record.url, home.token_file, record.slots, was_up)
        if missing is not None and missing != told:
            tell(f"waiting for {missing}")
            told = missing
        waited_s = time.monotonic() - began
        if not held and (held_once or waited_s > KEEPER_START_S):
            raise KeeperError(f"the keeper ended while starting:\n{tail(home.log_file('keeper'))}")
        if missing is not None:
            _give_up_where_hopeless(home, record, missing, waited_s=waited_s, timeout_s=timeout_s)
        time.sleep(READY_POLL_S)


def _give_up_where_hopeless(
    home: Home, record: RunRecord | None, missing: Missing, *, waited_s: float, timeout_s: float
) -> None:
    """Raise KeeperError where something ends again and again, or the time is over."""
    ended = [role for role, failures in (record.failures if record else {}).items() if failures >= MAX_FAILURES]
    if not ended and waited_s <= timeout_s:
        return
    role = ended[0] if ended else missing.role
    what = (
        f"{role} ended {MAX_FAILURES} times in a row"
        if ended
        else f"after {timeout_s:.0f} s still waiting for {missing}"
    )
    log_file = home.log_file(role)
    raise KeeperError(
        f"{what}; the end of {log_file}:\n{tail(log_file)}\n"
        "`rubato down` ends what was started; `rubato doctor` looks for the cause"
    )


def find_missing(home: Home, record: RunRecord | None) -> Missing | None:
    """What a home still lacks before it can run jobs, or None."""
    from rubato.client import Client

    if record is None or "service" not in record.processes:
        return Missing("service", "to start")
    with Client(record.url, home.read_token(), home=home) as client:
        if not client.is_ready():
            return Missing("service", "to answer")
        for role in ("ray", "agent"):
            if role not in record.processes:
                return Missing(role, "to start")
        try:
            online = [cluster for cluster in client.clusters() if cluster.status == "online"]
        except RubatoError as error:
            return Missing("service", f"to show its cluster ({error})")
    return None if online else Missing("agent", "to bring the cluster online")


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, indented."""
    try:
        text = path.read_bytes()[-16384:].decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in text) or "  (empty)"


# --- down -------------------------------------------------------------------------------------------------------------


def bring_down(home: Home, *, tell: Teller) -> bool:
    """Ask running jobs for checkpoints, end the home's processes, and verify that none is left; False: nothing was up.

    Jobs stay as they are wanted, and go on at the next `up`.

    Raises:
        KeeperError: a process could not be ended.
    """
    record = home.read_record()
    held = is_held(home)
    if record is None or not is_own_namespace(record.boot_id):
        if held and record is not None:
            raise KeeperError(f"a keeper in another container holds {home.path}; run `rubato down` there")
        if held:
            raise KeeperError(f"a keeper holds {home.path} but wrote no run.json; see {home.log_file('keeper')}")
        home.run_file.unlink(missing_ok=True)
        return False
    if _has_life(record):
        _save_jobs(home, record, tell)
    before = family_of(list(record.processes.values()), mark=record.mark)
    keeper = record.processes.get("keeper")
    if keeper is not None and is_alive(keeper):
        tell("ending the processes")
        send_signal(keeper, signal.SIGTERM)
        for process in wait_until_gone([keeper], DOWN_TIMEOUT_S):
            tell("the keeper does not end; killing it")
            send_signal(process, signal.SIGKILL)
            wait_until_gone([process], 5.0)
    left = {*end_recorded(record), *(process for process in before if is_alive(process))}
    left = {process for process in left if send_signal(process, signal.SIGKILL) and wait_until_gone([process], 5.0)}
    if left:
        raise KeeperError(f"these processes cannot be ended: {', '.join(str(process.pid) for process in left)}")
    if Path(record.ray_temp_dir).name.startswith("rubato-"):
        shutil.rmtree(record.ray_temp_dir, ignore_errors=True)
    home.run_file.unlink(missing_ok=True)
    return bool(before)


def _has_life(record: RunRecord) -> bool:
    service = record.processes.get("service")
    return service is not None and is_alive(service)


def _save_jobs(home: Home, record: RunRecord, tell: Teller) -> None:
    """Ask running jobs for a checkpoint and wait a little; best effort, for the last manifest stands anyway."""
    from rubato.client import Client

    try:
        with Client(record.url, home.read_token(), home=home) as client:
            before = {job.id: _newest_checkpoint(client, job.id) for job in client.jobs(status=("running",))}
            if not before:
                return
            tell(f"saving {len(before)} running job{'s' if len(before) > 1 else ''}")
            for job_id in before:
                client.checkpoint(job_id)
            deadline = time.monotonic() + CHECKPOINT_WAIT_S
            while before and time.monotonic() < deadline:
                time.sleep(_POLL_S)
                before = {
                    job_id: newest
                    for job_id, newest in before.items()
                    if _newest_checkpoint(client, job_id) == newest and not client.job(job_id).is_final
                }
            if before:
                tell(f"no new checkpoint of {', '.join(before)} within {CHECKPOINT_WAIT_S:.0f} s; its last one stands")
    except RubatoError as error:
        tell(f"could not ask for checkpoints ({error}); the last ones stand")


def _newest_checkpoint(client: Client, job_id: str) -> tuple[int, int]:
    return max(((found.attempt, found.step) for found in client.checkpoints(job_id)), default=(0, 0))
