"""Storage that may never answer (a network file system whose server is gone): waited for until it is due, no longer.

A call into it cannot be ended from outside, and its thread stays where it is until the storage comes back. So what
hangs is left alone, once: a `Lane` does one thing at a time, and takes nothing on while one of them is overdue.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rubato.errors import StorageUnreachable

DUE_S = 120.0
"""For an answer: longer than a network file system or an object store takes to fail over."""
SIGN_OF_LIFE_S = 1.0
"""Between two words of somebody who waits for what is not due yet."""
SLOWEST_BYTES_PER_S = 10e6
"""More time for more bytes: a storage slower than this is of no use for checkpoints."""

T = TypeVar("T")


def due_s(size: int = 0) -> float:
    """Seconds that so many bytes may take to be read or written."""
    return DUE_S + size / SLOWEST_BYTES_PER_S


def within(seconds: float, call: Callable[[], T], what: str, on_wait: Callable[[], None] = lambda: None) -> T:
    """The outcome of a call into storage, or its exception.

    Args:
        what: is done, for the message: `reading checkpoint 1-5`.
        on_wait: called every `SIGN_OF_LIFE_S` until it returns.
    Raises:
        StorageUnreachable: it did not return in time; its thread stays behind.
    """
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.extend((call(), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=run, name="storage", daemon=True)
    thread.start()
    ends = time.monotonic() + seconds
    while thread.is_alive() and (left := ends - time.monotonic()) > 0:
        thread.join(min(left, SIGN_OF_LIFE_S))
        on_wait()
    if not outcome:
        raise StorageUnreachable(
            f"{what} has not come to an end for {seconds:.0f} s: the storage hangs. Is its server there, and can this "
            "machine reach it?"
        )
    value, error = outcome
    if error is not None:
        raise error
    return value  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Task:
    do: Callable[[], None]
    overdue: Callable[[], None]
    seconds: float
    is_kept: bool


class Lane:
    """A thread that does what may hang, one after the other.

    What is overdue goes on, should the storage come back, and what it says then counts. Until then nothing else is
    begun: what waits behind it, and what comes later, is overdue at once; what must be done all the same is kept.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._running: _Task | None = None
        self._is_hung = self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def is_hung(self) -> bool:
        """Whether what it does is overdue."""
        return self._is_hung

    def put(
        self, do: Callable[[], None], overdue: Callable[[], None], seconds: float, *, is_kept: bool = False
    ) -> None:
        """Do this after all that was put before; never waits.

        Args:
            do: an exception of it is printed, and the lane goes on.
            overdue: called where `do` has not ended so many seconds after it began, or was not begun.
            seconds: see `due_s`.
            is_kept: done once what hangs has returned, also where it was overdue.
        """
        task = _Task(do, overdue, seconds, is_kept)
        with self._changed:
            is_hung = self._is_hung
            if is_kept or not is_hung:
                self._waiting.append(task)
                self._changed.notify_all()
                if self._thread is None:
                    # A daemon: what hangs for ever must not keep the process from ending.
                    self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                    self._thread.start()
        if is_hung:
            task.overdue()

    def wait(self, seconds: float | None = None) -> bool:
        """Block until all is done; False: something is overdue, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_hung or not (self._running or self._waiting), seconds)
            return not (self._is_hung or self._running or self._waiting)

    def close(self, seconds: float) -> None:
        """End the thread after what it has been asked for, waiting for so long at most."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None and not self._is_hung:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (task := self._next()) is not None:
            watch = threading.Timer(task.seconds, self._give_up, (task,))
            watch.daemon = True
            watch.start()
            try:
                task.do()
            except Exception:
                traceback.print_exc()
            watch.cancel()
            with self._changed:
                self._running, self._is_hung = None, False
                self._changed.notify_all()
            del task, watch  # they may hold much

    def _next(self) -> _Task | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closed)
            self._running = self._waiting.popleft() if self._waiting else None
            return self._running

    def _give_up(self, task: _Task) -> None:
        with self._changed:
            if self._running is not task:
                return
            self._is_hung = True
            given_up = [task, *self._waiting]
            self._waiting = deque(one for one in self._waiting if one.is_kept)
            self._changed.notify_all()
        for one in given_up:
            one.overdue()
