"""Wait for what another process will do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], what: str, patience_s: float) -> None:
    """Until it holds.

    Raises:
        AssertionError: it did not within `patience_s`.
    """
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {patience_s} s for: {what}"
        time.sleep(0.02)
