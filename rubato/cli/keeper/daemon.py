"""The keeper's loop: start Ray, service and agent, start again what ends, and take everything down in order.

Each round looks at /proc and acts; nothing is remembered that /proc or run.json does not say. So a keeper that was
killed is simply started again: it adopts the processes that run.json names and that still live, and training does not
notice.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rubato.cli.keeper import commands
from rubato.cli.keeper.backoff import Backoff
from rubato.cli.keeper.ports import accepts_connections
from rubato.cli.keeper.process_table import (
    end_processes,
    identify,
    is_alive,
    is_own_namespace,
    marked_processes,
    pid_namespace,
    read_table,
    reap_children,
    session_of,
    tree_of,
)
from rubato.errors import KeeperError
from rubato.home import Home, RecordedProcess, RunRecord

ROUND_S = 0.25
RAY_START_TIMEOUT_S = 60.0
TERM_GRACE_S = {"agent": 3.0, "service": 5.0, "ray": 2.0}
"""Seconds between SIGTERM and SIGKILL. The service may wait for open streams; Ray waits long, with nothing to save."""
_PR_SET_CHILD_SUBREAPER = 36


class Keeper:
    """One home's processes. `run` returns when SIGTERM or SIGINT came and all of them are gone."""

    def __init__(self, home: Home, *, port: int, slots: int) -> None:
        self.checkout = commands.find_checkout()
        self.home = home
        self.processes: dict[str, RecordedProcess] = {}
        self.started_at: dict[str, float] = {}
        self.backoffs = {role: Backoff() for role in ("ray", "service", "agent")}
        self.ray_address = ""
        self.stop_requested = threading.Event()
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        self._is_record_due = False
        """It could not be written; each round tries again."""
        previous = self._adoptable()
        self.layout = commands.Layout(
            home=home,
            port=port,
            slots=previous.slots or slots if previous else slots,
            ray_temp_dir=Path(previous.ray_temp_dir) if previous else _make_temp_dir(),
            mark=previous.mark if previous else secrets.token_hex(8),
        )
        self.environment = commands.base_environment(self.layout, self.checkout, os.environ)
        if previous is not None:
            self._adopt(previous)

    def run(self) -> None:
        """Keep the processes alive until asked to stop."""
        try:
            while not self.stop_requested.is_set():
                self._round(time.monotonic())
                self.stop_requested.wait(ROUND_S)
        finally:
            self._take_down()

    # --- one round ----------------------------------------------------------------------------------------------------

    def _round(self, now: float) -> None:
        if self._is_record_due:
            self._write_record()
        codes = reap_children()
        for role, process in list(self.processes.items()):
            # Ray's end takes the agent with it, in the middle of this loop.
            if role in self.processes and not is_alive(process):
                self._note_end(role, codes.get(process.pid), now)
        if self._is_due("ray", now):
            self._try_to_start("ray", self._start_ray, now)
        if self._is_due("service", now):
            self._try_to_start("service", self._start_service, now)
        if self._is_due("agent", now) and self._is_ray_ready(now):
            self._try_to_start("agent", self._start_agent, now)

    def _is_due(self, role: str, now: float) -> bool:
        return role not in self.processes and now >= self.backoffs[role].next_start_at

    def _note_end(self, role: str, code: int | None, now: float) -> None:
        ended = self.processes.pop(role)
        wait_s = self.backoffs[role].note_end(started_at=self.started_at.pop(role, now), now=now)
        how = (
            "ended"
            if code is None
            else f"ended with exit code {code}"
            if code >= 0
            else f"was killed by signal {-code}"
        )
        log(f"{role} {how}; starting it again in {wait_s:.1f} s (see {self.home.log_file(role)})")
        if role == "ray":
            # Workers of a lost head node would live on for a while, hold its ports, and train beside their successors.
            end_processes(family_of([ended]), grace_s=0)
            self._end_all_but("service")
            self.processes.pop("agent", None)
            self.backoffs["agent"].next_start_at = 0.0
            _empty(self.layout.ray_temp_dir)
        self._write_record()

    def _is_ray_ready(self, now: float) -> bool:
        """Whether Ray takes drivers; a Ray that does not within a minute is ended, and so started again."""
        if "ray" not in self.processes:
            return False
        host, _, port = self.ray_address.rpartition(":")
        if accepts_connections(host, int(port)):
            return True
        if now - self.started_at["ray"] > RAY_START_TIMEOUT_S:
            log(f"ray did not listen on {self.ray_address} within {RAY_START_TIMEOUT_S:.0f} s")
            end_processes([self.processes["ray"]], grace_s=TERM_GRACE_S["ray"])
        return False

    def _try_to_start(self, role: str, start: Callable[[], None], now: float) -> None:
        """Start it; where the disk or the machine has no room, try again later."""
        try:
            start()
        except OSError as error:
            wait_s = self.backoffs[role].note_end(started_at=now, now=now)
            log(f"{role} could not be started ({error}); trying again in {wait_s:.1f} s")

    def _start_ray(self) -> None:
        plan = commands.plan_ray(self.layout, self.environment)
        self.ray_address = plan.address
        self._start("ray", plan.command, plan.environment)

    def _start_service(self) -> None:
        environment = commands.service_environment(self.layout, self.environment, os.environ)
        self._start("service", commands.service_command(), environment)

    def _start_agent(self) -> None:
        self._start("agent", commands.agent_command(self.layout, self.ray_address), self.environment)

    def _start(self, role: str, command: list[str], environment: dict[str, str]) -> None:
        with self.home.open_log(role) as output:
            child = subprocess.Popen(
                command,
                env=environment,
                cwd=self.home.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Its own session: Ctrl-C in the terminal of a foreground keeper is the keeper's to handle, in order.
                start_new_session=True,
            )
        # Its end is seen by pid and start time and collected by `reap_children`; Popen must not warn about it.
        child.returncode = 0
        process = identify(child.pid)
        self.started_at[role] = time.monotonic()
        if process is None:
            self._note_instant_end(role)
            return
        self.processes[role] = process
        log(f"{role} started, pid {child.pid}")
        self._write_record()

    def _note_instant_end(self, role: str) -> None:
        wait_s = self.backoffs[role].note_end(started_at=self.started_at.pop(role), now=time.monotonic())
        self._write_record()
        log(f"{role} ended at once; starting it again in {wait_s:.1f} s (see {self.home.log_file(role)})")

    # --- record -------------------------------------------------------------------------------------------------------

    def _write_record(self) -> None:
        own = identify(os.getpid())
        assert own is not None
        record = RunRecord(
            url=self.layout.url,
            ray_address=self.ray_address,
            ray_temp_dir=str(self.layout.ray_temp_dir),
            started_at=self._since,
            slots=self.layout.slots,
            boot_id=pid_namespace(),
            mark=self.layout.mark,
            processes={"keeper": own, **self.processes},
            failures={role: backoff.failures for role, backoff in self.backoffs.items() if backoff.failures},
        )
        was_due, self._is_record_due = self._is_record_due, False
        try:
            self.home.write_record(record)
        except OSError as error:
            self._is_record_due = True
            if not was_due:
                log(f"run.json could not be written ({error}); trying again")

    def _adoptable(self) -> RunRecord | None:
        """The record of a keeper that was killed, where its Ray lives on."""
        record = self.home.read_record()
        if record is None:
            return None
        if is_own_namespace(record.boot_id) and "ray" in record.processes and is_alive(record.processes["ray"]):
            return record
        if is_own_namespace(record.boot_id):
            end_recorded(record)
        _remove(Path(record.ray_temp_dir))
        return None

    def _adopt(self, record: RunRecord) -> None:
        self.ray_address, self._since = record.ray_address, record.started_at
        for role, process in record.processes.items():
            if role in self.backoffs and is_alive(process):
                self.processes[role] = process
                self.started_at[role] = time.monotonic()
                log(f"{role} adopted, pid {process.pid}")
        if "service" in self.processes and record.url != self.layout.url:
            end_processes([self.processes.pop("service")], grace_s=TERM_GRACE_S["service"])
        self._write_record()

    # --- end ----------------------------------------------------------------------------------------------------------

    def _end_all_but(self, *kept: str) -> None:
        own = identify(os.getpid())
        assert own is not None
        spared = family_of([self.processes[role] for role in kept if role in self.processes])
        found = family_of([own, *self.processes.values()], mark=self.layout.mark)
        end_processes(found - spared - {own}, grace_s=0)

    def _take_down(self) -> None:
        """Agent first (it would start controllers again), then the service, then Ray.

        The service goes before Ray so that no controller can report its workers' end as a failure of the job.
        """
        for role in ("agent", "service", "ray"):
            if role in self.processes:
                log(f"ending {role}")
                end_processes([self.processes[role]], grace_s=TERM_GRACE_S[role])
        self._end_all_but()
        reap_children()
        _remove(self.layout.ray_temp_dir)
        self.home.run_file.unlink(missing_ok=True)
        log("down")


def end_recorded(record: RunRecord) -> list[RecordedProcess]:
    """End the processes that a record names, their descendants, and what left the tree; returns those that live on."""
    roots = [process for role, process in record.processes.items() if role != "keeper"]
    targets = family_of(roots, mark=record.mark)
    end_processes(targets, grace_s=5.0)
    # A child that was born while its parent was being ended.
    late = family_of(roots, mark=record.mark)
    end_processes(late, grace_s=0)
    return [process for process in targets | late if is_alive(process)]


def family_of(roots: list[RecordedProcess], *, mark: str = "") -> set[RecordedProcess]:
    """Everything alive that belongs to `roots`: descendants, members of their sessions, and what carries the mark.

    Each finds what another may miss: an orphan left the tree, a training process leads a session of its own, and a
    process that writes its title over its environment loses the mark.
    """
    table = read_table()
    marked = marked_processes(commands.MARK, mark) if mark else []
    return {*tree_of(roots, table), *session_of(roots, table), *marked}


@contextlib.contextmanager
def hold_home(home: Home) -> Iterator[None]:
    """Hold the home's lock: one keeper for a home.

    Raises:
        KeeperError: another keeper holds it.
    """
    with home.lock_file.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise KeeperError(
                f"another keeper holds {home.path}; `rubato down` ends it, RUBATO_HOME names another home"
            ) from error
        yield


def is_held(home: Home) -> bool:
    """Whether a keeper lives in this home."""
    try:
        with home.lock_file.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def keep(home: Home, *, port: int, slots: int) -> None:
    """Be the keeper of a home until SIGTERM or SIGINT.

    Raises:
        KeeperError: another keeper holds the home, or something that is needed is not installed.
    """
    home.create()
    with hold_home(home):
        _become_subreaper()
        keeper = Keeper(home, port=port, slots=slots)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: keeper.stop_requested.set())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        keeper.run()


def _become_subreaper() -> None:
    """Make every orphan below this process its child: what Ray detaches stays in the tree and can be ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        log(f"cannot become a subreaper: {os.strerror(ctypes.get_errno())}")


def _make_temp_dir() -> Path:
    """A folder for Ray with a short path: a socket's path has at most 107 bytes, and Ray adds about 65 of its own."""
    root = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="rubato-", dir=root if len(root) <= 20 else "/tmp"))


def _empty(folder: Path) -> None:
    for entry in folder.iterdir() if folder.is_dir() else ():
        shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _remove(folder: Path) -> None:
    """Remove a folder that `_make_temp_dir` made; any other path in a record is left alone."""
    if folder.name.startswith("rubato-") and folder.is_absolute():
        shutil.rmtree(folder, ignore_errors=True)


def log(text: str) -> None:
    """One line of the keeper's log; where the disk is full it is lost, and the keeper lives on."""
    with contextlib.suppress(OSError):
        print(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} keeper: {text}", file=sys.stderr, flush=True)
