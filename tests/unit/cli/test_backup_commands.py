"""`rubato backup` and `rubato restore` on a home without a service; the service's own tests try the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from rubato.cli.backup_commands import describe_missing
from service.migrations.upgrade import upgrade_to_head
from tests.unit.cli.fake_service import Rubato


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    engine = create_engine(f"sqlite:///{folder / 'rubato.db'}")
    with engine.begin() as connection:
        upgrade_to_head(connection)
    engine.dispose()
    (folder / "hmac-key").write_text("aa")
    (folder / "storage").write_text("s3://bucket/rubato")
    return folder


def test_a_home_is_saved_and_put_back(
    rubato: Rubato, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rubato.backup"
    done = rubato("backup", str(file))
    assert (done.code, done.out) == (0, f"{file}\n")
    assert "0 jobs" in done.err
    assert file.stat().st_mode & 0o077 == 0

    assert rubato("restore", str(file)).code == 1, "something is there already"
    (home / "hmac-key").write_text("bb")
    done = rubato("restore", "--replace", str(file))
    assert done.code == 0
    assert (home / "hmac-key").read_text() == "aa"
    assert (Path(done.out.strip()) / "hmac-key").read_text() == "bb"

    monkeypatch.setenv("RUBATO_HOME", str(tmp_path / "other"))
    result = json.loads(rubato("restore", "--json", str(file)).out)
    assert (result["jobs"], result["put_aside"], result["missing_checkpoints"]) == (0, [], [])
    assert (tmp_path / "other" / "hmac-key").read_text() == "aa"
    assert not (tmp_path / "other" / "storage").exists(), "an address of the old home, as its database is"


def test_a_backup_never_replaces_a_file(rubato: Rubato, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "taken"
    file.write_text("mine")
    assert rubato("backup", str(file)).code == 1
    assert file.read_text() == "mine"


def test_checkpoints_that_retention_dropped_do_not_look_like_a_loss() -> None:
    assert describe_missing(["job_1/1-10", "job_1/1-20", "job_2/1-5"], ["job_1/1-30", "job_1/2-40"]) == [
        "job_1: 2 checkpoints of the backup not on the storage any more (1-10, 1-20); "
        "newer ones are there, up to 2-40, from which it goes on",
        "job_2: 1 checkpoint of the backup not on the storage any more (1-5), and there is no newer one",
    ]
