"""Stacks of a training process that lives and goes on.

Its control thread tells them, under the interpreter's lock. Where that does not answer (the lock is held in C, or
nothing runs at all) the supervisor sends a signal whose handler, `faulthandler`'s, needs no lock and writes into memory
that both share. Only then: walking frames that other threads are just changing is not safe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rubato.wire.progress import anonymous_memory
from rubato.wire.worker import Stacks

STACKS_VARIABLE = "RUBATO_STACKS_FD"
ANSWER_S = 2.0
"""For the control thread of a process whose interpreter runs."""
HANDLER_S = 5.0
"""For the signal's handler, on a machine that has much else to do."""
LOOK_S = 0.02
MAX_BYTES = 256 * 1024
SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)
"""One that programs do not use: SIGUSR1 and SIGUSR2 are those of cluster managers."""
_PROC = Path("/proc")


def answer_signals() -> None:
    """In the training process: write all stacks into the supervisor's memory when the signal comes."""
    given = os.environ.pop(STACKS_VARIABLE, "")
    if given:
        file = os.fdopen(int(given), "w")
        os.set_inheritable(file.fileno(), False)  # not for the children of user code
        faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
        _OPEN.append(file)


_OPEN: list[object] = []
"""Kept for the life of the process: the handler writes there."""


class StackAnswers:
    """Sees to it that a question for stacks is answered.

    Args:
        incarnation: of the worker.
        deliver: takes the answer of a process that gave none itself.
        signal_process: sends the signal to the training process; its pid, or None where it is gone.
    """

    def __init__(
        self, incarnation: str, deliver: Callable[[Stacks], None], signal_process: Callable[[int], int | None]
    ) -> None:
        self.fd = anonymous_memory("rubato-stacks")
        self._incarnation = incarnation
        self._deliver = deliver
        self._signal_process = signal_process
        self._asked: set[int] = set()
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._is_closed = False

    def ask(self, number: int) -> None:
        """The process was asked; look after a while whether it answered."""
        with self._lock:
            self._asked.add(number)
        timer = threading.Timer(ANSWER_S, self._answer_for_it, (number,))
        timer.daemon = True
        timer.start()

    def on_answered(self, number: int) -> bool:
        """The process answered itself; False: too late, it was answered for it."""
        with self._lock:
            is_awaited = number in self._asked
            self._asked.discard(number)
            return is_awaited

    def close(self) -> None:
        """The process is gone."""
        with self._one_at_a_time:
            self._is_closed = True
            os.close(self.fd)

    def _answer_for_it(self, number: int) -> None:
        with self._one_at_a_time:
            with self._lock:
                if number not in self._asked or self._is_closed:
                    return
            text, cause = self._interrupt()
            if self.on_answered(number):
                self._deliver(Stacks(self._incarnation, number, text, cause))

    def _interrupt(self) -> tuple[str, str]:
        os.ftruncate(self.fd, 0)
        os.lseek(self.fd, 0, os.SEEK_SET)  # both ends share the position, too
        pid = self._signal_process(SIGNAL)
        if pid is None:
            return "", "it is gone, or has not come so far that it could tell its stacks"
        deadline = time.monotonic() + HANDLER_S
        while not (is_handled := has_handled(pid)) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        text = os.pread(self.fd, MAX_BYTES, 0).decode("utf-8", "replace")
        if text and is_handled:
            return current_first(text), "its interpreter did not run, so it was interrupted"
        return text, "it does not run at all: it is stopped, or waits in the kernel"


def may_signal(pid: int) -> bool:
    """Whether the process has a handler: without one the signal would end it."""
    return bool(_mask(_PROC / str(pid) / "status", "SigCgt"))


def has_handled(pid: int) -> bool:
    """Whether the signal is neither on its way to the process nor being handled (it is blocked meanwhile)."""
    with contextlib.suppress(OSError):
        tasks = list((_PROC / str(pid) / "task").iterdir())
        masks = [_mask(task / "status", name) for task in tasks for name in ("SigPnd", "ShdPnd", "SigBlk")]
        return not any(masks)
    return True  # gone


def _mask(path: Path, name: str) -> int:
    """The bit of our signal in one of the masks of /proc; 0 also where there is no such file any more."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    value = next((line.split()[1] for line in lines if line.startswith(f"{name}:")), "0")
    return int(value, 16) >> (SIGNAL - 1) & 1


def current_first(text: str) -> str:
    """`faulthandler` lists threads as they were made; the one that was interrupted, the main thread, comes first."""
    parts: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")) or not parts:
            parts.append([])
        if line:
            parts[-1].append(line)
    parts.sort(key=lambda part: not part or not part[0].startswith("Current thread"))
    return "\n".join(line for part in parts for line in part) + "\n"
