"""How much one caller may ask of this process: requests by a token bucket, and open streams by their number.

In memory, so of each replica by itself: limits keep a program that runs wild from others' way, they are no accounts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.errors import ErrorKind, ServiceError

STREAM_RETRY_S = 5.0


@dataclass
class TokenBucket:
    """Fills steadily up to its size; each request takes one out."""

    rate_per_s: float
    size: float
    level: float
    filled_at_s: float

    def take(self, now_s: float) -> float:
        """Take one; gives 0, or the seconds after which there is one again."""
        self.level = min(self.size, self.level + max(0.0, now_s - self.filled_at_s) * self.rate_per_s)
        self.filled_at_s = now_s
        if self.level < 1:
            return (1 - self.level) / self.rate_per_s
        self.level -= 1
        return 0.0


@dataclass
class Limits:
    """Of all callers of this process. Callers are known ones, so there are no more of them than tokens and users."""

    requests_per_s: float
    burst: int
    max_streams: int
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, TokenBucket] = field(default_factory=dict)
    _streams: Counter[str] = field(default_factory=Counter)

    def admit(self, caller: str) -> None:
        """Count a request.

        Raises:
            ServiceError: rate_limited.
        """
        now_s = self.clock()
        bucket = self._buckets.setdefault(caller, TokenBucket(self.requests_per_s, self.burst, self.burst, now_s))
        wait_s = bucket.take(now_s)
        if wait_s > 0:
            raise ServiceError(
                ErrorKind.RATE_LIMITED,
                f"This token makes more than {self.requests_per_s:g} requests a second; come again in {wait_s:.2g} s. "
                "Streams and `wait` tell of changes without asking again and again.",
                extra={"retry_after": round(wait_s, 3)},
            )

    def check_stream(self, caller: str) -> None:
        """Refuse one stream more than a caller may have.

        Raises:
            ServiceError: rate_limited.
        """
        if self._streams[caller] >= self.max_streams:
            raise ServiceError(
                ErrorKind.RATE_LIMITED,
                f"You have {self.max_streams} open streams, which is as many as one may have; close one first.",
                extra={"retry_after": STREAM_RETRY_S},
            )

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """An open stream."""
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]
