from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rubato.cli.keeper import control
from rubato.cli.keeper.control import _save_jobs, bring_down, bring_up, check_same, find_missing, find_storage_before
from rubato.cli.keeper.daemon import Keeper
from rubato.cli.keeper.process_table import identify, pid_namespace
from rubato.cli.service_commands import make_login_link, tell_of_move
from rubato.errors import KeeperError, UserError
from rubato.home import Home, RecordedProcess, RunRecord
from tests.unit.cli.fake_service import FakeService


def test_a_home_is_asked_with_its_own_token_whatever_the_shell_holds(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_of_another_service")
    home = Home(tmp_path)
    home.token_file.write_text("rbt_own\n")
    process = RecordedProcess(1, 1)
    roles = dict.fromkeys(("service", "ray", "agent"), process)
    record = RunRecord(service.url, "127.0.0.1:1", str(tmp_path), "2026-01-31T12:00:00+00:00", processes=roles)
    service.on("GET", "/readyz", {"status": "ok"})
    service.on("GET", "/cluster", {"clusters": [{"name": "default", "status": "online"}]})
    service.on("GET", "/jobs", {"items": [], "next_cursor": None})
    service.on("POST", "/login-links", {"url": "http://127.0.0.1/once"})
    told: list[str] = []

    find_missing(home, record)
    _save_jobs(home, record, told.append)
    assert make_login_link(service.url, home) == "http://127.0.0.1/once"
    assert told == []
    asked = {request.path: request.headers.get("Authorization") for request in service.requests}
    paths = ("/readyz", "/api/v1/cluster", "/api/v1/jobs", "/api/v1/login-links")
    assert asked == dict.fromkeys(paths, "Bearer rbt_own")


def used_home(path: Path) -> Home:
    home = Home(path / "home")
    home.create()
    home.token_file.write_text("rbt_own\n")
    return home


def test_another_storage_than_before_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = used_home(tmp_path)
    default = str(home.path / "checkpoints")
    assert find_storage_before(home, {}) is None
    assert find_storage_before(home, {"RUBATO_STORAGE": f"file://{default}/"}) is None
    assert find_storage_before(home, {"RUBATO_STORAGE": "s3://bucket/a"}) is None, "nothing is left behind there"
    (home.path / "checkpoints" / "job-1").mkdir(parents=True)
    assert find_storage_before(home, {"RUBATO_STORAGE": "s3://bucket/a"}) == default
    home.keep_storage("s3://bucket/a")
    assert find_storage_before(home, {"RUBATO_STORAGE": "s3://bucket/a"}) is None
    before = find_storage_before(home, {"RUBATO_STORAGE": "s3://bucket/b"})
    assert before == "s3://bucket/a"

    monkeypatch.setenv("RUBATO_STORAGE", "s3://bucket/b")
    tell_of_move(before)
    told = " ".join(capsys.readouterr().err.split())
    assert "looked for in s3://bucket/b from now on" in told
    assert "stay in s3://bucket/a" in told


def test_a_new_home_has_no_checkpoints_to_leave_behind(tmp_path: Path) -> None:
    assert find_storage_before(Home(tmp_path / "none"), {"RUBATO_STORAGE": "s3://bucket/a"}) is None


@pytest.mark.parametrize(("named", "error"), [("checkpoints", KeeperError), ("s3://", UserError)])
def test_a_wrong_storage_is_refused_before_it_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, error: type[Exception]
) -> None:
    monkeypatch.setenv("RUBATO_STORAGE", named)
    home = used_home(tmp_path)
    with pytest.raises(error):
        bring_up(home, port=None, slots=1, tell=lambda _: None)
    assert home.keep_storage(None) is None


def test_the_storage_of_a_home_that_is_up_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = used_home(tmp_path)
    monkeypatch.setattr("rubato.cli.keeper.control.is_held", lambda _: True)
    monkeypatch.setenv("RUBATO_STORAGE", "s3://bucket/a")
    with pytest.raises(KeeperError, match=r"its checkpoints in .*/checkpoints; `rubato down` first"):
        bring_up(home, port=None, slots=1, tell=lambda _: None)


@pytest.fixture
def home_that_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """With a keeper, Ray and service, on three slots."""
    home = used_home(tmp_path)
    own = identify(os.getpid())
    assert own is not None
    roles = dict.fromkeys(("keeper", "ray", "service", "agent"), own)
    home.write_record(RunRecord("http://127.0.0.1:1", "", "", "2026-01-31T12:00:00+00:00", slots=3, processes=roles))
    monkeypatch.delenv("RUBATO_STORAGE", raising=False)
    monkeypatch.delenv("RUBATO_DATABASE_URL", raising=False)
    monkeypatch.setattr("rubato.cli.keeper.control.is_held", lambda _: True)
    monkeypatch.setattr("rubato.cli.keeper.control.find_missing", lambda *_: None)
    return home


def test_the_slots_of_a_home_that_is_up_are_not_changed(home_that_is_up: Home) -> None:
    with pytest.raises(KeeperError, match="up already, with 3 slots; `rubato down` first to have 4"):
        bring_up(home_that_is_up, port=None, slots=4, tell=lambda _: None)
    for same in (3, None):
        assert bring_up(home_that_is_up, port=None, slots=same, tell=lambda _: None).slots == 3


def test_the_database_of_a_home_that_is_up_is_not_changed(
    home_that_is_up: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBATO_DATABASE_URL", "postgresql+asyncpg://ada:secret@db/rubato")
    with pytest.raises(KeeperError, match="another database than RUBATO_DATABASE_URL names; `rubato down`") as refused:
        bring_up(home_that_is_up, port=None, slots=None, tell=lambda _: None)
    assert "secret" not in str(refused.value)
    home_that_is_up.keep_database_url("postgresql+asyncpg://ada:secret@db/rubato")
    assert bring_up(home_that_is_up, port=None, slots=None, tell=lambda _: None).was_up


def test_a_home_whose_processes_are_gone_takes_other_slots(home_that_is_up: Home) -> None:
    record = home_that_is_up.read_record()
    assert record is not None
    home_that_is_up.write_record(replace(record, processes={"ray": RecordedProcess(1, 1)}))
    check_same(home_that_is_up, 4, {"RUBATO_DATABASE_URL": "postgresql+asyncpg://db/rubato"})


def test_a_keeper_that_takes_over_has_the_slots_of_what_runs(
    home_that_is_up: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keeper, "_adoptable", lambda _: home_that_is_up.read_record())
    monkeypatch.setattr(Keeper, "_adopt", lambda *_: None)
    assert Keeper(home_that_is_up, port=8700, slots=8).layout.slots == 3


def test_a_home_that_another_container_holds_is_not_brought_down_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = used_home(tmp_path)
    elsewhere = f"{pid_namespace().partition('/')[0]}/1"
    home.write_record(RunRecord("http://127.0.0.1:1", "", "", "", boot_id=elsewhere))
    monkeypatch.setattr(control, "is_held", lambda _: True)
    with pytest.raises(KeeperError, match="another container"):
        bring_down(home, tell=lambda _: None)
    assert home.read_record() is not None, "it counts there"
