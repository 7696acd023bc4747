"""The first connection to PostgreSQL: waited for while the server only starts, explained where there is none."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from typing import Any

import psycopg
import structlog
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, PGconn, Ping

from rubato.errors import UserError

STARTING_S = 15.0
"""A PostgreSQL that was started together with the service takes connections by then."""
LOOK_AGAIN_S = 0.5
CONNECT_TIMEOUT_S = 5
"""Of one try: a host that is not there may leave it without an answer."""

log = structlog.get_logger(__name__)


async def wait_for_postgres(arguments: Mapping[str, Any]) -> None:
    """Wait until the server takes a connection; `arguments` as psycopg's connect takes them.

    Raises:
        UserError: it refused one, or did not answer in time; with what to check, and never with the password.
    """
    # Without what is psycopg's alone, such as its adapters.
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    said = {"connect_timeout": CONNECT_TIMEOUT_S, **arguments}
    conninfo = make_conninfo(**{name: value for name, value in said.items() if name in known})
    deadline = time.monotonic() + STARTING_S
    is_told = False
    while True:
        # Asked before the try: one that was ready, and then refuses, does so for a reason that does not pass.
        is_ready = await asyncio.to_thread(PGconn.ping, conninfo.encode()) == Ping.OK
        try:
            connection = await psycopg.AsyncConnection.connect(conninfo)
        except psycopg.OperationalError as error:
            if is_ready or time.monotonic() >= deadline:
                raise UserError(_explain(arguments, error, is_ready=is_ready)) from error
        else:
            await connection.close()
            return
        if not is_told:
            log.warning("database_not_there_yet", at=_place(arguments), waiting_s=STARTING_S)
            is_told = True
        await asyncio.sleep(LOOK_AGAIN_S)


def _explain(arguments: Mapping[str, Any], error: Exception, *, is_ready: bool) -> str:
    what = f"database {arguments.get('dbname', '')!r}, user {arguments.get('user', '')!r}"
    why = " ".join(str(error).split())[:500]
    if is_ready:
        return (
            f"PostgreSQL at {_place(arguments)} refused the service ({what}): {why}. Check user, password and database "
            "in RUBATO_DATABASE_URL; the password may come from PGPASSWORD instead, and the database must exist."
        )
    return (
        f"PostgreSQL at {_place(arguments)} took no connection for {STARTING_S:g} s ({what}): {why}. Check that it "
        "runs and can be reached from here, and host and port in RUBATO_DATABASE_URL."
    )


def _place(arguments: Mapping[str, Any]) -> str:
    host = arguments.get("host") or os.environ.get("PGHOST") or "the local socket"
    return f"{host}:{arguments.get('port') or os.environ.get('PGPORT') or 5432}"
