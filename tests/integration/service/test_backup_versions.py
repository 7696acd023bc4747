"""A PostgreSQL that is older than the tools that dump and restore it, as distributions and images have them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psycopg
import pytest

from service.backup import postgres
from service.backup.archive import BackupError
from service.backup.postgres import KNOWS_TRANSACTION_TIMEOUT, copy_database, fit_script, restore_database
from tests.postgres import migrated_database, postgres_server, tools_of


def quiet(*_: object) -> None:
    """Nobody looks at the progress."""


def test_newer_tools_dump_an_older_server_and_restore_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres_server(16) as server:
        monkeypatch.setenv("RUBATO_PG_BIN", tools_of(18))
        url = server.url.replace("/postgres?", f"/{migrated_database(server.url)}?")
        with psycopg.connect(url, autocommit=True) as connection:
            assert connection.info.server_version < KNOWS_TRANSACTION_TIMEOUT
            insert = "INSERT INTO projects (name, description, created_at) VALUES (%s, '', now())"
            connection.execute(insert, ("before",))
            copy_database(url, tmp_path / "dump", quiet)
            connection.execute(insert, ("after",))
        restore = partial(restore_database, url, tmp_path / "dump", raise_attempts_by=1000, folder=tmp_path, tell=quiet)
        with monkeypatch.context() as patched:
            patched.setattr(postgres, "fit_script", lambda *_: None)
            with pytest.raises(BackupError, match="transaction_timeout"):
                restore()
        restore()
        with psycopg.connect(url) as connection:
            names = {name for (name,) in connection.execute("SELECT name FROM projects").fetchall()}
            restored = connection.execute("SELECT count(*) FROM audit WHERE action = 'service.restored'").fetchone()
        assert ("before" in names, "after" in names, restored) == (True, False, (1,))


SCRIPT = b"--\n-- dump\n--\n\nSET statement_timeout = 0;\nSET transaction_timeout = 0;\nSELECT 1;\n"


@pytest.mark.parametrize("version", [130_000, 160_014, 169_999])
def test_a_server_that_does_not_know_the_setting_is_not_told(tmp_path: Path, version: int) -> None:
    script = tmp_path / "dump.sql"
    script.write_bytes(SCRIPT)
    fit_script(script, version)
    assert script.read_bytes() == SCRIPT.replace(b"SET transaction", b"--  transaction")


def test_scripts_stay_as_they_are_where_nothing_is_to_be_done(tmp_path: Path) -> None:
    script = tmp_path / "dump.sql"
    for version, text in ((170_000, SCRIPT), (180_004, SCRIPT), (160_014, SCRIPT.replace(b"transaction_", b"lock_"))):
        script.write_bytes(text)
        fit_script(script, version)
        assert script.read_bytes() == text
