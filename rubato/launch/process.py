"""A child of this process whose output comes through pipes, however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class ChildProcess:
    """A child in a session of its own, whose pid is that of its process group."""

    pid: int
    stdout: IO[bytes]
    stderr: IO[bytes]
    reap: Callable[[], int]
    """Waits for its end and frees the pid; the exit code, or the negative number of a signal."""

    def wait_for_end(self) -> None:
        """Block until it has ended. Until it is reaped the pid is given to nobody else."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def spawn_fresh(
    command: tuple[str, ...], working_dir: Path, environment: Mapping[str, str], descriptors: Mapping[str, int]
) -> ChildProcess:
    """Start a program.

    Args:
        command: the program and its arguments.
        working_dir: where it starts.
        environment: all of it.
        descriptors: what it inherits, by the variable that tells it the number.
    Raises:
        OSError: it cannot be started.
    """
    numbers = {name: str(descriptor) for name, descriptor in descriptors.items()}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=working_dir,
        env={**environment, **numbers},
        pass_fds=tuple(descriptors.values()),
        start_new_session=True,
        bufsize=0,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    return ChildProcess(process.pid, process.stdout, process.stderr, process.wait)


def signal_name(number: int) -> str:
    """`SIGKILL` of 9; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
