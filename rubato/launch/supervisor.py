"""Starts one training process, carries commands and messages, captures its output, and knows for sure when it is gone.

Two threads. *Life* spawns the process and waits for its end: the parent-death signal fires when the creating thread
ends, so that thread lives as long as the process. *Pump* alone reads the control socket and the pipes and writes the
commands, so everything the process said is delivered in order, and `Exited` after all of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from rubato.errors import RubatoError
from rubato.launch.output import LineSplitter, OutputBudget, OutputLine, Stream
from rubato.launch.tether import PARENT_VARIABLE
from rubato.wire import worker as wire

CONTROL_VARIABLE = "RUBATO_CONTROL_FD"
CHILD_COMMAND = (sys.executable, "-P", "-m", "rubato.launch.child")
"""-P: the folder it starts in comes by PYTHONPATH, after which a user's `random.py` cannot break the start itself."""

LAST_LINES = 100
DRAIN_S = 2.0
"""After the whole group was killed, pipes stay open only in processes that left the group: not worth more waiting."""
STACKS_S = 1.0
"""Time for the fault handler to write the stacks of a hung process."""
MAX_MESSAGE_BYTES = 64 * 2**20
_READ_BYTES = 1 << 16

Deliver = Callable[[wire.Message | OutputLine], None]


@dataclass(frozen=True)
class ChildPlan:
    """All that is needed to start a training process."""

    start: wire.Start
    node: str
    """Name of the host, as shown to users."""
    working_dir: Path
    environment: Mapping[str, str]
    command: tuple[str, ...] = CHILD_COMMAND


class ChildSupervisor:
    """One training process from its spawn to its confirmed end.

    `deliver` is called from threads of the supervisor, one call at a time, and must return soon: first `Spawned`, then
    messages and output lines, then `Exited`, which is the last; where nothing could be started, `Exited` alone.
    """

    def __init__(self, plan: ChildPlan, deliver: Deliver) -> None:
        self._plan = plan
        self._deliver = deliver
        self._lock = threading.Lock()
        self._outgoing: deque[bytes] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_reaped = False
        self._kill_wish = ""
        self._control, self._child_end = socket.socketpair()
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._control, self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        self._life = threading.Thread(target=self._live, name=f"life-{plan.start.incarnation}", daemon=True)
        self.send(plan.start)

    @property
    def incarnation(self) -> str:
        """Of the worker."""
        return self._plan.start.incarnation

    @property
    def pid(self) -> int | None:
        """Of the training process; None before it exists."""
        return self._process.pid if self._process else None

    @property
    def is_over(self) -> bool:
        """`Exited` was delivered."""
        return self._life.ident is not None and not self._life.is_alive()

    def start(self) -> None:
        """Spawn the process, in the background."""
        self._life.start()

    def send(self, command: wire.Command) -> None:
        """Queue a command; never blocks. Commands to a process that is gone vanish."""
        self._outgoing.append(json.dumps(wire.encode(command)).encode() + b"\n")
        self._wake()

    def kill(self, because: str = "", *, with_stacks: bool = False) -> None:
        """End the whole process group with SIGKILL.

        Args:
            because: told to the log.
            with_stacks: have the stacks of all threads written to its standard error before.
        """
        with self._lock:
            self._kill_wish = because or "it was asked to"
            if self._process is None or self._is_reaped:
                return
            if not with_stacks:
                self._signal_group(signal.SIGKILL)
                return
            # The process may be stopped: then this stays pending, and the timer ends it.
            os.kill(self._process.pid, signal.SIGABRT)
        timer = threading.Timer(STACKS_S, self.kill, (because,))
        timer.daemon = True
        timer.start()

    def close(self, timeout_s: float = 10.0) -> bool:
        """Kill it and wait for the end. Returns whether `Exited` was delivered."""
        self.kill("its supervisor closed")
        return self.join(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end. Returns whether `Exited` was delivered."""
        if self._life.ident is not None:
            self._life.join(timeout_s)
        return self.is_over

    # --- life: spawn, wait, reap --------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            process = self._spawn()
        except OSError as error:
            self._child_end.close()
            self._close_own_ends()
            cause = f"the training process could not be started: {error}"
            self._deliver(wire.Exited(self.incarnation, None, None, cause=cause))
            return
        node, supervisor_pid = self._plan.node, os.getpid()
        self._deliver(wire.Spawned(self.incarnation, process.pid, supervisor_pid, node))
        pump = _Pump(self, process)
        pump.thread.start()
        # The end is seen without reaping: until the group is killed the pid must not be given to anybody else.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            self._signal_group(signal.SIGKILL)
            code = process.wait()
            self._is_reaped = True
        pump.finish_by(time.monotonic() + DRAIN_S)
        self._wake()
        pump.thread.join()
        self._close_own_ends()
        self._deliver(
            wire.Exited(
                self.incarnation,
                exit_code=code if code >= 0 else None,
                signal=signal_name(-code) if code < 0 else None,
                last_output=tuple(self._last),
                cause=pump.broken_by,
            )
        )

    def _spawn(self) -> subprocess.Popen[bytes]:
        environment = {
            **self._plan.environment,
            CONTROL_VARIABLE: str(self._child_end.fileno()),
            PARENT_VARIABLE: str(os.getpid()),
            "RUBATO_JOB_ID": self._plan.start.job_id,
            "RUBATO_WORKER_ID": self._plan.start.worker_id,
            "RUBATO_INCARNATION": self.incarnation,
        }
        process = subprocess.Popen(
            self._plan.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._plan.working_dir,
            env=environment,
            pass_fds=(self._child_end.fileno(),),
            start_new_session=True,
            bufsize=0,
        )
        self._child_end.close()
        with self._lock:
            self._process = process
            if self._kill_wish:
                self._signal_group(signal.SIGKILL)
        return process

    def _signal_group(self, number: signal.Signals) -> None:
        """With the lock held."""
        if self._process is not None and not self._is_reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def _close_own_ends(self) -> None:
        for end in (self._control, self._wake_reader, self._wake_writer):
            end.close()


class _Pump:
    """Moves bytes between one training process and `deliver`, in its own thread."""

    def __init__(self, owner: ChildSupervisor, process: subprocess.Popen[bytes]) -> None:
        self._owner = owner
        self._selector = selectors.DefaultSelector()
        self._process = process
        self._deadline: float | None = None
        self._incoming = bytearray()
        self._splitters: dict[Stream, LineSplitter] = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._budget = OutputBudget()
        self.broken_by = ""
        """Why the process had to be killed over its messages."""
        self.thread = threading.Thread(target=self._run, name=f"pump-{owner.incarnation}", daemon=True)

    def finish_by(self, deadline: float) -> None:
        """The process is gone: read what is left, until this time at most."""
        self._deadline = deadline

    def _run(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        pipes: dict[Stream, IO[bytes]] = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._selector.register(self._owner._wake_reader, selectors.EVENT_READ, self._on_wake)
        self._selector.register(self._owner._control, selectors.EVENT_READ, self._on_control)
        for stream, pipe in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, lambda _, s=stream, p=pipe: self._on_output(s, p))
        try:
            # The wake-up socket is always there: when only it is left, everything was read.
            while len(self._selector.get_map()) > 1:
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    break
                for key, mask in self._selector.select(left):
                    key.data(mask)
                self._watch_for_room()
            if self._deadline is None:
                # It closed all it had, but lives: there is nothing to do but to wait for its end.
                self._wait_for_end()
            self._flush()
        finally:
            self._selector.close()
            for pipe in pipes.values():
                pipe.close()

    def _wait_for_end(self) -> None:
        while self._deadline is None:
            for key, mask in self._selector.select():
                key.data(mask)

    def _on_wake(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._owner._wake_reader.recv(4096)

    # --- commands and messages ----------------------------------------------------------------------------------------

    def _watch_for_room(self) -> None:
        """Look out for room in the socket only while there is something to write."""
        control = self._owner._control
        if control in self._registered():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._owner._outgoing else 0)
            self._selector.modify(control, wanted, self._on_control)

    def _registered(self) -> set[object]:
        return {key.fileobj for key in self._selector.get_map().values()}

    def _on_control(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write()
        if not mask & selectors.EVENT_READ:
            return
        try:
            data = self._owner._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._selector.unregister(self._owner._control)

    def _write(self) -> None:
        outgoing = self._owner._outgoing
        try:
            while outgoing:
                line = outgoing[0]
                sent = self._owner._control.send(line)
                if sent < len(line):
                    outgoing[0] = line[sent:]
                    return
                outgoing.popleft()
        except BlockingIOError:
            return
        except OSError:
            outgoing.clear()  # nobody reads any more; what was written to us is still to be read

    def _take(self, data: bytes) -> None:
        self._incoming += data
        while (end := self._incoming.find(b"\n")) >= 0:
            line = bytes(self._incoming[:end])
            del self._incoming[: end + 1]
            self._take_message(line)
        if len(self._incoming) > MAX_MESSAGE_BYTES:
            self._incoming.clear()
            self._give_up(f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")

    def _take_message(self, line: bytes) -> None:
        try:
            message = wire.decode(json.loads(line))
        except (ValueError, AttributeError, RubatoError) as error:
            self._give_up(f"it sent a message that does not hold ({error}); its Rubato may be of another version")
            return
        self._owner._deliver(message)

    def _give_up(self, cause: str) -> None:
        self.broken_by = self.broken_by or cause
        self._owner.kill(cause)

    # --- output -------------------------------------------------------------------------------------------------------

    def _on_output(self, stream: Stream, pipe: IO[bytes]) -> None:
        try:
            chunk = os.read(pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._selector.unregister(pipe)
        for line in self._splitters[stream].feed(chunk):
            self._put_line(stream, line)

    def _put_line(self, stream: Stream, line: str) -> None:
        self._owner._last.append(line)
        dropped = self._budget.dropped
        if self._budget.admits(line, time.monotonic()):
            if dropped:
                self._tell_dropped()
            self._put(stream, line)

    def _flush(self) -> None:
        for stream, splitter in self._splitters.items():
            for line in splitter.flush():
                self._put_line(stream, line)
        if self._budget.dropped:
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        count = self._budget.take_dropped()
        self._put("system", f"{count} lines were dropped: more output than a worker may write")

    def _put(self, stream: Stream, line: str) -> None:
        self._owner._deliver(OutputLine(self._owner.incarnation, utc_now(), stream, line))


def utc_now() -> str:
    """The time of a log line: RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def signal_name(number: int) -> str:
    """`SIGKILL` of 9; the number where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
