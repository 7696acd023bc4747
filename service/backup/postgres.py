"""PostgreSQL: dumped and restored by its own tools, in one snapshot and in one transaction."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
from sqlalchemy.engine import URL, make_url

from service.backup.archive import BackupError, Progress
from service.backup.attempts import statements_after_restore
from service.backup.contents import Contents, read_contents
from service.database import APPLICATION_NAME
from service.listen import LISTENER_NAME
from service.migrations.upgrade import ADVISORY_LOCK
from service.models import Base

TOOLS = "RUBATO_PG_BIN"
"""Environment variable: the folder of pg_dump, pg_restore and psql, where they are not on the PATH."""
NAMES = (APPLICATION_NAME, LISTENER_NAME)
"""How connections of services call themselves."""
CONNECT_S = 10
TRANSACTION_TIMEOUT = b"\nSET transaction_timeout = 0;\n"
"""What pg_restore of 17 and later writes for every server; one before it stops the script there."""
KNOWS_TRANSACTION_TIMEOUT = 170_000
HEAD_BYTES = 4096
"""Of a script: its settings stand at the very beginning."""
TELL_EVERY_S = 1.0


class PostgresTools:
    """The client tools, told how to reach one database; the password travels in the environment, never in a command."""

    def __init__(self, url: str) -> None:
        parts = make_url(url)
        self._environment = {**os.environ, **({"PGPASSWORD": str(parts.password)} if parts.password else {})}
        self.uri = URL.create(
            "postgresql", parts.username, None, parts.host, parts.port, parts.database, parts.query
        ).render_as_string()
        self._full_uri = parts.set(drivername="postgresql").render_as_string(hide_password=False)

    @contextmanager
    def connect(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection of our own.

        Raises:
            BackupError: the database does not answer.
        """
        try:
            connection = psycopg.connect(self._full_uri, connect_timeout=CONNECT_S, autocommit=True)
        except psycopg.Error as error:
            raise BackupError(f"PostgreSQL cannot be reached: {_first_line(str(error))}.") from error
        with connection:
            yield connection

    def start(self, tool: str, *arguments: str, errors: IO[str]) -> subprocess.Popen[bytes]:
        """Start a tool; what it has to say goes to a file."""
        return subprocess.Popen(
            [find_tool(tool), *arguments], env=self._environment, stdin=subprocess.DEVNULL, stderr=errors
        )


def find_tool(name: str) -> str:
    """Where a client tool of PostgreSQL is.

    Raises:
        BackupError: it is not here; the message says what else can be done.
    """
    folder = os.environ.get(TOOLS)
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    if found is None:
        where = f"in {folder} ({TOOLS})" if folder else "on the PATH"
        raise BackupError(
            f"{name} is not {where}. Install PostgreSQL's client tools, of the server's major version or newer "
            f"(Debian: postgresql-client), or name their folder in {TOOLS}. Without them, back up the database by the "
            "means of whoever runs it, and the home's keys, logs and packages as files: see docs/how-to/backup.md."
        )
    return found


def copy_database(url: str, target: Path, tell: Progress) -> Contents:
    """Dump a database that may be in use, as it is at one moment; gives what it says of the files beside it.

    Raises:
        BackupError: no tools, no database, or the dump failed.
    """
    tools = PostgresTools(url)
    find_tool("pg_dump")
    with tools.connect() as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        snapshot = str(_only(connection.execute("SELECT pg_export_snapshot()").fetchall()))
        total = int(_only(connection.execute("SELECT pg_database_size(current_database())").fetchall()))
        arguments = (
            *("--format=custom", "--no-owner", "--no-privileges", f"--snapshot={snapshot}", f"--file={target}"),
            *(f"--table={table}" for table in _tables()),
            f"--dbname={tools.uri}",
        )
        _run(tools, "pg_dump", arguments, lambda: tell("dumping the database", _size(target), total))
        tell("dumping the database", total, total)  # a dump is packed, and smaller than what it is of
        return read_contents(lambda query: connection.execute(query.encode()).fetchall())


def check_empty(url: str) -> bool:
    """Whether a database holds nothing of ours yet."""
    with PostgresTools(url).connect() as connection:
        return not connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchall()[0][0]


def refuse_living(url: str) -> None:
    """Refuse where services work on the database.

    Raises:
        BackupError: they do; says how many connections.
    """
    with PostgresTools(url).connect() as connection:
        query = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY(%s)"
        )
        count = int(_only(connection.execute(query, (list(NAMES),)).fetchall()))
    if count:
        raise BackupError(f"services work on this database ({count} connections); stop every replica first.")


def restore_database(url: str, dump: Path, *, raise_attempts_by: int, folder: Path, tell: Progress) -> None:
    """Put a dump in the place of what the database holds, in one transaction: a kill leaves what was there.

    Raises:
        BackupError: it failed; nothing has changed.
    """
    tools = PostgresTools(url)
    script, before, after = folder / "dump.sql", folder / "before.sql", folder / "after.sql"
    arguments = ("--no-owner", "--no-privileges", f"--file={script}", str(dump))
    _run(tools, "pg_restore", arguments, lambda: tell("reading the dump", _size(script), _size(dump)))
    tell("reading the dump", _size(dump), _size(dump))
    with tools.connect() as connection:
        fit_script(script, connection.info.server_version)
    living = f"SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name IN {NAMES}"
    before.write_text(
        "SET client_min_messages = warning;\n"  # else the first of what psql says is that tables were dropped
        # A service that starts now waits here, before it migrates; one that came meanwhile is found.
        f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK});\n"
        f"DO $$ BEGIN IF EXISTS ({living} AND wait_event_type IS DISTINCT FROM 'Lock') THEN\n"
        "RAISE 'a service works on this database; stop every replica first'; END IF; END $$;\n"
        + "".join(f"DROP TABLE IF EXISTS {table} CASCADE;\n" for table in _tables())
    )
    statements = statements_after_restore("postgresql", raise_attempts_by)
    after.write_text("RESET search_path;\n" + "".join(f"{statement};\n" for statement in statements))
    files = [argument for path in (before, script, after) for argument in ("--file", str(path))]
    quiet = ("--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", f"--output={os.devnull}")
    _run(tools, "psql", (*quiet, *files, f"--dbname={tools.uri}"), lambda: tell("writing the database", 0, 1))
    tell("writing the database", 1, 1)


def fit_script(script: Path, server_version: int) -> None:
    """Take out of a script of pg_restore, in its place, what a server of this version does not know (160014: 16.14)."""
    if server_version >= KNOWS_TRANSACTION_TIMEOUT:
        return
    with script.open("r+b") as stream:
        head = stream.read(HEAD_BYTES)
        at = head.find(TRANSACTION_TIMEOUT)
        if at >= 0:
            stream.seek(at + 1)
            stream.write(b"-- ")  # over "SET", and not a byte longer: what follows may be gigabytes


def _tables() -> list[str]:
    return [*(table.name for table in Base.metadata.sorted_tables), "alembic_version"]


def _run(tools: PostgresTools, tool: str, arguments: Sequence[str], tell: Any) -> None:
    with tempfile.TemporaryFile("w+") as errors:
        process = tools.start(tool, *arguments, errors=errors)
        try:
            while True:
                try:
                    code = process.wait(TELL_EVERY_S)
                    break
                except subprocess.TimeoutExpired:
                    tell()
        except BaseException:
            process.kill()
            process.wait()
            raise
        if code != 0:
            errors.seek(0)
            said = errors.read()
            advice = ""
            if re.search(r"server version|unsupported version", said):
                advice = f" The tool must be of the server's major version or newer: name its folder in {TOOLS}."
            raise BackupError(f"{tool} failed: {_first_line(said) or f'exit code {code}'}.{advice}")


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[0] if lines else "")[:300].rstrip(".")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _only(rows: Sequence[Sequence[Any]]) -> Any:
    return rows[0][0]
