"""Open-loop load, and what became of it.

Requests are sent at fixed times, also while earlier ones are unanswered, and each latency counts from the time at which
its request was due: a service that stands still is charged for everything that had to wait, not for one request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence


async def send_at_rate(rate: float, seconds: float, send: Callable[[int], Awaitable[object]]) -> list[float]:
    """Call `send(0)`, `send(1)`, ... `rate` times a second.

    Args:     rate: calls a second.  seconds: for how long new calls begin.
    Returns:  seconds from when each call was due until it was done, in the order of the calls.
    Raises:   ExceptionGroup: a call failed; the others are ended.
    """
    began = time.monotonic()
    latencies_s = [0.0] * round(rate * seconds)

    async def call(number: int, due: float) -> None:
        await send(number)
        latencies_s[number] = time.monotonic() - due

    async with asyncio.TaskGroup() as group:
        for number in range(len(latencies_s)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(call(number, due))
    return latencies_s


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed: of 100 values the 0.99 one is the second largest.

    Raises:  ValueError: there are no values.
    """
    if not values:
        raise ValueError("a percentile of nothing: no request was answered")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
