from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from rubato.cli import doctor
from rubato.cli.doctor import Level
from rubato.cli.keeper.process_table import identify, pid_namespace
from rubato.home import Home, RecordedProcess, RunRecord
from tests.unit.cli.fake_service import FakeService, Reply


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    found.create()
    return found


def look(findings: list[doctor.Health], what: str) -> doctor.Health:
    return next(found for found in findings if found.what == what)


def test_an_old_sqlite_is_told_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 40, 1))
    assert look(list(doctor.look_at_python()), "sqlite").level == Level.WARNING
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 52, 0))
    assert look(list(doctor.look_at_python()), "sqlite").level == Level.OK


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISTRIBUTIONS", {"cluster": ("no-such-distribution",)})
    (found,) = doctor.look_at_packages()
    assert found.level == Level.WARNING
    assert "rubato[cluster]" in found.detail


def test_a_secret_that_others_can_read_is_a_problem(home: Home) -> None:
    home.token_file.write_text("rbt_x")
    home.token_file.chmod(0o644)
    found = look(list(doctor.look_at_home(home)), "permissions of token")
    assert found.level == Level.PROBLEM
    assert f"chmod 600 {home.token_file}" in found.detail
    home.token_file.chmod(0o600)
    assert "permissions of token" not in [item.what for item in doctor.look_at_home(home)]


def test_what_runs_take_is_told(home: Home) -> None:
    assert "runs" not in [found.what for found in doctor.look_at_home(home)]
    for number in range(2):
        folder = home.path / "runs" / f"run_6a00000{number}0000aa"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        with (folder / "metrics.jsonl").open("wb") as file:
            file.truncate(700_000_000)  # with a hole: nothing is written
    found = look(list(doctor.look_at_home(home)), "runs")
    assert (found.level, "2 runs of `rubato run`, 1.4 GB" in found.detail) == (Level.OK, True)
    assert "rubato delete run_..." in found.detail


@pytest.mark.parametrize("below", [".", "not/there/yet"])
def test_a_storage_that_can_be_written(home: Home, tmp_path: Path, below: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.look_at_storage(home).detail.startswith(f"{home.path}/checkpoints, ")
    home.keep_storage((tmp_path / below).as_uri())
    found = doctor.look_at_storage(home)
    assert (found.level, found.what) == (Level.OK, "storage")
    assert found.detail.startswith(f"{tmp_path / below}, ")
    monkeypatch.setenv("RUBATO_STORAGE", "s3://bucket/rubato")
    assert doctor.look_at_storage(home) == doctor.Health(
        Level.OK, "storage", "s3://bucket/rubato, its package is installed; it was not asked"
    )


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ("file", "you cannot write to"),
        ("file/below", "you cannot write to"),
        ("s3://", "names no bucket"),
        ("nowhere://bucket", "install its fsspec package"),
    ],
)
def test_a_storage_that_cannot(home: Home, tmp_path: Path, storage: str, told: str) -> None:
    (tmp_path / "file").write_text("in the way")
    home.keep_storage(storage if "://" in storage else str(tmp_path / storage))
    found = look(list(doctor.look_at_home(home)), "storage")
    assert found.level == Level.PROBLEM
    assert told in found.detail


def test_a_storage_of_somebody_else(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    home.keep_storage(str(tmp_path / "theirs"))
    assert doctor.look_at_storage(home).level == Level.PROBLEM


def test_a_home_without_its_keeper_says_how_to_go_on(home: Home) -> None:
    own = identify(os.getpid())
    assert own is not None
    assert look(list(doctor.look_at_home(home)), "keeper").detail == "down"
    home.write_record(RunRecord("http://127.0.0.1:1", "", "", "", boot_id=pid_namespace(), processes={"ray": own}))
    found = look(list(doctor.look_at_home(home)), "keeper")
    assert found.level == Level.WARNING
    assert "rubato up" in found.detail


def test_a_role_that_does_not_live_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.cli.keeper.daemon.is_held", lambda _: True)
    record = RunRecord("u", "", "", "", boot_id=pid_namespace(), processes={"agent": RecordedProcess(2**22 + 1, 1)})
    home.write_record(record)
    found = look(list(doctor.look_at_home(home)), "keeper")
    assert found.level == Level.WARNING
    assert "agent" in found.detail


def test_an_offline_cluster_is_a_problem(home: Home, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUBATO_TOKEN", raising=False)
    service.on("GET", "/me", {"user": "admin", "role": "admin"})
    service.on("GET", "/cluster", {"clusters": [{"id": "default", "status": "offline", "last_seen": "t"}], "queue": []})
    service.on("GET", "/readyz", {"status": "ok", "checks": []})
    service.on("GET", "/version", {"version": version("rubato")})
    findings = list(doctor.look_at_service(home, service.url))
    assert [(found.level, found.what) for found in findings] == [
        (Level.WARNING, "token"),
        (Level.OK, "service"),
        (Level.PROBLEM, "cluster default"),
    ]


def test_a_service_that_refuses_or_is_not_there(home: Home, service: FakeService) -> None:
    service.on("GET", "/me", Reply({"detail": "No such token."}, 401))
    home.token_file.write_text("x")
    (refused,) = doctor.look_at_service(home, service.url)
    assert refused.level == Level.PROBLEM
    (absent,) = doctor.look_at_service(home, "http://127.0.0.1:1")
    assert absent.level == Level.WARNING
    assert "rubato up" in absent.detail


def test_a_service_whose_database_is_away_says_so_once(home: Home, service: FakeService) -> None:
    detail = "failed (OperationalError); the service's log says more"
    checks = [{"name": name, "ok": False, "required": True, "detail": detail} for name in ("database", "migrations")]
    service.on("GET", "/me", Reply({"detail": "The database does not answer; try again shortly."}, 503))
    service.on("GET", "/readyz", Reply({"status": "failing", "checks": checks}, 503))
    home.token_file.write_text("x")
    away_itself, checked = doctor.look_at_service(home, service.url)
    assert "The database does not answer" in away_itself.detail
    assert checked == doctor.Health(Level.PROBLEM, "service: database, migrations", detail)


def test_what_the_service_finds_wrong_is_shown(
    home: Home, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUBATO_TOKEN", "rbt_x")
    service.on("GET", "/me", {"user": "admin", "role": "admin"})
    service.on("GET", "/version", {"version": "0.0.9"})
    service.on("GET", "/cluster", {"clusters": [{"id": "default", "status": "online"}], "queue": []})
    disk = {"name": "disk", "ok": False, "required": True, "detail": "0.0 GB free"}
    agent = {"name": "agent", "ok": False, "required": False, "detail": "silent: default"}
    fine = {"name": "database", "ok": True, "required": True, "detail": "reachable"}
    service.on("GET", "/readyz", Reply({"status": "failing", "checks": [fine, disk, agent]}, status=503))
    findings = list(doctor.look_at_service(home, service.url))
    assert look(findings, "service: disk") == doctor.Health(Level.PROBLEM, "service: disk", "0.0 GB free")
    assert look(findings, "service: agent").level == Level.WARNING
    assert look(findings, "service: release").level == Level.WARNING
    assert f"it is release 0.0.9, this command is {version('rubato')}" in look(findings, "service: release").detail
    service.on("GET", "/readyz", {"status": "ok", "checks": [fine]})
    assert look(list(doctor.look_at_service(home, service.url)), "service: checks").detail == "database reachable"
