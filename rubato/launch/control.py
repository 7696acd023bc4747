"""The control socket of a local run: one JSON line asks, one JSON line answers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rubato.errors import RubatoError, UserError

MAX_SOCKET_PATH_BYTES = 100
"""AF_UNIX addresses have 108 bytes on Linux and 104 on macOS, the final NUL included."""
RUN_FILE = "run.json"
TIMEOUT_S = 10.0

Answer = Callable[[dict[str, Any]], dict[str, Any]]


class ControlServer:
    """Listens for requests; each is answered in the server's thread by `answer`, which must be quick."""

    def __init__(self, run_dir: Path, answer: Answer) -> None:
        self._answer = answer
        self._temporary: Path | None = None
        self.path = run_dir / "control.sock"
        if len(os.fsencode(self.path)) > MAX_SOCKET_PATH_BYTES:
            self._temporary = Path(tempfile.mkdtemp(prefix="rubato-"))
            self.path = self._temporary / "control.sock"
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        # Wakes the accept; closing alone would leave the thread in it.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(TIMEOUT_S)
        self._socket.close()
        self.path.unlink(missing_ok=True)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(TIMEOUT_S)
                self._serve_one(connection)

    def _serve_one(self, connection: socket.socket) -> None:
        with connection.makefile("rwb") as stream:
            try:
                reply = self._answer(json.loads(stream.readline(1 << 16)))
            except RubatoError as error:
                reply = {"error": str(error)}
            except Exception as error:  # whatever it sends (an infinite count, a thousand brackets): others ask, too
                reply = {"error": f"the request does not hold: {error}"}
            stream.write(json.dumps(reply).encode() + b"\n")


def ask_run(run_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a living run.

    Raises:
        FileNotFoundError: there is no such run.
        ConnectionError: it has ended.
        UserError: it refused, and says why.
    """
    record = json.loads((run_dir / RUN_FILE).read_text())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(record["socket"])
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
    if not line:
        raise ConnectionError(f"the run in {run_dir} ended before it answered")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise UserError(str(reply["error"]))
    return reply
