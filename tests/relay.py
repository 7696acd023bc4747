"""A network between a cluster and its service that a test takes away: nothing passes, and no connection ends."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from tests.waiting import wait_for

CHUNK_BYTES = 1 << 16
ACCEPT_S = 0.1
PATIENCE_S = 30.0


class Relay:
    """Hands on what is sent to `port` to a port of this machine, and back.

    While it is cut it keeps what comes, as kernels do with what is not acknowledged, and hands it on when it is mended:
    late requests too, whose sender has given up.
    """

    def __init__(self, target: int, listener: socket.socket | None = None) -> None:
        """Begin.

        Args:
            target: the port here that it hands on to.
            listener: where it is spoken to; None: a port of this machine.
        """
        self._target = target
        self._passes = threading.Event()
        self._passes.set()
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(ACCEPT_S)
        self.port: int = self._listener.getsockname()[1]
        self.held = 0
        """Pieces that came while it was cut."""
        self._start(self._accept)

    def cut(self) -> None:
        """Nothing passes from here on."""
        self.held = 0
        self._passes.clear()

    def mend(self) -> None:
        """Take that back."""
        self._passes.set()

    @contextlib.contextmanager
    def is_cut(self) -> Iterator[None]:
        """Nothing passes meanwhile; something would have."""
        self.cut()
        try:
            yield
            wait_for(lambda: self.held > 0, "something that is held up", PATIENCE_S)
        finally:
            self.mend()

    def close(self) -> None:
        """End all connections, and wait for the threads."""
        self._is_over = True
        self._passes.set()
        self._threads[0].join(PATIENCE_S)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        for one in self._sockets:
            one.close()

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, name="relay", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over:
            try:
                near, _ = self._listener.accept()
            except TimeoutError:
                continue
            self._sockets.append(near)
            self._start(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        """Both directions of one connection; none is made while it is cut."""
        self._pass()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:  # there is no service
            near.shutdown(socket.SHUT_RDWR)
            return
        self._sockets.append(far)
        self._start(self._hand_on, far, near)
        self._hand_on(near, far)

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either end is gone
            while piece := source.recv(CHUNK_BYTES):
                self._pass()
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _pass(self) -> None:
        if not self._passes.is_set():
            self.held += 1
            self._passes.wait()
