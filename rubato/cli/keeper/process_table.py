"""Processes by /proc: who lives, who descends from whom, and signals that cannot hit the wrong one.

A pid is used again after its process is gone, so a process is always named by pid and start time. A zombie counts as
gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rubato.home import RecordedProcess

PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True)
class ProcessRow:
    """One process, as /proc shows it."""

    pid: int
    parent: int
    session: int
    start_time: int
    state: str
    """One letter; Z is a zombie."""

    @property
    def identity(self) -> RecordedProcess:
        """Pid and start time."""
        return RecordedProcess(self.pid, self.start_time)


def parse_stat(text: str) -> ProcessRow:
    """A row from the text of /proc/PID/stat. The name may hold spaces and parentheses: it ends at the last `)`."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return ProcessRow(
        pid=int(head.split(" ", 1)[0]),
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        start_time=int(fields[19]),
    )


def read_row(pid: int) -> ProcessRow | None:
    """The process that has this pid now, or None."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text())
    except (OSError, ValueError, IndexError):
        return None


def read_table() -> dict[int, ProcessRow]:
    """All processes of this machine, by pid."""
    rows = (read_row(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {row.pid: row for row in rows if row is not None}


def identify(pid: int) -> RecordedProcess | None:
    """The identity of the living process with this pid, or None."""
    row = read_row(pid)
    return None if row is None or row.state == "Z" else row.identity


def is_alive(process: RecordedProcess) -> bool:
    """Whether exactly this process lives."""
    return identify(process.pid) == process


def pid_namespace() -> str:
    """Where a pid and a start time name one process: the kernel's boot, and the PID namespace of this process.

    All containers of a host have the same boot, and each has pids of its own. Empty where it cannot be told.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def is_own_namespace(told: str) -> bool:
    """Whether processes of a record on this machine can be seen here. Releases before told the boot only."""
    own = pid_namespace()
    return bool(own) and told in (own, own.partition("/")[0])


def tree_of(roots: Iterable[RecordedProcess], table: dict[int, ProcessRow]) -> list[RecordedProcess]:
    """The living among `roots` and all their living descendants, parents before children."""
    children: dict[int, list[ProcessRow]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row)
    found: list[RecordedProcess] = []
    seen: set[int] = set()
    waiting = [table[root.pid] for root in roots if root.pid in table and table[root.pid].identity == root]
    while waiting:
        row = waiting.pop(0)
        if row.pid in seen:
            continue
        seen.add(row.pid)
        waiting += children.get(row.pid, [])
        if row.state != "Z":
            found.append(row.identity)
    return found


def session_of(roots: Iterable[RecordedProcess], table: dict[int, ProcessRow]) -> list[RecordedProcess]:
    """Living members of the sessions that `roots` led: what lost its parents, unless it left the session too."""
    # A session's id is not given to a new process while the session has members; a changed start time says it had none.
    leaders = {root.pid for root in roots if root.pid not in table or table[root.pid].identity == root}
    return [row.identity for row in table.values() if row.session in leaders and row.state != "Z"]


def marked_processes(name: str, value: str) -> list[RecordedProcess]:
    """Living processes whose environment at their start held `name=value`; another user's cannot be read, nor are ours.

    The environment is inherited through every fork, so this finds also what left the tree (its parents are gone).
    """
    wanted = f"{name}={value}".encode()
    found = []
    for pid, row in read_table().items():
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        if row.state != "Z" and wanted in environment.split(b"\0"):
            found.append(row.identity)
    return found


def send_signal(process: RecordedProcess, number: signal.Signals) -> bool:
    """Signal exactly this process; False where it is gone.

    The pidfd pins the process before its start time is compared: it cannot be replaced between check and signal.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return False
    else:
        return True
    finally:
        os.close(descriptor)


def wait_until_gone(processes: Iterable[RecordedProcess], timeout_s: float) -> list[RecordedProcess]:
    """Wait for the end of processes; returns those that still live after `timeout_s`."""
    left = [process for process in processes if is_alive(process)]
    deadline = time.monotonic() + timeout_s
    while left and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        left = [process for process in left if is_alive(process)]
    return left


def end_processes(processes: Iterable[RecordedProcess], *, grace_s: float) -> list[RecordedProcess]:
    """SIGTERM, and SIGKILL after the grace; returns those that live on even so (stuck in the kernel)."""
    targets = list(processes)
    if grace_s > 0:
        for process in targets:
            send_signal(process, signal.SIGTERM)
        targets = wait_until_gone(targets, grace_s)
    for process in targets:
        send_signal(process, signal.SIGKILL)
    return wait_until_gone(targets, 5.0)


def reap_children() -> dict[int, int]:
    """Collect this process's ended children, adopted ones too; their exit codes by pid (negative: the signal)."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended
