"""A database of the first revision, with jobs in every status, is migrated, and goes on."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from alembic import command
from sqlalchemy import Connection, create_engine, text

from rubato.wire.cluster import Acquired, Desired, Outcome, Result
from rubato.wire.spec import parse_spec, spec_to_json
from rubato.wire.status import Status
from service.auth import Authority, load_key
from service.migrations.upgrade import alembic_config, upgrade_to_head
from service.states import WITH_CONTROLLER
from tests.simulated_controller import PROCESS, metric, one_node

if TYPE_CHECKING:
    from tests.integration.service.conftest import MakeBench

pytestmark = pytest.mark.anyio

LIVE_ATTEMPT = 3
NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
COLUMNS_OF_0001 = (
    "id, project, name, labels, spec, priority, min_workers, max_workers, created_at, updated_at, queued_at, "
    "started_at, finished_at, status, reason, message, revision, desired_run, desired_workers, desired_version, "
    "desired_force, checkpoint_request, workers, joining, generation, step, restarts, scalings, latest_metrics, "
    "cluster_id, granted_workers, attempt, is_attempt_live, last_pos, metric_pos, log_segment, log_offset"
)


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Of one empty database: for a plain engine, and for the service."""
    if request.param == "sqlite":
        (tmp_path / "home").mkdir()
        path = tmp_path / "home" / "rubato.db"
        return f"sqlite:///{path}", ""
    make: Callable[[], str] = request.getfixturevalue("new_postgres")
    url = make()
    return url, url


def _fill(connection: Connection, token_hmac: str) -> None:
    """One job in each status, and two queued ones: the younger is the more important.

    Args:    token_hmac: of the attempt that the running one is at.
    """
    for index, status in enumerate((*Status, "queued")):
        name = f"{status}-{index}"
        spec = parse_spec(
            {
                "name": name,
                "recipe": "image-classifier",
                "workers": {"initial": 3, "min": 1, "max": 4, "standby": 1},
                "limits": {"queue_timeout": 3600},
            }
        )
        queued_at = NOW - timedelta(minutes=30) + timedelta(seconds=index)
        placed = status in WITH_CONTROLLER
        values: dict[str, Any] = {
            "id": f"job_{index:026d}",
            "project": "default",
            "name": name,
            "labels": "{}",
            "spec": json.dumps(spec_to_json(spec)),
            "priority": 50 if index == 0 else 80,
            "min_workers": 1,
            "max_workers": 4,
            "created_at": queued_at,
            "updated_at": queued_at,
            "queued_at": queued_at,
            "started_at": None if status == "queued" else queued_at + timedelta(seconds=5),
            "finished_at": NOW if status in ("succeeded", "failed", "cancelled") else None,
            "status": str(status),
            "reason": None,
            "message": "it was so",
            "revision": 1,
            "desired_run": {"pausing": "pause", "paused": "pause", "stopping": "stop"}.get(str(status), "run"),
            "desired_workers": 3,
            "desired_version": 4,
            "desired_force": False,
            "checkpoint_request": 0,
            "workers": 2 if placed else 0,
            "joining": 0,
            "generation": 1,
            "step": 7,
            "restarts": 0,
            "scalings": 0,
            "latest_metrics": "{}",
            "cluster_id": "default" if placed else None,
            "granted_workers": 4 if placed else 0,
            "attempt": LIVE_ATTEMPT if status == "running" else 0,
            "is_attempt_live": status == "running",
            "last_pos": 1 if index == 0 else 0,
            "metric_pos": 7 if status == "running" else 0,
            "log_segment": 0,
            "log_offset": 0,
        }
        if connection.dialect.name == "sqlite":
            values = {key: _as_text(value) for key, value in values.items()}
        names = ", ".join(f":{name.strip()}" for name in COLUMNS_OF_0001.split(","))
        if connection.dialect.name == "postgresql":
            for name in ("labels", "spec", "latest_metrics"):
                names = names.replace(f":{name},", f"CAST(:{name} AS JSONB),")
        connection.execute(text(f"INSERT INTO jobs ({COLUMNS_OF_0001}) VALUES ({names})"), values)
        if status == "running":
            _fill_history(connection, str(values["id"]), token_hmac)
    event = "INSERT INTO events (job_id, position, time, kind, message, data) VALUES (:job, 1, :time, 'k', 'm', '{}')"
    time = _as_text(NOW) if connection.dialect.name == "sqlite" else NOW
    connection.execute(text(event), {"job": f"job_{0:026d}", "time": time})


def _fill_history(connection: Connection, job_id: str, token_hmac: str) -> None:
    """Of a job that is being trained: its attempt, seven rows and a checkpoint."""
    now = _as_text(NOW) if connection.dialect.name == "sqlite" else NOW
    values = {"job": job_id, "now": now, "number": LIVE_ATTEMPT, "hmac": token_hmac, "no": False, **asdict(PROCESS)}
    for statement in (
        "INSERT INTO attempts (job_id, number, token_hmac, node_id, boot_id, pid, start_time, granted_at, "
        "is_confirmed_gone, last_batch, last_seq, workers) "
        "VALUES (:job, :number, :hmac, :node_id, :boot_id, :pid, :start_time, :now, :no, 4, 9, '[]')",
        "INSERT INTO checkpoints (id, job_id, checkpoint_id, attempt, step, bytes, created_at, metrics, files) "
        "VALUES ('ckpt_old', :job, '3-5', :number, 5, 10, :now, '{}', '[]')",
        *(
            'INSERT INTO metrics (job_id, step, position, time, generation, workers, attempt, "values") '
            f"VALUES (:job, {step}, {step}, :now, 1, 2, :number, '{{\"loss\": {step}.5}}')"
            for step in range(1, 8)
        ),
    ):
        names = [name for name in values if re.search(rf":{name}\b", statement)]
        connection.execute(text(statement), {name: values[name] for name in names})


def _as_text(value: Any) -> Any:
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else value


def _rows(connection: Connection) -> list[Any]:
    return list(connection.execute(text("SELECT * FROM jobs ORDER BY id")).mappings())


async def test_jobs_in_every_status_are_migrated_and_go_on(
    urls: tuple[str, str], make_bench: MakeBench, tmp_path: Path
) -> None:
    plain, served = urls
    (tmp_path / "home").mkdir(mode=0o700, exist_ok=True)
    authority = Authority(load_key(tmp_path / "home"))
    running_id = f"job_{list(Status).index(Status.RUNNING):026d}"
    token = authority.attempt_token(running_id, LIVE_ATTEMPT)
    engine = create_engine(plain)
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
        _fill(connection, authority.digest(token))
        before = [dict(row) for row in _rows(connection)]
        upgrade_to_head(connection)
        command.downgrade(alembic_config(connection), "0001")
        after = [dict(row) for row in _rows(connection)]
        changed = {name for old, new in zip(before, after, strict=True) for name in old if old[name] != new[name]}
        assert changed <= {"granted_workers"}, "down again, all is as it was but for grants of missing workers"
        assert connection.execute(text("SELECT count(*) FROM events")).scalar_one() == 1
    engine.dispose()

    async with make_bench(served) as bench:
        jobs = {job["status"]: job for job in (await bench.get("/jobs"))["items"]}
        assert set(jobs) == set(Status)
        assert jobs["running"]["granted_workers"] == 2, "as many as it has"
        assert jobs["running"]["desired_workers"] == 3
        queue = (await bench.get("/queue"))["items"]
        assert [item["name"] for item in queue] == ["queued-10", "queued-0"], "the important one first"
        # The cluster has room for what runs, and for one worker more.
        bench.agent.nodes = one_node(18)
        await bench.schedule()
        reply = await bench.agent.sync()
        assert len(reply.run) == len(WITH_CONTROLLER) + 2
        running = await bench.controller_of(jobs["running"]["id"])
        assert running.job_id == running_id
        # The controller of the former version is still there: its next report counts, and what it told before is kept.
        running.acquired, running.batch, running.seq = (
            Acquired(LIVE_ATTEMPT, token, "running", {}, "", Desired(4, "run", 3)),
            4,
            itertools.count(10),
        )
        await running.report(metrics=(metric(8, loss=8.5),), step=8, events=(running.event("worker.ready"),))
        history = (await bench.get(f"/jobs/{running_id}/metrics"))["items"]
        assert [(row["step"], row["values"]["loss"]) for row in history] == [(step, step + 0.5) for step in range(1, 9)]
        assert [one["step"] for one in (await bench.get(f"/jobs/{running_id}/checkpoints"))["items"]] == [5]
        # And a new one may follow it, as of any other attempt.
        acquired = await running.acquire(gone=LIVE_ATTEMPT)
        assert (acquired.attempt, acquired.desired.run, acquired.resume_step) == (LIVE_ATTEMPT + 1, "run", 8)
        assert acquired.desired.workers >= 2
        await running.report(outcome=Outcome(state="succeeded", result=Result(step=9, digest="d" * 64)))
        assert (await bench.job(jobs["running"]["id"]))["status"] == "succeeded"
        stopping = await bench.controller_of(jobs["stopping"]["id"])
        assert (await stopping.acquire()).desired.run == "stop"
        await stopping.report(outcome=Outcome(state="cancelled"))
        assert (await bench.job(jobs["stopping"]["id"]))["reason"] == "cancelled_by_user"
        assert (await bench.post(f"/jobs/{jobs['paused']['id']}/resume", 202))["status"] == "queued"
        bench.clock.advance(3601)
        await bench.agent.sync()
        late = await bench.submit("late", limits={"queue_timeout": 1}, workers={"initial": 99, "min": 99, "max": 99})
        bench.clock.advance(2)
        await bench.schedule()
        assert (await bench.job(late["id"]))["status"] == "failed"


async def test_buckets_of_metrics_are_read_by_the_release_before(urls: tuple[str, str]) -> None:
    """It knows two parts of each, and fails at a third."""
    engine = create_engine(urls[0])
    low, high = [0.5, 3, 1.0], [2.5, 9, 2.0]
    insert = "INSERT INTO metric_rollups (job_id, level, bucket, extremes) VALUES (:job, :level, :bucket, {})"
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0001")
        _fill(connection, "digest")
        upgrade_to_head(connection)
        value = "CAST(:extremes AS JSONB)" if connection.dialect.name == "postgresql" else ":extremes"
        for job, level, bucket, extremes in (
            (0, 0, 0, {"loss": [low, high, [96.0, 64]], "lr": [low, high]}),
            (0, 1, 0, {"loss": [low, high, [96.0, 64]]}),
            (1, 0, 0, {"loss": [low, low]}),
        ):
            row = {"job": f"job_{job:026d}", "level": level, "bucket": bucket, "extremes": json.dumps(extremes)}
            connection.execute(text(insert.format(value)), row)
        command.downgrade(alembic_config(connection), "0013")
        told = connection.execute(text("SELECT extremes FROM metric_rollups ORDER BY job_id, level")).scalars().all()
        assert [json.loads(one) if isinstance(one, str) else one for one in told] == [
            {"loss": [low, high], "lr": [low, high]},
            {"loss": [low, high]},
            {"loss": [low, low]},
        ]
    engine.dispose()


async def test_tokens_of_one_cluster_are_good_for_none_in_the_release_before(urls: tuple[str, str]) -> None:
    """There they would be good for all."""
    engine = create_engine(urls[0])
    columns = "id, name, role, token_hmac, created_at"
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "0013")
        for name in ("any", "edge"):
            row = {"name": name, "now": _as_text(NOW) if connection.dialect.name == "sqlite" else NOW}
            connection.execute(
                text(f"INSERT INTO tokens ({columns}) VALUES (:name, :name, 'cluster', :name, :now)"), row
            )
        upgrade_to_head(connection)
        bound = text("UPDATE tokens SET cluster_id = 'edge' WHERE id = 'edge'")
        assert list(connection.execute(text("SELECT cluster_id FROM tokens"))) == [(None,), (None,)], "as before: any"
        connection.execute(bound)
        command.downgrade(alembic_config(connection), "0013")
        revoked = text("SELECT id, revoked_at IS NOT NULL FROM tokens ORDER BY id")
        assert [(name, bool(is_revoked)) for name, is_revoked in connection.execute(revoked)] == [
            ("any", False),
            ("edge", True),
        ]
    engine.dispose()
