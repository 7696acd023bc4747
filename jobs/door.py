"""The door of a worker: a port at which its supervisor listens for as long as it lives, and serves nobody.

From another host nobody sees whether a process has ended, and that a whole node is lost Ray says after ten seconds and
more. The kernel of that host knows at once: it ends the connections of a process that is gone, and refuses new ones. A
time-out tells nothing, for that is also what a network cut in two looks like.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

BACKLOG = 128
"""Connections the kernel takes; nobody accepts them. Each life of a controller needs one."""
CONNECT_S = 1.0
"""A host that lives answers, either way, within a round trip."""
RETRY_S = 0.5
KEEPALIVE_S = 5
"""After such a silence the kernel asks the other one's, which may have started anew and know of no connection."""


@dataclass(frozen=True)
class DoorAddress:
    """Where to knock."""

    host: str
    port: int


def open_door(host: str) -> DoorAddress:
    """Listen until this process ends.

    Raises:
        OSError: one cannot listen at this address.
    """
    listener = socket.create_server((host, 0), backlog=BACKLOG)
    address = DoorAddress(host, listener.getsockname()[1])
    listener.detach()  # it is the process's from here on: closed by the kernel, and by no garbage collector
    return address


class DoorWatch:
    """Stands at a door, in a thread, until it is shut or the watch is closed.

    `on_gone` is called once the process behind the door is known to be gone: the door was open, and the host refuses
    connections to it now. Where it was never open a refusal proves nothing: a firewall may refuse everybody.
    """

    def __init__(self, address: DoorAddress, on_gone: Callable[[], None]) -> None:
        self._address = address
        self._on_gone = on_gone
        self._is_closed = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._watch, name=f"door-{address.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Watch no more. `on_gone` may still be on its way."""
        self._is_closed.set()
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it ended by itself
                self._connection.shutdown(socket.SHUT_RDWR)

    def _watch(self) -> None:
        was_open = False
        while not self._is_closed.is_set():
            try:
                connection = socket.create_connection((self._address.host, self._address.port), CONNECT_S)
            except ConnectionRefusedError:
                if was_open:
                    self._on_gone()
                    return
                self._is_closed.wait(RETRY_S)
            except OSError:
                self._is_closed.wait(RETRY_S)
            else:
                was_open = True
                self._wait_for_end(connection)

    def _wait_for_end(self, connection: socket.socket) -> None:
        """Block while the connection stands; its end alone proves nothing, for anything between may have ended it."""
        with connection:
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
            self._connection = connection
            if not self._is_closed.is_set():
                with contextlib.suppress(OSError):
                    connection.recv(1)
