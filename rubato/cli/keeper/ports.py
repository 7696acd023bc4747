"""Free TCP ports, and who holds a port that is taken."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

from rubato.cli.keeper.process_table import PROC


def find_free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, all different: held open together until all are found."""
    listeners = []
    try:
        for _ in range(count):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.bind(("", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def is_port_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a service could listen there. SO_REUSEADDR as servers set it: connections in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def accepts_connections(host: str, port: int) -> bool:
    """Whether something listens there."""
    try:
        with socket.create_connection((host, port), timeout=0.5):
            return True
    except OSError:
        return False


def describe_holder(port: int) -> str:
    """Who listens on a port, as far as this user may know: `process 4711 (python -m api, RUBATO_HOME=...)`."""
    inodes = _listening_inodes(port)
    for entry in PROC.iterdir():
        if entry.name.isdigit() and _holds_socket(entry / "fd", inodes):
            return _describe_process(int(entry.name))
    return "another process"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for name in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            # local address is HEX-IP:HEX-PORT; state 0A is LISTEN.
            if int(fields[1].rsplit(":", 1)[1], 16) == port and fields[3] == "0A":
                inodes.add(fields[9])
    return inodes


def _holds_socket(folder: Path, inodes: set[str]) -> bool:
    wanted = {f"socket:[{inode}]" for inode in inodes}
    # Another user's folder cannot be read, and a descriptor may be closed between listing and reading.
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) in wanted:
                    return True
    return False


def _describe_process(pid: int) -> str:
    try:
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        environment = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return f"process {pid}"
    home = next((item.decode(errors="replace") for item in environment if item.startswith(b"RUBATO_HOME=")), None)
    return f"process {pid} ({command[:80]}{f', {home}' if home else ''})"


def find_node_address() -> str:
    """The address under which this machine reaches others, as Ray chooses it; loopback where there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: connecting a datagram socket only chooses the route (the address is one for documents).
            probe.connect(("203.0.113.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
