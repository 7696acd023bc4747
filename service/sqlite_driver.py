"""SQLite in a thread of its own, visited once for each statement.

aiosqlite asks its thread for a cursor, to run a statement, to fetch what it gave, and to close the cursor: four waits,
of which each wakes two threads. A submit made forty of them, most of what it cost. Here one visit does all four.
SQLAlchemy's dialect for aiosqlite uses it unchanged, by `create_async_engine(async_creator=...)`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiosqlite
from sqlalchemy.engine import make_url

FETCHED_AT_ONCE = 64


@dataclass(frozen=True)
class Answer:
    """What a statement gave."""

    rows: list[Any]
    description: Any = None
    rowcount: int = -1
    lastrowid: int | None = None


class Cursor:
    """As much of aiosqlite's cursor as SQLAlchemy asks for; nothing is open between two calls."""

    arraysize = 1

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._answer = Answer([])

    async def __aenter__(self) -> Self:
        return self

    @property
    def description(self) -> Any:
        """Names of the columns, where there are rows."""
        return self._answer.description

    @property
    def rowcount(self) -> int:
        """Rows that were changed."""
        return self._answer.rowcount

    @property
    def lastrowid(self) -> int | None:
        """Of the last row that was inserted."""
        return self._answer.lastrowid

    async def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Self:
        """Run a statement and fetch all rows."""
        self._answer = await self._connection.visit(sql, parameters, has_many=False)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any]]) -> Self:
        """Run a statement with each of the parameters."""
        self._answer = await self._connection.visit(sql, parameters, has_many=True)
        return self

    async def fetchall(self) -> list[Any]:
        """The rows, which are here already."""
        return self._answer.rows

    async def close(self) -> None:
        """It was closed when the visit ended."""


class Connection(aiosqlite.Connection):
    """A connection whose statements take one visit each."""

    def cursor(self) -> Cursor:  # type: ignore[override]
        """A cursor, without a visit."""
        return Cursor(self)

    async def visit(self, sql: str, parameters: Any, *, has_many: bool) -> Answer:
        """Run a statement in the thread."""
        answer: Answer = await self._execute(_run, self._conn, sql, parameters, has_many)  # type: ignore[no-untyped-call]
        return answer


def open_connection(url: str) -> Connection:
    """A connection to the file that the URL of an engine names; await it to open it."""
    path = make_url(url).database or ""
    connection = Connection(lambda: sqlite3.connect(path), FETCHED_AT_ONCE)
    # As SQLAlchemy does: a connection that nobody closed must not keep the process from ending.
    connection._thread.daemon = True
    return connection


def _run(connection: sqlite3.Connection, sql: str, parameters: Any, has_many: bool) -> Answer:
    cursor = connection.cursor()
    try:
        if has_many:
            cursor.executemany(sql, parameters)
        else:
            cursor.execute(sql, parameters)
        rows = cursor.fetchall() if cursor.description else []
        return Answer(rows, cursor.description, cursor.rowcount, cursor.lastrowid)
    finally:
        cursor.close()
