"""When something that should go on for ever last did, and whether the silence of others may be judged by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

ABSENCE_S = 5.0
SKEW_S = 5.0
"""Replicas judge by their own clocks what others wrote by theirs: a lease of 30 s bears that, and NTP keeps to less."""


def decide_absence(wall_s: float, steady_s: float, interval_s: float) -> str | None:
    """Why leases cannot be judged by the time that passed since the last round; None: they can.

    A clock that was set, a machine that slept, a stopped process: the silence then says nothing of the controllers.
    """
    if abs(wall_s - steady_s) > ABSENCE_S:
        return f"the clock jumped by {wall_s - steady_s:.1f} s"
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

    def look(self, now: datetime) -> None:
        """Both clocks were looked at, and leases are right by them."""
        self._vigil = (now, self._clock())

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
