"""How long a transaction on PostgreSQL may take, whatever has become of the other end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

HUNG_UP_S = 0.5
"""So long after its connections were closed a transaction may take to notice that."""

_KEY = "patience"


class DatabaseSilent(TimeoutError):
    """The database did not answer in time."""


class Patience:
    """The connections that one transaction uses, and whether its time is over."""

    def __init__(self) -> None:
        self.is_over = False
        self._connections: list[Any] = []

    def begin(self, connection: Any) -> None:
        """The transaction uses it."""
        self._connections.append(connection)

    def end(self, connection: Any) -> None:
        """It does not any more."""
        self._connections.remove(connection)

    def lose(self) -> None:
        """The time is over: whoever waits for an answer hears at once that there will be none.

        To cancel it instead, psycopg asks the server to, and waits for that for ten seconds more.
        """
        self.is_over = True
        for connection in self._connections:
            if not connection.closed:
                with socket.socket(fileno=os.dup(connection.fileno())) as line, contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)


_PRESENT: ContextVar[Patience | None] = ContextVar("patience", default=None)


def watch_connections(engine: AsyncEngine) -> None:
    """Let those who are `in_time` know what they use. Before other listeners ask the connection anything."""
    pool = engine.sync_engine

    @event.listens_for(pool, "checkout")
    def _on_checkout(_connection: Any, record: ConnectionPoolEntry, _proxy: Any) -> None:
        if (patience := _PRESENT.get()) is not None:
            patience.begin(record.driver_connection)
            record.info[_KEY] = patience, record.driver_connection

    @event.listens_for(pool, "checkin")
    def _on_checkin(_connection: Any, record: ConnectionPoolEntry) -> None:
        patience, connection = record.info.pop(_KEY, (None, None))
        if patience is not None:
            patience.end(connection)


@contextlib.asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """A transaction with its wait for a connection.

    Raises:
        DatabaseSilent: it took longer.
    """
    before, patience = _PRESENT.get(), Patience()
    _PRESENT.set(patience)
    timer = asyncio.get_running_loop().call_later(seconds, patience.lose)
    try:
        async with asyncio.timeout(seconds + HUNG_UP_S):
            yield
    except (DBAPIError, TimeoutError) as error:
        if not patience.is_over:
            raise
        raise DatabaseSilent(f"no answer within {seconds:.0f} s") from error
    finally:
        timer.cancel()
        _PRESENT.set(before)
