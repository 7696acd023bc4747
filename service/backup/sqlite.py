"""SQLite: a consistent copy while the service writes, and the same copy made ready for a home."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import create_engine

from service.backup.archive import BackupError, Progress
from service.backup.attempts import statements_after_restore
from service.backup.contents import Contents, read_contents
from service.migrations.upgrade import upgrade_to_head

PAGES_AT_ONCE = 2048


def copy_database(source: Path, target: Path, tell: Progress) -> Contents:
    """Copy a database that may be in use, as it is at one moment; gives what it says of the files beside it.

    Raises:
        BackupError: it cannot be read, or is damaged.
    """
    try:
        with closing(_open(source)) as live, closing(sqlite3.connect(target)) as copy:
            # A read transaction holds the moment: without it the copy would begin anew with every write of the service.
            live.execute("BEGIN")
            live.execute("SELECT count(*) FROM sqlite_master").fetchone()
            page_bytes = live.execute("PRAGMA page_size").fetchone()[0]

            def progress(_status: int, left: int, total: int) -> None:
                tell("copying the database", (total - left) * page_bytes, total * page_bytes)

            live.backup(copy, pages=PAGES_AT_ONCE, progress=progress, sleep=0)
            # One file, without a journal beside it; the service turns its own mode on again.
            copy.execute("PRAGMA journal_mode=DELETE")
            _check(copy, source)
            return read_contents(lambda query: copy.execute(query).fetchall())
    except sqlite3.Error as error:
        raise BackupError(f"the database {source} cannot be copied: {error}.") from error


def make_ready(path: Path, *, raise_attempts_by: int, tell: Progress) -> None:
    """Check an unpacked copy, raise its attempts, and bring it to this release's migrations.

    Raises:
        BackupError: it is damaged.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            _check(database, path)
            database.execute("BEGIN IMMEDIATE")
            for statement in statements_after_restore("sqlite", raise_attempts_by):
                database.execute(statement)
            database.execute("COMMIT")
    except sqlite3.Error as error:
        raise BackupError(f"the database in the backup cannot be used: {error}.") from error
    tell("migrating", 0, 1)
    engine = create_engine(f"sqlite:///{path}")
    try:
        with engine.begin() as connection:
            upgrade_to_head(connection)
    finally:
        engine.dispose()
    tell("migrating", 1, 1)


def _open(path: Path) -> sqlite3.Connection:
    # `rw`: never makes an empty database of a wrong name.
    return sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=30)


def _check(database: sqlite3.Connection, path: Path) -> None:
    found: Sequence[Any] = database.execute("PRAGMA quick_check(1)").fetchone()
    if found[0] != "ok":
        raise BackupError(f"the database {path} is damaged: {found[0]}.")
