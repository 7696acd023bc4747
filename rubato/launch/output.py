"""A stream of bytes cut into lines that are fit to store: bounded in length and in number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Stream = Literal["stdout", "stderr", "system"]

MAX_LINE_BYTES = 16 * 1024
"""Longer lines are cut: a log viewer has no use for them."""


@dataclass(frozen=True)
class OutputLine:
    """One line that a training process wrote, or that its supervisor says of it."""

    incarnation: str
    time: str
    """RFC 3339, UTC."""
    stream: Stream
    line: str


class LineSplitter:
    """Bytes in, lines out. Invalid UTF-8 is replaced; of a line redrawn with carriage returns the last state counts."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._cut_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Take in bytes; the lines they complete."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk[start:end])
            yield self._take()
            start = end + 1
        self._keep(chunk[start:])

    def flush(self) -> Iterator[str]:
        """The unfinished last line, if there is one."""
        if self._buffer or self._cut_bytes:
            yield self._take()

    def _keep(self, part: bytes) -> None:
        self._buffer += part
        redrawn = self._buffer.rfind(b"\r", 0, len(self._buffer) - 1)
        if redrawn >= 0:
            del self._buffer[: redrawn + 1]
            self._cut_bytes = 0
        excess = len(self._buffer) - MAX_LINE_BYTES
        if excess > 0:
            self._cut_bytes += excess
            del self._buffer[MAX_LINE_BYTES:]

    def _take(self) -> str:
        text = bytes(self._buffer).removesuffix(b"\r").decode("utf-8", "replace")
        if self._cut_bytes:
            text += f" ... ({self._cut_bytes} bytes cut)"
        self._buffer.clear()
        self._cut_bytes = 0
        return text


class OutputBudget:
    """A token bucket over bytes: a log storm must not slow down training or fill the service's storage."""

    LINE_COST = 64
    """What a line costs besides its bytes."""

    def __init__(self, bytes_per_s: float = 1e6, burst_bytes: float = 4e6) -> None:
        self._rate = bytes_per_s
        self._burst = burst_bytes
        self._left = burst_bytes
        self._at = 0.0
        self.dropped = 0
        """Lines refused since `take_dropped`."""

    def admits(self, line: str, now: float) -> bool:
        """Whether the line may pass; one that may not is counted."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) if self._at else self._burst
        self._at = now
        cost = len(line) + self.LINE_COST
        # After a drop nothing passes until a tenth of the burst is there again: stretches, not a sieve.
        needed = max(cost, self._burst / 10) if self.dropped else cost
        if self._left < needed:
            self.dropped += 1
            return False
        self._left -= cost
        return True

    def take_dropped(self) -> int:
        """How many lines were refused since the last call."""
        count, self.dropped = self.dropped, 0
        return count
