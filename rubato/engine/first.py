"""Of messages from several others, the one that is there first."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rubato.engine.pending import Messages

_POLL_MIN_S, _POLL_MAX_S = 0.00005, 0.001


def first_of(awaited: Mapping[int, Messages]) -> int:
    """The rank whose messages are over first.

    Raises:  GenerationLost: one was lost.
    """
    pause = _POLL_MIN_S
    while True:
        for rank, messages in awaited.items():
            if messages.poll():
                return rank
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX_S)
