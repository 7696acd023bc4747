"""Training processes as forks of one that has imported torch: started in milliseconds instead of seconds of a core.

Importing torch costs seconds of a core for every worker that starts, and takes them from those that train beside it. So
a launcher has one process that imports what all training processes import, and from then on only forks. A fork becomes
a child of the launcher: its end is seen and its pid is held as of any other, and the server may die without harm to
anybody. Where it cannot serve, training processes are started afresh. (docs/adr/0018-training-processes-are-forked.md)
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from rubato.errors import RubatoError
from rubato.launch.process import ChildProcess
from rubato.launch.tether import PARENT_VARIABLE, adopts_orphans

SERVER_VARIABLE = "RUBATO_FORKSERVER_FD"
SERVER_COMMAND = (sys.executable, "-P", "-m", "rubato.launch.forkserver_process")
READY = b"ready"
READY_S = 60.0
"""For the imports. Whoever has waited so long starts afresh, and shows in its own output where it hangs."""
ANSWER_S = 10.0
"""For a fork, on a busy machine."""
_LOOK_S = 0.05
_ORPHANS_S, _ORPHANS_LOOK_S = 2.0, 0.005
_MAX_REPLY = 64


class ForkServerGone(RubatoError):
    """There is no server to fork from (any more); nothing was started."""


class ForkServer:
    """The launcher's end. Its imports begin at once, in the background; `spawn` waits for them. Linux only.

    The kernel ends the server with the thread that makes this object, and forks with the main thread of the process.
    What goes wrong once is final: a late answer would be taken for the one to the next request.

    Args:
        working_dir: where it, and with it all training processes, start.
        environment: of all training processes, but for what differs between them.
    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, working_dir: Path, environment: Mapping[str, str]) -> None:
        self._working_dir, self._environment = working_dir, dict(environment)
        self._lock = threading.Lock()
        self._ready_by = time.monotonic() + READY_S
        self._is_ready = False
        self._failure = ""
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(_LOOK_S)
        variables = {SERVER_VARIABLE: str(theirs.fileno()), PARENT_VARIABLE: str(os.getpid())}
        with theirs:
            self._process = subprocess.Popen(
                SERVER_COMMAND,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what the imports have to say a fresh process says again
                cwd=working_dir,
                env={**environment, **variables},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the server."""
        return self._process.pid

    @property
    def failure(self) -> str:
        """Why it serves no more; empty: it does."""
        return self._failure

    def serves(self, working_dir: Path, environment: Mapping[str, str]) -> bool:
        """Whether its forks start in this folder with this environment."""
        return (self._working_dir, self._environment) == (working_dir, dict(environment))

    def spawn(
        self, variables: Mapping[str, str], descriptors: Mapping[str, int], is_wanted: Callable[[], bool] = lambda: True
    ) -> ChildProcess | None:
        """Fork a training process.

        Args:
            variables: what its environment has besides the server's.
            descriptors: what it inherits, by the variable that tells it the number.
            is_wanted: asked while the imports go on.
        Returns:
            The process; None where it was not wanted any more.
        Raises:
            ForkServerGone: the server cannot serve.
        """
        if not self._wait_until_ready(is_wanted):
            return None
        request = json.dumps({"variables": dict(variables), "descriptors": list(descriptors)}).encode()
        # The third pipe tells the fork that it is known here.
        (out, their_out), (err, their_err), (their_go, go) = _pipe(), _pipe(), _pipe()
        theirs = (their_out, their_err, their_go)
        try:
            pid = self._ask(request, [*(end.fileno() for end in theirs), *descriptors.values()])
        except ForkServerGone:
            for end in (out, err, go):
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
        with go, contextlib.suppress(BrokenPipeError):
            go.write(b"\0")
        return ChildProcess(pid, out, err, lambda: reap_group(pid))

    def close(self) -> None:
        """End the server; training processes are not touched."""
        self._fail("it was closed")
        self._process.wait()
        with self._lock:
            self._connection.close()

    def _wait_until_ready(self, is_wanted: Callable[[], bool]) -> bool:
        """Returns False where that is not wanted any more."""
        while is_wanted():
            with self._lock, self._what_fails_is_final():
                if self._is_ready:
                    return True
                with contextlib.suppress(BlockingIOError, TimeoutError):
                    if self._connection.recv(_MAX_REPLY) != READY:
                        raise ConnectionResetError("it ended while it imported")
                    self._is_ready = True
                    self._connection.settimeout(ANSWER_S)
                if not self._is_ready and time.monotonic() > self._ready_by:
                    raise TimeoutError(f"it has imported for more than {READY_S:g} s")
        return False

    def _ask(self, request: bytes, descriptors: list[int]) -> int:
        """The pid of the fork, which is our child by now."""
        with self._lock, self._what_fails_is_final():
            with adopts_orphans():
                socket.send_fds(self._connection, [request], descriptors)
                pid = int(self._connection.recv(_MAX_REPLY))
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises where it is not
            return pid

    @contextlib.contextmanager
    def _what_fails_is_final(self) -> Iterator[None]:
        if self._failure:
            raise ForkServerGone(self._failure)
        try:
            yield
        except (OSError, ValueError) as error:
            self._fail(str(error))
            raise ForkServerGone(self._failure) from error

    def _fail(self, cause: str) -> None:
        self._failure = self._failure or cause
        self._process.kill()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


def reap_group(pid: int) -> int:
    """Collect a child that led a group, and what else of the group became ours as an orphan: all of it was killed.

    What the kernel does not end, such as a process in a read of a dead storage, is left after a moment.

    Returns: the child's exit code, or the negative number of a signal.
    """
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # raises where it is no child of ours
    code, left_at = 0, time.monotonic() + _ORPHANS_S
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < left_at:
            one, status = os.waitpid(-pid, os.WNOHANG)
            if one == pid:
                code = os.waitstatus_to_exitcode(status)
            elif one == 0:
                time.sleep(_ORPHANS_LOOK_S)
    return code


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    return os.fdopen(reader, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)
