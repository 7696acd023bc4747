"""Lookups of host names. Nothing ends one that hangs, so each has a thread of its own and holds up no other one.

Who stops waiting leaves a lookup behind. A project that has left some behind begins no further tries until one of them
has ended: it waits for its own lookups, and the threads are bounded.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future

from service.webhooks.addresses import Resolve

MAX_LEFT = 4
"""A project that has left so many lookups behind waits."""


async def resolve_by_system(host: str, port: int) -> list[str]:
    """As every program of this machine does; with a resolver that is silent it takes half a minute and more."""
    future: Future[list[str]] = Future()
    future.set_running_or_notify_cancel()  # from here on nobody cancels it, so its thread may end it

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            future.set_result([str(entry[4][0]) for entry in found])
        except BaseException as error:
            future.set_exception(error)

    # Not of a pool: at its end the interpreter waits for those.
    threading.Thread(target=look_up, name="resolve", daemon=True).start()
    return await asyncio.wrap_future(future)


class Lookups:
    """Lookups by project."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._left: dict[str, set[asyncio.Future[list[str]]]] = {}

    def has_room(self, project: str) -> bool:
        """Whether the project may begin another one."""
        return len(self._left.get(project, ())) < MAX_LEFT

    async def find(self, project: str, host: str, port: int) -> list[str]:
        """What the resolver says. One that is not waited for any more counts until it has ended."""
        lookup = asyncio.ensure_future(self._resolve(host, port))
        try:
            return await asyncio.shield(lookup)
        finally:
            if not lookup.done():
                self._left.setdefault(project, set()).add(lookup)
                lookup.add_done_callback(lambda _: self._forget(project, lookup))

    def _forget(self, project: str, lookup: asyncio.Future[list[str]]) -> None:
        if not lookup.cancelled():
            lookup.exception()  # nobody waits for it
        self._left[project].discard(lookup)
        if not self._left[project]:
            del self._left[project]
