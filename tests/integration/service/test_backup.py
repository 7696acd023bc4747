"""Backups of a service that runs, restored elsewhere: complete, checked, and no controller is confused by the past."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from rubato.wire.cluster import ProcessIdentity
from service.backup.archive import ArchiveReader, BackupError
from service.backup.postgres import PostgresTools
from service.backup.restore import Restored, restore_backup
from service.backup.swap import settle_restore
from service.backup.take import sqlite_path, summary, take_backup
from service.migrations.upgrade import head_revision, upgrade_to_head
from service.settings import Settings
from tests.integration.service.processes import ServiceProcess, all_jobs, controller_of, submit
from tests.postgres import client_tools
from tests.simulated_controller import SimulatedController, log_line, metric

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.anyio


def quiet(*_: object) -> None:
    """Nobody looks at the progress."""


@dataclass
class Place:
    """A home and a database, and the command on both."""

    home: Path
    environment: dict[str, str]
    services: list[ServiceProcess] = field(default_factory=list)

    def service(self) -> ServiceProcess:
        """Started; ended with the test."""
        self.home.parent.mkdir(exist_ok=True)
        process = ServiceProcess(self.home, **self.environment)
        self.services.append(process)
        process.start()
        return process

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`python -m service.backup`."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RUBATO_")}
        return subprocess.run(
            [sys.executable, "-m", "service.backup", *arguments],
            env={
                **inherited,
                "RUBATO_HOME": str(self.home),
                "PYTHONPATH": str(ROOT),
                **self.environment,
                **environment,
            },
            cwd=ROOT,
            capture_output=True,
            text=True,
        )

    def save_by_command(self, file: Path) -> dict[str, Any]:
        """A backup, expected to succeed."""
        return self._result("save", str(file))

    def restore_by_command(self, file: Path) -> dict[str, Any]:
        """A restore, expected to succeed."""
        return self._result("restore", str(file))

    def _result(self, *arguments: str) -> dict[str, Any]:
        done = self.call(*arguments)
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def save(self, file: Path) -> None:
        """In this process, which takes no start."""
        take_backup(self.settings(), file, quiet)

    def restore(self, file: Path, *, replace: bool = False) -> Restored:
        """In this process, which takes no start."""
        return restore_backup(self.settings(), file, replace=replace, tell=quiet)

    def settings(self) -> Settings:
        """For what is called in this process."""
        return Settings(home=self.home, database_url=self.environment.get("RUBATO_DATABASE_URL", ""))


@pytest.fixture(params=["sqlite", "postgres"])
def make_place(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[str], Place]]:
    """Makes places with empty databases, all on one kind."""
    made: list[Place] = []
    if request.param == "postgres":
        monkeypatch.setenv("RUBATO_PG_BIN", client_tools(request.getfixturevalue("postgres_url")))

    def make(name: str) -> Place:
        environment = {"RUBATO_WEBHOOKS": "true"}
        if request.param == "postgres":
            environment["RUBATO_PG_BIN"] = os.environ["RUBATO_PG_BIN"]
            environment["RUBATO_DATABASE_URL"] = request.getfixturevalue("new_postgres")()
        made.append(Place(tmp_path / name / "home", environment))
        return made[-1]

    yield make
    for place in made:
        for service in place.services:
            service.end()


def packed(text: str) -> tuple[str, bytes]:
    """A package and its address."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("train.py", f"def train(run): ...  # {text}\n")
    data = buffer.getvalue()
    return hashlib.sha256(data).hexdigest(), data


async def report_steps(controller: SimulatedController, until_set: asyncio.Event, begun: asyncio.Event) -> int:
    """Event, row and line of a step always in one batch; gives the last step that was acknowledged."""
    step = 0
    while not until_set.is_set():
        step += 1
        await controller.report(
            step=step,
            metrics=(metric(step),),
            events=(controller.event("worker.ready", f"step {step}"),),
            logs=(log_line(f"line {step} " + "x" * 500),),
        )
        if step == 5:
            begun.set()
    return step


async def test_a_backup_of_a_service_that_is_written_to_holds_one_moment_of_everything(
    make_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place, other = make_place("one"), make_place("two")
    service = place.service()
    sha256, data = packed("print('hello')")
    stop, begun = asyncio.Event(), asyncio.Event()
    async with service.client() as client:
        assert (await client.put(f"/api/v1/packages/{sha256}", content=data)).status_code == 201
        webhook = {"name": "chat", "url": "https://hooks.example.com/rubato", "events": ["status"]}
        assert (await client.post("/api/v1/projects/default/webhooks", json=webhook)).status_code == 201
        queued = await submit(client, "queued", workers={"initial": 4, "min": 4, "max": 4})
        job_id = await submit(client, "running")
        controller = await controller_of(client, service.agent(client), job_id)
        async with asyncio.TaskGroup() as group:
            reporting = group.create_task(report_steps(controller, stop, begun))
            await begun.wait()
            result = await asyncio.to_thread(place.save_by_command, tmp_path / "backup")
            stop.set()
        told_later = await submit(client, "after-the-backup")
        token = (place.home / "token").read_text()
    assert service.stop() == 0
    assert (result["jobs"], result["missing"]) == (2, [])
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0

    restored = other.restore_by_command(tmp_path / "backup")
    assert (restored["jobs"], restored["put_aside"]) == (2, [])
    assert (other.home / "token").read_text() == token
    second = other.service()
    async with second.client() as client:
        assert {job["id"] for job in await all_jobs(client)} == {queued, job_id} != {told_later}
        assert (await client.head(f"/api/v1/packages/{sha256}")).status_code == 200
        assert (await client.get("/api/v1/projects/default/webhooks")).json()["items"][0]["name"] == "chat"
        query = {"limit": "10000"}
        rows = (await client.get(f"/api/v1/jobs/{job_id}/metrics", params=query)).json()["items"]
        events = (await client.get(f"/api/v1/jobs/{job_id}/events", params=query)).json()["items"]
        page = (await client.get(f"/api/v1/jobs/{job_id}/logs", params={**query, "after": "0:0"})).json()
    assert 5 <= len(rows) <= reporting.result()
    steps = [item["message"] for item in events if item["kind"] == "worker.ready"]
    assert steps == [f"step {row['step']}" for row in rows]
    assert [item["line"].split(" x")[0] for item in page["items"]] == [f"line {row['step']}" for row in rows]
    assert [item["position"] for item in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "service.restored"


async def test_attempts_after_a_restore_are_larger_than_any_before_and_old_controllers_are_fenced(
    make_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place = make_place("one")
    service = place.service()

    def other_process(number: int) -> ProcessIdentity:
        return ProcessIdentity(node_id="node-1", boot_id="boot-1", pid=number, start_time=1)

    async def successor(of: SimulatedController, number: int) -> SimulatedController:
        gone = of.acquired.attempt if of.acquired else 0
        new = SimulatedController(of.client, of.job_id, of.ticket, process=other_process(number))
        await new.acquire(gone=gone)
        return new

    def attempt_of(controller: SimulatedController) -> int:
        assert controller.acquired is not None
        return controller.acquired.attempt

    async with service.client() as client:
        known = await controller_of(client, service.agent(client), await submit(client, "digits"))
        await known.report()
        place.save(tmp_path / "backup")
        unknown = await successor(await successor(known, 2), 3)
        await unknown.report()
        lost = await controller_of(client, service.agent(client), await submit(client, "later"))
    assert service.stop() == 0
    granted = [attempt_of(known), attempt_of(unknown)]

    for number in (4, 5):
        # The same backup again: what was granted after the first restore is not in it either.
        restored = place.restore(tmp_path / "backup", replace=True)
        assert set(restored.put_aside) <= set(map(str, place.home.glob("replaced-*")))
        assert len(restored.put_aside) == 1
        service = place.service()
        async with service.client() as client:
            for old in (known, unknown, lost):
                old.client = client
                report = await old.send(old.next_report(step=1))
                poll = await old.try_desired()
                assert [(r.status_code, r.json()["code"]) for r in (report, poll)] == [(409, "fenced")] * 2
            fresh = SimulatedController(client, known.job_id, known.ticket, process=other_process(number))
            await fresh.acquire()
            await fresh.report(step=1)
            assert attempt_of(fresh) > max(granted)
            granted.append(attempt_of(fresh))
            for _ in range(3):
                fresh = await successor(fresh, attempt_of(fresh))
                granted.append(attempt_of(fresh))
            assert (await client.get("/api/v1/jobs/digits")).json()["status"] == "running"
            attempts = (await client.get("/api/v1/jobs/digits/attempts")).json()["items"]
            assert [item["outcome"] for item in attempts] == ["superseded"] * 4 + [None]
            unknown = fresh
        assert service.stop() == 0


async def test_a_restore_refuses_what_lives_what_is_filled_and_what_is_damaged(
    make_place: Callable[[str], Place], tmp_path: Path
) -> None:
    place, other = make_place("one"), make_place("two")
    service = place.service()
    async with service.client() as client:
        await submit(client, "digits")
    file = tmp_path / "backup"
    place.save(file)

    refused = place.call("save", str(file))
    assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
    assert "Traceback" not in refused.stderr
    assert "exists" in refused.stderr.splitlines()[-1]
    with pytest.raises(BackupError, match="work"):
        place.restore(file, replace=True)
    assert service.stop() == 0
    with pytest.raises(BackupError, match="something already"):
        place.restore(file)

    data = bytearray(file.read_bytes())
    bad = tmp_path / "bad"
    middle = len(data) // 2
    for harmed in (data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :], data[: len(data) * 2 // 3]):
        bad.write_bytes(harmed)
        with pytest.raises(BackupError):
            place.restore(bad, replace=True)
        assert not list(place.home.glob("replaced-*"))
    service = place.service()
    async with service.client() as client:
        assert [job["name"] for job in await all_jobs(client)] == ["digits"]
    assert service.stop() == 0

    wrong = "postgresql+psycopg://nobody@127.0.0.1:1/none" if other.settings().is_sqlite else ""
    with pytest.raises(BackupError, match="the same kind of database"):
        restore_backup(Settings(home=other.home, database_url=wrong), file, replace=False, tell=quiet)


def make_home(home: Path, mark: str, database: Path | None = None) -> Settings:
    """A home without a service: database, key and log say the same word."""
    database = database or home / "rubato.db"
    settings = Settings(home=home, database_url=f"sqlite+aiosqlite:///{database}")
    (home / "logs" / "job_1").mkdir(parents=True)
    database.parent.mkdir(exist_ok=True)
    engine = create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        upgrade_to_head(connection)
        connection.exec_driver_sql(
            "INSERT INTO projects (name, description, created_at) VALUES (?, '', '2026-01-31 12:00:00')", (mark,)
        )
    engine.dispose()
    (home / "hmac-key").write_text(mark)
    (home / "logs" / "job_1" / "mark").write_text(mark)
    return settings


def mark_of(settings: Settings) -> set[str]:
    home = settings.home
    with closing(sqlite3.connect(sqlite_path(settings))) as database:
        names = {name for (name,) in database.execute("SELECT name FROM projects") if name != "default"}
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    key, log = home / "hmac-key", home / "logs" / "job_1" / "mark"
    # Lines that no job counts are not in a backup: the new home has none.
    return names | {key.read_text()} | ({log.read_text()} if log.exists() else {"new"})


STROKES = frozenset({"os.rename", "os.mkdir", "os.remove", "shutil.rmtree", "sqlite3.connect"})


@pytest.fixture(params=["beside the rest", pytest.param("on another file system", marks=pytest.mark.long)])
def make_old_home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Settings]]:
    """Makes homes whose databases lie in them, or elsewhere."""
    if request.param == "beside the rest":
        yield lambda name: make_home(tmp_path / name, "old")
        return
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no file system of its own here: moves from one to another are NOT tested")
    with tempfile.TemporaryDirectory(dir=memory) as elsewhere:
        yield lambda name: make_home(tmp_path / name, "old", Path(elsewhere) / name / "rubato.db")


def test_killed_at_any_stroke_a_restore_leaves_the_old_or_the_new_and_never_both(
    make_old_home: Callable[[str], Settings], tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    take_backup(make_home(tmp_path / "new", "new"), backup, quiet)
    seen: list[set[str]] = []
    for k in range(1, 200):
        settings = make_old_home(f"home-{k}")
        child = os.fork()
        if child == 0:
            _die_at_stroke(k)
            restore_backup(settings, backup, replace=True, tell=quiet)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            assert mark_of(settings) == {"new"}
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        # What a starting service does first.
        settle_restore(settings.home)
        assert not (settings.home / ".restore").exists()
        seen.append(mark_of(settings))
        restored = restore_backup(settings, backup, replace=True, tell=quiet)
        assert mark_of(settings) == {"new"}
        aside = {path.name for folder in restored.put_aside for path in Path(folder).iterdir()}
        assert aside == {"rubato.db", "hmac-key", "logs", "packages"} - (set() if seen[-1] == {"new"} else {"packages"})
    else:
        pytest.fail("it never got through")
    assert len(seen) > 10
    assert {"old"} in seen
    assert {"new"} in seen
    assert all(len(marks) == 1 for marks in seen), seen
    assert seen == sorted(seen, key=lambda marks: marks == {"new"}), "once new, always new"


def _die_at_stroke(k: int) -> None:
    count = 0

    def hook(event: str, _arguments: object) -> None:
        nonlocal count
        if event in STROKES:
            count += 1
            if count == k:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_a_killed_backup_leaves_no_file_and_does_not_stop_the_next(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home", "old")
    child = os.fork()
    if child == 0:
        _die_at_stroke(3)  # the removal of an older copy, two connections: the database is being copied
        take_backup(settings, tmp_path / "backup", quiet)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the kill came too late"
    assert not (tmp_path / "backup").exists()
    assert {path.name for path in tmp_path.iterdir()} > {".backup.part"}
    take_backup(settings, tmp_path / "backup", quiet)
    assert {path.name for path in tmp_path.iterdir()} == {"home", "backup"}
    with ArchiveReader(tmp_path / "backup") as archive:
        assert archive.manifest.revision == head_revision()


def test_earlier_backups_are_no_keys_and_keys_elsewhere_are_told(tmp_path: Path) -> None:
    settings, target = make_home(tmp_path / "home", "old"), tmp_path / "home" / "second.backup"
    take_backup(settings, settings.home / "first.backup", quiet)
    (settings.home / "secret-keys").write_text("00")
    settings = settings.model_copy(update={"secret_keys_file": settings.home / "secret-keys"})
    manifest, missing = take_backup(settings, target, quiet)
    assert {member.name for member in manifest.members if member.name.startswith("keys/")} == {
        "keys/hmac-key",
        "keys/secret-keys",
    }
    assert summary(settings, manifest, missing, target)["keys_elsewhere"] is None
    settings = settings.model_copy(update={"secret_keys_file": tmp_path / "vault"})
    assert summary(settings, manifest, missing, target)["keys_elsewhere"] == str(tmp_path / "vault")


def test_a_backup_of_an_older_release_is_migrated(tmp_path: Path) -> None:
    from alembic import command

    from service.migrations.upgrade import alembic_config

    home = tmp_path / "home"
    home.mkdir()
    engine = create_engine(f"sqlite:///{home / 'rubato.db'}")
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
    engine.dispose()
    (home / "hmac-key").write_text("old")
    manifest, _ = take_backup(Settings(home=home), tmp_path / "backup", quiet)
    assert manifest.revision == "0001"
    target = Settings(home=tmp_path / "target")
    restore_backup(target, tmp_path / "backup", replace=False, tell=quiet)
    with closing(sqlite3.connect(target.home / "rubato.db")) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == (head_revision(),)


def test_a_backup_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    settings = make_home(tmp_path / "home", "old")
    with closing(sqlite3.connect(settings.home / "rubato.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    take_backup(settings, tmp_path / "backup", quiet)
    with pytest.raises(BackupError, match="newer release"):
        restore_backup(Settings(home=tmp_path / "t"), tmp_path / "backup", replace=False, tell=quiet)


async def test_killed_while_postgresql_is_written_it_must_be_run_again(
    new_postgres: Callable[[], str], postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools = client_tools(postgres_url)
    monkeypatch.setenv("RUBATO_PG_BIN", tools)
    place = Place(tmp_path / "one" / "home", {"RUBATO_PG_BIN": tools, "RUBATO_DATABASE_URL": new_postgres()})
    service = place.service()
    try:
        async with service.client() as client:
            await submit(client, "before")
            place.save(tmp_path / "backup")
            await submit(client, "after")
        assert service.stop() == 0

        deadly = tmp_path / "bin"
        deadly.mkdir()
        for tool in ("pg_dump", "pg_restore"):
            (deadly / tool).symlink_to(Path(tools) / tool)
        (deadly / "psql").write_text("#!/bin/sh\nkill -9 $PPID\n")
        (deadly / "psql").chmod(0o755)
        done = place.call("restore", "--replace", str(tmp_path / "backup"), RUBATO_PG_BIN=str(deadly))
        assert done.returncode == -signal.SIGKILL
        refused = service.spawn("--port", "0")
        output, _ = refused.communicate(timeout=120)
        assert (refused.returncode, output) == (1, "")
        assert "was cut off" in (tmp_path / "one" / "service.log").read_text()

        place.restore(tmp_path / "backup")
        service = place.service()
        async with service.client() as client:
            assert [job["name"] for job in await all_jobs(client)] == ["before"]
        assert service.stop() == 0
        with psycopg.connect(place.environment["RUBATO_DATABASE_URL"].replace("+psycopg", "")) as connection:
            assert connection.execute("SELECT count(*) FROM audit WHERE action = 'service.restored'").fetchone() == (1,)
    finally:
        for process in place.services:
            process.end()


def test_a_password_stands_in_no_command() -> None:
    tools = PostgresTools("postgresql+psycopg://ada:secret@db.example:5433/rubato?sslmode=require")
    assert tools.uri == "postgresql://ada@db.example:5433/rubato?sslmode=require"


def test_without_the_tools_it_says_what_to_do(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "hmac-key").write_text("00")
    place = Place(home, {"RUBATO_DATABASE_URL": "postgresql+psycopg://nobody@127.0.0.1:1/none"})
    done = place.call("save", str(tmp_path / "backup"), RUBATO_PG_BIN=str(tmp_path))
    assert done.returncode == 1
    assert "pg_dump is not in" in done.stderr
    assert "postgresql-client" in done.stderr
    assert not list(tmp_path.glob("*backup*"))
