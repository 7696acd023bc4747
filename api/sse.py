"""Event streams: every message that can be replayed has an id; streams end on shutdown and after ten minutes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from api.auth import may_go_on
from service.access import Principal
from service.context import Context
from service.notify import ACCESS

EVENT_STREAM = "text/event-stream"
RECHECK_S = 10.0
"""A token that was revoked at another replica, or expired, ends its streams so much later at most."""
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


@dataclass(frozen=True)
class Look:
    """What one look at the database gave a stream to send."""

    messages: Sequence[bytes]
    is_over: bool = False
    """Nothing more will come."""
    has_more: bool = False
    """Look again at once."""
    again_in_s: float | None = None
    """Look again after this time even if nothing notifies."""


def wants_stream(request: Request) -> bool:
    """Whether the client asked for events instead of one JSON reply."""
    return EVENT_STREAM in request.headers.get("accept", "")


def message(data: Any, *, event: str, id: str | None = None) -> bytes:
    """One event."""
    # ASCII: many readers end a line at U+2028 and U+0085 too.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return bytes(format_sse_event(data_str=text, event=event, id=id))


def place(id: str) -> bytes:
    """Where a reader that comes back goes on, without a message: an EventSource notes it and tells nobody."""
    return bytes(format_sse_event(id=id))


def stream(
    context: Context, caller: Principal, topics: Sequence[str], look: Callable[[], Awaitable[Look]]
) -> StreamingResponse:
    """A reply that looks whenever one of the topics changed, and sends what it finds, as long as the caller may.

    Raises:
        ServiceError: rate_limited (the caller has too many streams).
    """
    context.limits.check_stream(caller.person or caller.name)
    return StreamingResponse(follow(context, caller, topics, look), media_type=EVENT_STREAM, headers=HEADERS)


async def follow(
    context: Context, caller: Principal, topics: Sequence[str], look: Callable[[], Awaitable[Look]]
) -> AsyncIterator[bytes]:
    """The messages of a stream, with a comment in long silences."""
    with context.limits.stream(caller.person or caller.name):
        async for item in _follow(context, caller, topics, look):
            yield item


async def _follow(
    context: Context, caller: Principal, topics: Sequence[str], look: Callable[[], Awaitable[Look]]
) -> AsyncIterator[bytes]:
    ends_at = time.monotonic() + context.settings.stream_limit.total_seconds()
    keep_alive_s = context.settings.keep_alive.total_seconds()
    silent_since = time.monotonic()
    # A first byte at once: proxies and browsers then know that the stream stands.
    yield b": connected\n\n"
    seen_access, checked_at = context.hub.access_changes, time.monotonic()
    with context.hub.subscribe(*topics, ACCESS) as subscription:
        while True:
            if seen_access != context.hub.access_changes or time.monotonic() - checked_at >= RECHECK_S:
                seen_access, checked_at = context.hub.access_changes, time.monotonic()
                if not await may_go_on(context, caller):
                    return
            seen = await look()
            for item in seen.messages:
                yield item
            now = time.monotonic()
            if seen.messages:
                silent_since = now
            elif now - silent_since >= keep_alive_s:
                silent_since = now
                yield b": keep-alive\n\n"
            if seen.is_over or context.hub.is_closed or now >= ends_at:
                return
            if not seen.has_more:
                wait_s = min(
                    context.hub.poll_interval_s,
                    silent_since + keep_alive_s - now,
                    ends_at - now,
                    checked_at + RECHECK_S - now,
                )
                if seen.again_in_s is not None:
                    wait_s = min(wait_s, seen.again_in_s)
                await subscription.wait(wait_s)
