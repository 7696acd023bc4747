"""When something that should go on for ever last did, and whether the silence of others may be judged by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

ABSENCE_S = 5.0
SKEW_S = 5.0
"""Replicas judge by their own clocks what others wrote by theirs: a lease of 30 s bears that, and NTP keeps to less."""


SETTLING_S = 300.0
"""A clock that is set wrong, or wakes up wrong, is commonly set right within minutes."""


def decide_jump(wall_s: float, steady_s: float) -> str | None:
    """Why the clock is not to be believed: it and the steady clock tell different times since a moment; None: it is."""
    return f"the clock jumped by {wall_s - steady_s:.1f} s" if abs(wall_s - steady_s) > ABSENCE_S else None


def decide_absence(wall_s: float, steady_s: float, interval_s: float) -> str | None:
    """Why leases cannot be judged by the time that passed since the last round; None: they can.

    A clock that was set, a machine that slept, a stopped process: the silence then says nothing of the controllers.
    """
    if (jump := decide_jump(wall_s, steady_s)) is not None:
        return jump
    if steady_s - interval_s > ABSENCE_S:
        return f"the service stood still for {steady_s - interval_s:.1f} s"
    return None


def decide_skew(before: datetime, told: datetime, after: datetime) -> str | None:
    """Why this clock is not to be trusted beside that of the database, which was read in between; None: it is."""
    behind_s, ahead_s = (told - after).total_seconds(), (before - told).total_seconds()
    if max(behind_s, ahead_s) <= SKEW_S:
        return None
    what = f"{behind_s:.1f} s behind" if behind_s > ahead_s else f"{ahead_s:.1f} s ahead of"
    return f"the clock of the service is {what} that of the database"


class Heartbeat:
    """Beats of one loop, by the steady clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None
        self._vigil: tuple[datetime, float] | None = None
        self._jumped_at: float | None = None
        self._listens_since: float | None = None
        self.out_of_step: str | None = None
        """Why this clock is not to be trusted beside the database's; None: it is."""
        self.fault: str | None = None
        """The kind of error with which the last round ended; None: it did its work."""

    def beat(self, fault: str | None = None) -> None:
        """It goes on, also where its round failed."""
        self._last = self._clock()
        self.fault = fault

    @property
    def age_s(self) -> float | None:
        """Seconds since the last beat; None: there was none."""
        return None if self._last is None else self._clock() - self._last

    def look(self, now: datetime, *, is_anew: bool = False) -> None:
        """Both clocks were looked at, and leases are right by them; `is_anew`: nobody may have listened before."""
        steady = self._clock()
        if self._jump_since_vigil(now) is not None:
            self._jumped_at = steady
        if self._listens_since is None or is_anew:
            self._listens_since = steady
        self._vigil = (now, steady)

    def has_listened_for(self, duration: timedelta) -> bool:
        """Whether who was silent for so long was silent to somebody who listened. True where no loop runs."""
        return self._listens_since is None or self._clock() - self._listens_since >= duration.total_seconds()

    def why_unsettled(self, now: datetime) -> str | None:
        """Why nothing may be done by this clock that cannot be undone; None: it may.

        Time limits and retention wait for minutes after a jump: a clock that was set a day ahead must not end in a
        moment what has a day left.
        """
        if (because := self.out_of_step or self._jump_since_vigil(now)) is not None:
            return because
        if self._jumped_at is not None and self._clock() - self._jumped_at < SETTLING_S:
            return f"the clock jumped less than {SETTLING_S:g} s ago"
        return None

    def _jump_since_vigil(self, now: datetime) -> str | None:
        if self._vigil is None:
            return None
        wall, steady = self._vigil
        return decide_jump((now - wall).total_seconds(), self._clock() - steady)

    def why_unsure(self, now: datetime, interval_s: float) -> str | None:
        """Why a lease that has run out may not be believed yet: it is not sure that anybody listened meanwhile.

        A request may be the first to run after the process stood still: before the loop, which renews all leases then.
        """
        if self.out_of_step is not None:
            return self.out_of_step
        if self._vigil is None:
            return None
        wall, steady = self._vigil
        return decide_absence((now - wall).total_seconds(), self._clock() - steady, interval_s)
