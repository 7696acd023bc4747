"""Processes of a benchmark: each is ended by its id, with all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "benchmarks" / "programs"
GRACE_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Whose parent dies becomes a child of this process, so that `end_children` finds daemons too."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def environment(**extra: str) -> dict[str, str]:
    """That of a training process: one thread, and this repository to import; nothing of a cluster that runs here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **extra}


class Processes:
    """Processes started together; ended, with their descendants, at the latest on leaving the context."""

    def __init__(self, log: Path) -> None:
        self._log_path = log
        self._log: IO[bytes] = log.open("ab")
        self._started: list[psutil.Popen] = []

    def start(self, command: Sequence[str | Path], env: Mapping[str, str], cwd: Path | None = None) -> psutil.Popen:
        """Start one; its output goes to the log."""
        process = psutil.Popen(
            [str(part) for part in command],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._started.append(process)
        return process

    def python(self, *arguments: str | Path, **env: str) -> psutil.Popen:
        """Start a Python of this environment."""
        return self.start([sys.executable, *arguments], environment(**env))

    def are_gone(self) -> bool:
        """Whether all of them have ended."""
        return all(process.poll() is not None for process in self._started)

    def output(self, lines: int | None = 12) -> str:
        """The end of what all of them wrote, or all of it."""
        written = self._log_path.read_text(errors="replace").splitlines()
        return "\n".join(written if lines is None else written[-lines:])

    def close(self) -> None:
        """End all that still lives."""
        for process in self._started:
            end(process)
        self._log.close()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def end(process: Any, *, number: int = signal.SIGTERM) -> None:
    """Signal a process and its descendants by id, and kill what does not go; psutil never signals a reused id."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        _, living = psutil.wait_procs(family, timeout=GRACE_S)
        for one in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(living, timeout=GRACE_S)


def end_children() -> None:
    """End whatever this process still has as children."""
    for child in psutil.Process().children():
        end(child)


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Children find this repository; orphans come to this process, and all of its children are gone afterwards."""
    adopt_orphans()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts are left in order
    try:
        yield
    finally:
        end_children()
