"""The process of a driver: started, heard, asked to stop, and gone for sure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import IO

from jobs.ray_train.messages import DriverEnd, DriverPlan
from rubato.cli.keeper.process_table import identify, is_alive
from rubato.errors import RubatoError
from rubato.home import RecordedProcess
from rubato.launch.output import LineSplitter
from rubato.launch.process import ChildProcess, signal_name, spawn_fresh
from rubato.launch.tether import PARENT_VARIABLE
from rubato.wire.codec import from_json, to_json

LAST_LINES = 50
DRAIN_S = 2.0
WORKERS_GONE_S = 20.0
"""How long Ray may take to end the workers of a driver that is gone."""
OWN_PREFIXES = ("RAY_TRAIN_", "RAY_CHDIR_TO_TRIAL_DIR")
"""What of the job's `env` is read by Ray Train in its driver."""
DRIVER_DEFAULTS = {
    "RAY_RUNTIME_ENV_IGNORE_GITIGNORE": "1",
    # What a worker prints goes to its standard output, and not once more, through a logger, to the other one.
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_COLOR_PREFIX": "0",
    "PYTHONUNBUFFERED": "1",
}

TakeLine = Callable[[str, str], None]
"""A stream and a line."""


class DriverProcess:
    """One driver. Made by the thread that leads: the kernel ends the driver with it.

    Args:
        folder: for the plan and the last word; whoever else may look is kept out.
        on_gone: called once, by a thread: the driver and the workers seen on this host are gone.
    """

    def __init__(
        self,
        plan: DriverPlan,
        job_env: dict[str, str | None],
        folder: Path,
        take_line: TakeLine,
        on_gone: Callable[[str, DriverEnd | None, tuple[str, ...]], None],
    ) -> None:
        self._end_file = folder / f"end-{plan.run}.json"
        self._take_line, self._on_gone = take_line, on_gone
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._lock = threading.Lock()
        self._is_reaped = False
        self._watched: set[RecordedProcess] = set()
        plan_file = folder / f"plan-{plan.run}.json"
        plan_file.write_text(json.dumps(to_json(plan)))
        plan_file.chmod(0o600)
        command = (sys.executable, "-P", "-m", "jobs.ray_train.driver", str(plan_file), str(self._end_file))
        environment = driver_environment(os.environ, job_env) | {PARENT_VARIABLE: str(os.getpid())}
        self._process: ChildProcess = spawn_fresh(command, folder, environment, {})
        self._readers = [
            threading.Thread(target=self._read, args=(stream, pipe), name=f"driver-{stream}", daemon=True)
            for stream, pipe in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()
        self._life = threading.Thread(target=self._wait, name="driver", daemon=True)
        self._life.start()

    def watch(self, pids: Collection[int]) -> None:
        """Workers on this host that must be gone, too."""
        found = {identify(pid) for pid in pids}
        with self._lock:
            self._watched |= {one for one in found if one is not None}

    def stop(self) -> None:
        """Ask it to abort the run."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it now."""
        self._signal(signal.SIGKILL)

    def join(self) -> None:
        """Wait until it is gone, with its workers."""
        self._life.join()

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._is_reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)

    def _read(self, stream: str, pipe: IO[bytes]) -> None:
        splitter = LineSplitter()
        with pipe:
            while chunk := pipe.read(65536):
                self._pass_on(stream, splitter.feed(chunk))
        self._pass_on(stream, splitter.flush())

    def _pass_on(self, stream: str, lines: Iterable[str]) -> None:
        for line in lines:
            self._last.append(line)
            self._take_line(stream, line)

    def _wait(self) -> None:
        self._process.wait_for_end()
        with self._lock:
            code = self._process.reap()
            self._is_reaped = True
        for reader in self._readers:
            reader.join(DRAIN_S)
        self._wait_for_workers()
        how = f"exit code {code}" if code >= 0 else signal_name(-code)
        self._on_gone(how, self._last_word(), tuple(self._last))

    def _wait_for_workers(self) -> None:
        deadline = time.monotonic() + WORKERS_GONE_S
        with self._lock:
            watched = set(self._watched)
        while any(is_alive(one) for one in watched) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _last_word(self) -> DriverEnd | None:
        try:
            return from_json(DriverEnd, json.loads(self._end_file.read_text()))
        except (OSError, ValueError, RubatoError):
            return None


def driver_environment(base: Mapping[str, str], job_env: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of the driver: that of the controller, and what the job sets of Ray Train itself.

    The working folder of the job is taken as it was packed, whatever its .gitignore says.
    """
    kept = {name: value for name, value in base.items() if name not in ("RAY_JOB_ID", "RAY_RAYLET_PID")}
    own = {name: value for name, value in job_env.items() if value is not None and name.startswith(OWN_PREFIXES)}
    return {**kept, **DRIVER_DEFAULTS, **own}
