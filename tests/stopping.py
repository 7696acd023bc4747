"""Stop a process: SIGSTOP acts on its threads a moment after `kill` returns, and until then they may do much."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import wait_for

STOPS_S = 30.0


def stop(pid: int) -> None:
    """Return when none of its threads runs any more, until somebody sends SIGCONT.

    Raises:
        ProcessLookupError: it is gone.
    """
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(pid), f"the stop of process {pid}", STOPS_S)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does not run meanwhile; it may end."""
    stop(pid)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether none of its threads runs; so it is, too, when it is gone."""
    return all(_state(task) in ("T", "Z", "X", "") for task in Path(f"/proc/{pid}/task").glob("*"))


def _state(task: Path) -> str:
    """As `ps` has it; empty: it has ended meanwhile."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
