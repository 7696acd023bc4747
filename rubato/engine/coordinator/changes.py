"""Planned changes of the membership that fail while training goes on: when to try again, and when to give up. Pure.

others were to join     each try costs the members a group, memory and the state on its way: the wait grows, and
                        after `MOST_JOINS` in a row no more are added until the wish or the membership changes
only members            to leave, or to share out anew, is tried without end: it takes nobody new
"""

from __future__ import annotations

from dataclasses import dataclass

from rubato.engine.coordinator.starting import NEVER, wait_s

MOST_JOINS = 8
"""Failures in a row: with the waits between them more than a minute, which a link that flaps is back in."""
LONGEST_WAIT_S = 30.0
LONGEST_MOVE_WAIT_S = 5.0
"""Whoever is to leave may have a deadline."""


@dataclass(frozen=True)
class Failed:
    """What follows from a change that failed."""

    times: int
    """In a row."""
    wait_s: float
    """Until it is tried again; `NEVER`: it is not."""

    @property
    def outlook(self) -> str:
        """The end of a sentence that began with the cause."""
        times = "" if self.times == 1 else f" (it failed {self.times} times in a row)"
        if self.wait_s == NEVER:
            return f"; no more are added until the wish changes{times}"
        return f"; it is tried again in {self.wait_s:g} s{times}"


def decide_retry(times: int, *, joins: bool) -> Failed:
    """What follows where a change failed so many times in a row.

    Args:    joins: whether others were to join.
    """
    if joins and times >= MOST_JOINS:
        return Failed(times, NEVER)
    return Failed(times, wait_s(times, LONGEST_WAIT_S if joins else LONGEST_MOVE_WAIT_S))


class Changes:
    """Counts the failures, and says from when on a change may be tried."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The membership or the wish is another one: what failed before says nothing any more."""
        self._times = {True: 0, False: 0}
        self._retry_at = {True: 0.0, False: 0.0}
        self.because = ""
        """Why the members are not as wished: the last change that failed, and what follows; empty: none did."""

    def forget_moves(self) -> None:
        """The members formed a generation among themselves; of joins that says nothing."""
        self._times[False], self._retry_at[False] = 0, 0.0

    def may_try(self, now: float, *, joins: bool) -> bool:
        """Whether the members may be changed.

        Args:    joins: whether others are to join.
        """
        return now >= self._retry_at[joins]

    @property
    def has_given_up_joins(self) -> bool:
        """Whether nobody is added any more."""
        return self._retry_at[True] == NEVER

    def on_failed(self, now: float, *, joins: bool) -> Failed:
        """A change failed."""
        self._times[joins] += 1
        failed = decide_retry(self._times[joins], joins=joins)
        self._retry_at[joins] = now + failed.wait_s
        return failed
