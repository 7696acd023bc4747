"""How much one caller may ask of this process: requests by a token bucket, and open streams by their number. Who is not
known yet is counted by address: how often one may fail to sign in.

In memory, so of each replica by itself: limits keep a program that runs wild from others' way, they are no accounts.
"""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from service.errors import ErrorKind, ServiceError

STREAM_RETRY_S = 5.0
MAX_ADDRESSES = 10_000
"""Remembered, some megabytes; beyond them the one that was silent for the longest is forgotten."""


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

    def give_back(self) -> None:
        """Put back one that was taken."""
        self.level = min(self.size, self.level + 1)


@dataclass
class Limits:
    """Of all callers of this process. Callers are known ones, so there are no more of them than tokens and users."""

    requests_per_s: float
    burst: int
    max_streams: int
    failed_sign_ins_per_minute: float = 30.0
    clock: Callable[[], float] = time.monotonic
    _buckets: dict[str, TokenBucket] = field(default_factory=dict)
    _streams: Counter[str] = field(default_factory=Counter)
    _sign_ins: dict[str, TokenBucket] = field(default_factory=dict)
    """By address; the one that tried last is the last."""

    def admit(self, caller: str) -> None:
        """Count a request.

        Raises:
            ServiceError: rate_limited.
        """
        now_s = self.clock()
        bucket = self._buckets.setdefault(caller, TokenBucket(self.requests_per_s, self.burst, self.burst, now_s))
        wait_s = bucket.take(now_s)
        if wait_s > 0:
            raise _refusal(
                f"This token makes more than {self.requests_per_s:g} requests a second; come again in {wait_s:.2g} s. "
                "Streams and `wait` tell of changes without asking again and again.",
                wait_s,
            )

    @contextmanager
    def sign_in(self, address: str) -> Iterator[None]:
        """A try to sign in, counted before anything is looked up; one that is not refused is given back.

        So tries at once are counted, too, and those who share an address sign in as often as they like.

        Raises:
            ServiceError: rate_limited, without a try.
        """
        now_s, per_minute = self.clock(), self.failed_sign_ins_per_minute
        size = max(1.0, per_minute)
        place = _place_of(address)
        bucket = self._sign_ins.pop(place, None) or TokenBucket(per_minute / 60, size, size, now_s)
        self._sign_ins[place] = bucket
        if len(self._sign_ins) > MAX_ADDRESSES:
            del self._sign_ins[next(iter(self._sign_ins))]
        wait_s = bucket.take(now_s)
        if wait_s > 0:
            raise _refusal(
                f"More than {per_minute:g} sign-ins a minute failed from your address; try again in {wait_s:.2g} s. "
                "A token that was copied whole signs in at once; `rubato login` makes a fresh link.",
                wait_s,
            )
        was_refused = False
        try:
            yield
        except ServiceError:
            was_refused = True
            raise
        finally:
            if not was_refused:
                bucket.give_back()

    def check_stream(self, caller: str) -> None:
        """Refuse one stream more than a caller may have.

        Raises:
            ServiceError: rate_limited.
        """
        if self._streams[caller] >= self.max_streams:
            raise _refusal(
                f"You have {self.max_streams} open streams, which is as many as one may have; close one first.",
                STREAM_RETRY_S,
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


def _refusal(detail: str, wait_s: float) -> ServiceError:
    """Of who has used up what one may have for now."""
    return ServiceError(ErrorKind.RATE_LIMITED, detail, extra={"retry_after": round(wait_s, 3)})


def _place_of(address: str) -> str:
    """What an address counts as: whoever has one of IPv6 has all of its network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(ipaddress.ip_network((parsed, 64), strict=False)) if mapped is None else str(mapped)
    return str(parsed)
