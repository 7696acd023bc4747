"""A canary through submit, run, crash and logs, with real processes: it lies in workers' memory, and nowhere else."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rubato.client import Client
from tests.canary import CANARY, SAID, check_nowhere
from tests.postgres import new_database, running_postgres
from tests.running_home import PROGRAMS, RunningHome, running_home

pytestmark = pytest.mark.timeout(900)


@dataclass
class Place:
    """A home, and where its database keeps its bytes."""

    running: RunningHome
    database: Path


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        running: RunningHome = request.getfixturevalue("running")
        yield Place(running, running.home.path)
        return
    with ExitStack() as stack:
        url = new_database(stack.enter_context(running_postgres()))
        running = stack.enter_context(running_home(tmp_path / "home", RUBATO_DATABASE_URL=url))
        connection = stack.enter_context(psycopg.connect(url.replace("+psycopg", ""), autocommit=True))
        data = Path(connection.execute("SHOW data_directory").fetchone()[0])
        yield Place(running, data)


def replies(client: Client, job: str) -> str:
    """All that people are shown of a job."""
    paths = ("", "/events", "/logs?tail=1000", "/metrics", "/workers", "/attempts", "/generations", "/explain")
    shown: list[Any] = [client.request("GET", f"/jobs/{job}{path}") for path in paths]
    shown += [client.secrets.list(), list(client.access.audit())]
    return json.dumps(shown, ensure_ascii=False)


def test_a_canary_is_found_nowhere_but_in_the_memory_of_workers(place: Place, tmp_path: Path) -> None:
    running = place.running
    running.client.secrets.set("CANARY", CANARY)
    (tmp_path / "scratch").mkdir()
    job = running.submit(
        PROGRAMS,
        "leaky.py:train",
        tmp_path / "scratch",
        config={"steps": 40},
        batch={"global_size": 48, "num_microbatches": 8},
        workers={"initial": 2, "min": 1, "max": 4},
        secrets=["CANARY"],
    )
    members = job.wait_members(2)
    for member in members:
        assert f"CANARY={CANARY}".encode() in Path(f"/proc/{member.pid}/environ").read_bytes(), "it is delivered"
    job.wait_step(3)
    job.kill([1], among=2)
    job.wait_events("worker.lost")
    ended = job.finish()
    assert ended.status == "failed", ended
    assert "ValueError: cannot sign in with [secret CANARY]" in json.dumps(ended.failure)
    lines = [line.line for line in running.client.logs(job.id)]
    assert SAID in lines, "the program had the right value"
    assert "plain [secret CANARY]" in lines
    assert any(line.startswith("[secret CANARY] in pieces, and long: ...") for line in lines)

    record = running.home.read_record()
    assert record is not None
    workers = Path(tempfile.gettempdir()) / f"rubato-{os.getuid()}"
    check_nowhere(
        replies(running.client, job.id), running.home.path, place.database, Path(record.ray_temp_dir), workers
    )
