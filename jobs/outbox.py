"""What a supervisor has to tell its controller: numbered, kept until acknowledged, handed out by a long poll."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rubato.launch.output import OutputLine
from rubato.wire import worker as wire

PROGRESS_EVERY_S = 0.2
"""Progress alone answers a poll so often at most; anything else does at once."""
MAX_EVENTS = 2000
"""In one answer."""

Event = wire.Message | OutputLine
_PROGRESS = (wire.Committed, wire.Beat, OutputLine)


@dataclass(frozen=True)
class Numbered:
    """An event and its place in the supervisor's log, counted from 1."""

    seq: int
    event: Event


class Outbox:
    """The log of one supervisor. Written by it, read by whoever leads now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._events: deque[Numbered] = deque()
        self._last_seq = 0
        self._is_urgent = False
        self._answered_at = -PROGRESS_EVERY_S
        self._readers = 0

    def put(self, event: Event) -> int:
        """Append an event; its number."""
        with self._changed:
            self._last_seq += 1
            self._events.append(Numbered(self._last_seq, event))
            self._is_urgent = self._is_urgent or not isinstance(event, _PROGRESS)
            self._changed.notify_all()
            return self._last_seq

    def interrupt(self) -> None:
        """Have waiting polls answer now: another controller leads."""
        with self._changed:
            self._readers += 1
            self._changed.notify_all()

    def take(self, after_seq: int, wait_s: float) -> tuple[Numbered, ...]:
        """Forget what is acknowledged; the rest, as soon as there is something worth an answer, or the wait is over.

        Asked again from the same place (the answer was lost), it answers the same, and more.
        """
        deadline = self._clock() + wait_s
        with self._changed:
            reader = self._readers
            while self._events and self._events[0].seq <= after_seq:
                self._events.popleft()
            while self._readers == reader:
                now = self._clock()
                due_at = self._due_at()
                if min(due_at, deadline) <= now:
                    break
                self._changed.wait(min(due_at, deadline) - now)
            if self._events:
                self._answered_at = self._clock()
            found = tuple(self._events[index] for index in range(min(MAX_EVENTS, len(self._events))))
            self._is_urgent = len(found) < len(self._events)
            return found

    def pending(self) -> tuple[Numbered, ...]:
        """All that is not acknowledged."""
        with self._changed:
            return tuple(self._events)

    def _due_at(self) -> float:
        """When the present content is worth an answer."""
        if not self._events:
            return float("inf")
        return 0.0 if self._is_urgent else self._answered_at + PROGRESS_EVERY_S
