"""When something that should go on for ever last did."""

from __future__ import annotations

import time
from collections.abc import Callable


class Heartbeat:
    """Beats of one loop, by the steady clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def beat(self) -> None:
        """It goes on."""
        self._last = self._clock()

    @property
    def age_s(self) -> float | None:
        """Seconds since the last beat; None: there was none."""
        return None if self._last is None else self._clock() - self._last
