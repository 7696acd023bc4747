"""Brings a database up to the newest migration, under a lock."""

from __future__ import annotations

import functools
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from rubato.errors import UserError

ADVISORY_LOCK = 0x52_55_42_41_54_4F
"""Any constant that no other program on the same PostgreSQL database uses."""
TABLE_LOCK_MS = 5_000
"""How long a migration waits for a table: who comes after it waits behind it, the requests of other replicas too."""
LOCK_NOT_AVAILABLE = "55P03"


def alembic_config(connection: Connection | None = None) -> Config:
    """The configuration, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def upgrade_to_head(connection: Connection) -> None:
    """Apply what is missing, in the connection's transaction.

    Two replicas may start at once: on PostgreSQL the second waits for the first; on SQLite the file lock and BEGIN
    IMMEDIATE keep it out.

    Raises:
        UserError: somebody else holds a lock on a table; nothing is changed.
    """
    if connection.dialect.name == "postgresql":
        # A migration of large tables takes longer than any request may, and the other replica waits for all of it.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
        connection.execute(text(f"SET LOCAL lock_timeout = {TABLE_LOCK_MS}"))
    try:
        # At most starts there is nothing to do, which is sooner known so than by alembic's own way.
        if MigrationContext.configure(connection).get_current_revision() != head_revision():
            command.upgrade(alembic_config(connection), "head")
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            raise UserError(
                "the tables cannot be brought up to date: another session on this database holds a lock on one of "
                "them; end it, or stop the replicas that run, and start again"
            ) from error
        raise


@functools.cache
def head_revision() -> str:
    """The newest migration."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


def knows_revision(revision: str) -> bool:
    """Whether this release has a migration of that name; a newer release may have gone further."""
    return revision in {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
