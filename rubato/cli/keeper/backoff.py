"""When to start again what ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Backoff:
    """Waits that double while a process keeps ending, and begin anew after it lived for a while."""

    initial_s: float = 0.5
    max_s: float = 15.0
    healthy_after_s: float = 60.0
    """A process that lived so long counts as sound: its end is a new story."""
    failures: int = 0
    next_start_at: float = 0.0

    def note_end(self, *, started_at: float, now: float) -> float:
        """The process ended; returns the seconds to wait."""
        self.failures = 1 if now - started_at >= self.healthy_after_s else self.failures + 1
        wait_s = min(self.max_s, self.initial_s * 2.0 ** (self.failures - 1))
        self.next_start_at = now + wait_s
        return wait_s
