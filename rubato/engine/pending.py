"""What is under way between the members of a generation, and how it is waited for: never without an end.

Who waits polls, or has a thread wait, and looks for a revoke meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from rubato.errors import GenerationLost

BACKSTOP_S = 24 * 3600.0
"""An operation's own timeout, never meant to fire: a revoke ends a wait, and a timed-out gloo pair is useless."""
CLOSE_S = 20.0
"""For messages under way to be given up."""
_POLL_MIN_S, _POLL_MAX_S = 0.00005, 0.0005
"""Polling backs off so that waiting workers leave the cores to those that compute."""
_LOOK_S = 0.002
"""How often who waits for a thread looks for a revoke."""


class Pending:
    """A collective under way. Whoever gives it up drops it: it keeps the group, whose end is the abort.

    Args:    kept: tensors that it reads or fills.
    """

    def __init__(self, work: Any, is_revoked: Callable[[], bool], kept: tuple[torch.Tensor, ...] = ()) -> None:
        self._work = work
        self._is_revoked = is_revoked
        self._kept = kept

    def wait(self) -> None:
        """Poll until it is over: here, and only here, the engine waits for peers.

        Raises:  GenerationLost: a peer died, or the generation was revoked; what it was to fill is then undefined.
        """
        try:
            pause = _POLL_MIN_S
            while not self._work.is_completed():
                if self._is_revoked():
                    raise GenerationLost("the generation was revoked")
                time.sleep(pause)
                pause = min(pause * 1.5, _POLL_MAX_S)
            self._work.wait()
        except RuntimeError as error:
            raise lost(error) from None
        finally:
            self._work, self._kept = None, ()  # a traceback keeps frames alive


class Staged(Pending):
    """One whose outcome is in the CPU's memory, and has to go to a device.

    Args:    outcome: what it fills, and where that belongs.
    """

    def __init__(self, pending: Pending, outcome: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._pending = pending
        self._outcome = outcome

    def wait(self) -> None:
        """See `Pending`."""
        self._pending.wait()
        for here, out in self._outcome:
            out.copy_(here)


class Messages(Pending):
    """Messages under way to this member on gloo.

    Args:
        works: receives, in the order in which to wait for them.
        kept: tensors that they fill.
    """

    def __init__(self, works: list[Any], is_revoked: Callable[[], bool], kept: tuple[torch.Tensor, ...]) -> None:
        super().__init__(None, is_revoked, kept)
        self.works = works
        self.error: Exception | None = None
        self.is_over = threading.Event()

    def poll(self) -> bool:
        """Whether it is over, without waiting for it.

        Raises:  GenerationLost: as `wait`.
        """
        if self.is_over.is_set():
            self.wait()
            return True
        if self._is_revoked():
            raise GenerationLost("the generation was revoked")
        return False

    def wait(self) -> None:
        """See `Pending`."""
        while not self.is_over.wait(_LOOK_S):
            if self._is_revoked():
                raise GenerationLost("the generation was revoked")
        self._kept = ()
        if self.error is not None:
            raise lost(self.error)


class Waited:
    """How long one worker has waited for others where it counts what it computes: `with waited:`, one at a time."""

    def __init__(self) -> None:
        self.ns = 0
        self._began = 0

    def __enter__(self) -> None:
        self._began = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.ns += time.perf_counter_ns() - self._began


class Waiter:
    """A thread that waits for the messages of a gloo group, in the order in which they were begun."""

    def __init__(self) -> None:
        self._begun: queue.SimpleQueue[Messages | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._go_through, name="messages", daemon=True)
        self._thread.start()

    def wait_for(self, messages: Messages) -> None:
        """From here on `messages` turns over when it is."""
        self._begun.put(messages)

    def end(self) -> None:
        """The connections are closed, so that what is under way fails."""
        self._begun.put(None)
        self._thread.join(CLOSE_S)

    def _go_through(self) -> None:
        while (messages := self._begun.get()) is not None:
            for work in messages.works:
                try:
                    work.wait(timedelta(seconds=BACKSTOP_S))
                except Exception as error:
                    messages.error = error.with_traceback(None)  # frames would keep the group
                    break
            work = None
            messages.works.clear()
            messages.is_over.set()
            del messages  # the next may be long in coming


def lost(error: Exception) -> GenerationLost:
    """What an error of a peer's connection means."""
    error.__traceback__ = None  # its frames would keep the group
    return GenerationLost(f"a peer was lost: {str(error).splitlines()[0]}")
