"""`rubato up` with RUBATO_DATABASE_URL: one whole job, with everything it leaves in a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.postgres import new_database, running_postgres
from tests.running_home import STEPS, running_home


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_whole_job_on_postgres(tmp_path: Path, digest: str) -> None:
    with running_postgres() as server_url:
        url = new_database(server_url)
        with running_home(tmp_path / "home", RUBATO_DATABASE_URL=url) as home:
            job = home.classifier(tmp_path)
            job.wait_step(3)
            job.scale(2)
            job.check(digest)
            counted = len(list(home.client.events(job.id)))
        assert not (tmp_path / "home" / "rubato.db").exists()
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            steps = connection.execute("SELECT step FROM metrics ORDER BY step").fetchall()
            positions = connection.execute("SELECT position FROM events ORDER BY position").fetchall()
            assert connection.execute("SELECT status FROM jobs").fetchall() == [("succeeded",)]
    assert steps == [(step,) for step in range(1, STEPS + 1)]
    assert positions[:counted] == [(position,) for position in range(1, counted + 1)]
