"""A process that shares the kernel with this one and has pids of its own, as in another container of the host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rubato.home import RecordedProcess

ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
ROOT = Path(__file__).resolve().parent.parent
CODE = (
    "import os, sys\n"
    "from rubato.cli.keeper.process_table import identify, pid_namespace\n"
    "own = identify(os.getpid())\n"
    "print(pid_namespace(), own.pid, own.start_time, flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def process_elsewhere() -> Iterator[tuple[str, RecordedProcess]]:
    """What one that lives says of itself: its namespace, pid and start time there. Skips where none can be made."""
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode != 0:
        pytest.skip("SKIPPED for lack of a second PID namespace: unshare needs root or user namespaces")
    with subprocess.Popen(
        [*ALONE, sys.executable, "-c", CODE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        namespace, pid, start_time = process.stdout.readline().split()
        yield namespace, RecordedProcess(int(pid), int(start_time))
        assert process.poll() is None, "it lived all the while"
        process.communicate("")
