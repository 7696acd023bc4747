"""Moves bytes between one training process and its supervisor: commands down, messages and output up, in order."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from rubato.errors import RubatoError
from rubato.launch.output import LineSplitter, OutputBudget, OutputLine, Stream
from rubato.wire import worker as wire
from rubato.wire.units import utc_timestamp

LAST_LINES = 100
"""Of the output, kept for the report of the end."""
MAX_MESSAGE_BYTES = 64 * 2**20
BEAT_EVERY_S = 1.0
_READ_BYTES = 1 << 16

Deliver = Callable[[wire.Message | OutputLine], None]


class Pump:
    """Owns the supervisor's end of the control socket, and the pipes of the output while the process lives.

    Args:
        incarnation: of the worker.
        deliver: takes what the process says, in the pump's thread.
        on_nonsense: called with the reason when the process does not speak the protocol.
        beat: what the process does right now, asked for once a second; None: not known yet.
    """

    def __init__(
        self,
        incarnation: str,
        deliver: Deliver,
        on_nonsense: Callable[[str], None],
        beat: Callable[[], wire.Beat | None] = lambda: None,
    ) -> None:
        self._incarnation = incarnation
        self._beat = beat
        self._beat_at = 0.0
        self._deliver = deliver
        self._on_nonsense = on_nonsense
        with contextlib.ExitStack() as held:
            self._control, self.child_end = map(held.enter_context, socket.socketpair())
            self._wake_reader, self._wake_writer = map(held.enter_context, socket.socketpair())
            self._selector = held.enter_context(selectors.DefaultSelector())
            self._held = held.pop_all()
        for end in (self._control, self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._outgoing: deque[bytes] = deque()
        self._incoming = bytearray()
        self._splitters: dict[Stream, LineSplitter] = {"stdout": LineSplitter(), "stderr": LineSplitter()}
        self._budget = OutputBudget()
        self._deadline: float | None = None
        self._thread: threading.Thread | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.nonsense = ""
        """What was wrong with its messages; empty: nothing."""

    def send(self, command: wire.Command) -> None:
        """Queue a command; never blocks. Commands to a process that is gone vanish."""
        self._outgoing.append(json.dumps(wire.encode(command)).encode() + b"\n")
        self._wake()

    def note(self, text: str) -> None:
        """Add a line of the supervisor to the output; before `start` only: after it the pump's thread delivers."""
        self._put("system", text)

    def start(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Begin to move; the pump closes the pipes."""
        self.child_end.close()
        arguments = (stdout, stderr)
        thread = threading.Thread(target=self._run, args=arguments, name=f"pump-{self._incarnation}", daemon=True)
        thread.start()
        self._thread = thread

    def finish(self, timeout_s: float) -> None:
        """The process is gone: read what is left, for so long at most (others may hold its pipes), and stop."""
        self._deadline = time.monotonic() + timeout_s
        self._wake()
        if self._thread is not None:
            self._thread.join()
        self._held.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def _run(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        with stdout, stderr:
            try:
                self._move(stdout, stderr)
            except Exception as error:  # nobody reads on: it would stand still for ever
                self._refuse(f"what it said could not be passed on ({type(error).__name__}: {error})")

    def _move(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        pipes: dict[Stream, IO[bytes]] = {"stdout": stdout, "stderr": stderr}
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._on_wake)
        self._selector.register(self._control, selectors.EVENT_READ, self._on_control)
        for stream, pipe in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, lambda _, s=stream, p=pipe: self._on_output(s, p))
        while not self._is_done():
            due_at = self._beat_at if self._deadline is None else self._deadline
            for key, mask in self._selector.select(max(0.0, due_at - time.monotonic())):
                key.data(mask)
            self._watch_for_room()
            self._tell_progress()
        self._flush()

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if self._deadline is None and now >= self._beat_at:
            self._beat_at = now + BEAT_EVERY_S
            if (beat := self._beat()) is not None:
                self._deliver(beat)

    def _is_done(self) -> bool:
        """The process is gone, and everything was read, or the time for that is over."""
        if self._deadline is None:
            return False
        # The wake-up socket is always there.
        return len(self._selector.get_map()) == 1 or time.monotonic() >= self._deadline

    def _on_wake(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(4096)

    # --- commands and messages ----------------------------------------------------------------------------------------

    def _watch_for_room(self) -> None:
        """Look out for room in the socket only while there is something to write."""
        if any(key.fileobj is self._control for key in self._selector.get_map().values()):
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
            self._selector.modify(self._control, wanted, self._on_control)

    def _on_control(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._write()
        if not mask & selectors.EVENT_READ:
            return
        try:
            data = self._control.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(data)
        else:
            self._selector.unregister(self._control)

    def _write(self) -> None:
        try:
            while self._outgoing:
                line = self._outgoing[0]
                sent = self._control.send(line)
                if sent < len(line):
                    self._outgoing[0] = line[sent:]
                    return
                self._outgoing.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._outgoing.clear()  # nobody reads any more; what was written to us is still to be read

    def _take(self, data: bytes) -> None:
        self._incoming += data
        while (end := self._incoming.find(b"\n")) >= 0:
            line = bytes(self._incoming[:end])
            del self._incoming[: end + 1]
            self._take_message(line)
        if len(self._incoming) > MAX_MESSAGE_BYTES:
            self._incoming.clear()
            self._refuse(f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")

    def _take_message(self, line: bytes) -> None:
        try:
            message = wire.decode(json.loads(line))
        except (ValueError, AttributeError, RubatoError) as error:
            self._refuse(f"it sent a message that does not hold ({error}); its Rubato may be of another version")
            return
        self._deliver(message)

    def _refuse(self, reason: str) -> None:
        self.nonsense = self.nonsense or reason
        self._on_nonsense(reason)

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
        self.last_lines.append(line)
        has_dropped = self._budget.dropped > 0
        if self._budget.admits(line, time.monotonic()):
            if has_dropped:
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
        self._deliver(OutputLine(self._incarnation, utc_timestamp(), stream, line))
