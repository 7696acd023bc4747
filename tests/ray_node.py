"""Another Ray node beside that of a home, on the same machine: all that dies with a host, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rubato.cli.keeper import commands
from rubato.cli.keeper.process_table import end_processes, identify, read_table, send_signal, tree_of
from rubato.home import Home, RecordedProcess


class HasHome(Protocol):
    """What runs in a home."""

    @property
    def home(self) -> Home:
        """Its files."""


@dataclass(frozen=True)
class RayNode:
    """A node that is up."""

    root: RecordedProcess
    child: subprocess.Popen[bytes]
    """The same, as ours."""

    def has_ended(self) -> bool:
        """Whether `ray start` has."""
        return self.child.poll() is not None

    def processes(self) -> list[RecordedProcess]:
        """All of it that lives: raylet, supervisors, training processes; parents first."""
        return tree_of([self.root], read_table())

    def has(self, pid: int | None) -> bool:
        """Whether a process runs on it."""
        return pid in {process.pid for process in self.processes()}

    @contextmanager
    def silent(self) -> Iterator[list[RecordedProcess]]:
        """All of it stands still meanwhile: for everybody else it is cut off, without a connection that ends.

        Yields: the processes, parents first.
        """
        found = self.processes()
        for process in found:
            send_signal(process, signal.SIGSTOP)
        try:
            yield found
        finally:
            for process in found:
                send_signal(process, signal.SIGCONT)

    def kill(self) -> list[RecordedProcess]:
        """SIGKILL all of it within a moment, as a power failure does; what it was."""
        found = self.processes()
        for process in found:
            send_signal(process, signal.SIGKILL)
        return found


@contextmanager
def ray_node(home: HasHome, scratch: Path, slots: int, *, address: str = "") -> Iterator[RayNode]:
    """A node with so many slots, which joins the home's Ray; none of its processes is left at the end.

    Args:
        home: whose Ray.
        scratch: a folder for its log.
        slots: how many.
        address: its own; empty: that of the head.
    """
    record = home.home.read_record()
    assert record is not None
    layout = commands.Layout(home.home, 0, slots, Path(record.ray_temp_dir), record.mark)
    environment = commands.base_environment(layout, commands.find_checkout(), os.environ)
    command = [
        *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block"),
        f"--address={record.ray_address}",
        f"--node-ip-address={address or record.ray_address.rpartition(':')[0]}",
        f"--num-cpus={slots}",
        f"--object-store-memory={commands.OBJECT_STORE_BYTES}",
        "--include-log-monitor=false",
        "--disable-usage-stats",
        "--log-style=record",
        "--log-color=false",
    ]
    with (scratch / "ray-node.log").open("a") as output:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    root = identify(child.pid)
    assert root is not None, (scratch / "ray-node.log").read_text()
    node = RayNode(root, child)
    try:
        yield node
    finally:
        assert end_processes(node.processes(), grace_s=0) == []
        child.wait()
