"""Replicas on one PostgreSQL wake each other: NOTIFY in the transaction of a change, one listening connection each.

A notification stays a hint (see `service.notify`). While the listener stands, waits look again by themselves only now
and then; when it falls they are woken, and poll until it stands again. ADR 33.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Iterable
from typing import Any

import psycopg
import structlog
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession

from service.counters import REPLICA_NOTICES
from service.notify import Hub

CHANNEL = "rubato"
LISTENER_NAME = "rubato listener"
MAX_PAYLOAD_BYTES = 7_000
"""PostgreSQL takes 8000."""
ALIVE_S = 10.0
"""After so long a silence the listener asks whether the server is still there."""
ANSWER_S = 5.0
RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0
_NOTIFY = text("SELECT pg_notify(:channel, :payload)")

log = structlog.get_logger(__name__)


class Replicas:
    """This replica's voice and ear."""

    def __init__(self, url: str, hub: Hub) -> None:
        self._url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._hub = hub
        self._name = secrets.token_hex(4)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; until that stands the hub polls."""
        self._task = asyncio.create_task(self._run(), name="listener")

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def tell(self, session: AsyncSession, topics: Iterable[str]) -> None:
        """Send topics with the commit of this transaction, and not at all where it is rolled back."""
        for payload in payloads(self._name, topics):
            await session.execute(_NOTIFY, {"channel": CHANNEL, "payload": payload})

    async def _run(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                async with await self._connect() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}".encode())
                    pause_s = RETRY_FIRST_S
                    await self._listen(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("listener_lost", error=str(error).splitlines()[:1])
            finally:
                self._hub.set_fed(False)
            # Replicas that lost the same server do not come back at the same moment.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(RETRY_MAX_S, pause_s * 2)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        async with asyncio.timeout(2 * ANSWER_S):
            return await psycopg.AsyncConnection.connect(
                self._url, autocommit=True, application_name=LISTENER_NAME, connect_timeout=int(ANSWER_S)
            )

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            # A word to itself proves the whole way: the server is there, and no pooler takes the channel away.
            # Not `asyncio.wait_for`: of Python 3.11 it swallows a cancel that comes together with the answer.
            async with asyncio.timeout(ANSWER_S):
                await connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, self._name))
            due_at = time.monotonic() + ANSWER_S
            while not await self._hear(connection, due_at - time.monotonic(), stop_after=1):
                if time.monotonic() > due_at:
                    raise TimeoutError(f"a notification to itself did not come back within {ANSWER_S:g} s")
            self._hub.set_fed(True)
            await self._hear(connection, ALIVE_S)

    async def _hear(
        self, connection: psycopg.AsyncConnection[Any], timeout_s: float, *, stop_after: int | None = None
    ) -> bool:
        """Pass on what comes within the time, or the first of it; whether something of our own was among it."""
        has_own = False
        # Never left half way: what came in one packet would be lost.
        async for notice in connection.notifies(timeout=max(0.0, timeout_s), stop_after=stop_after):
            # Whoever may connect may send what they like, also nothing.
            sender, *topics = notice.payload.split() or [""]
            if sender == self._name:
                # Its topics were told to the waiters of this process already.
                has_own = True
            elif topics:
                REPLICA_NOTICES.inc()
                self._hub.publish(topics)
        return has_own


def payloads(sender: str, topics: Iterable[str]) -> list[str]:
    """Words with a space between: who speaks, then topics; as many notifications as it takes.

    Topics are our own words and ids: ASCII, without a space.
    """
    found: list[str] = []
    spoken = sender
    for topic in sorted(topics):
        if len(spoken) + 1 + len(topic) > MAX_PAYLOAD_BYTES:
            found.append(spoken)
            spoken = sender
        spoken += f" {topic}"
    return [*found, spoken] if spoken != sender else found
