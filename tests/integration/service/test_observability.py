"""What Prometheus and probes are told."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from service import jobs, readiness
from service.context import Context
from service.database import Database
from tests.simulated_controller import bearer, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

DASHBOARD = Path(__file__).resolve().parents[3] / "deploy/grafana/rubato.json"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def scrape(bench: Bench) -> Samples:
    token = (bench.settings.home / "scraper-token").read_text().strip()
    response = await bench.client.get("/metrics", headers=bearer(token))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(response.text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


async def test_what_happens_to_jobs_is_counted_once(bench: Bench) -> None:
    before = await scrape(bench)
    await bench.submit(workers={"initial": 2, "max": 4})
    bench.clock.advance(20)
    await bench.schedule()
    controller = await bench.controller_of((await bench.job("digits"))["id"])
    await controller.acquire()
    formed = controller.event("generation.formed", generation=2, cause="scale_up", paused_seconds=0.04)
    report = controller.next_report(
        events=(
            formed,
            controller.event("generation.formed", generation=3, cause="recovery", paused_seconds=0.3),
            controller.event("worker.lost", worker_id="w1"),
            controller.event("checkpoint.committed", step=7, checkpoint_id="1-7", bytes=1, files=[]),
            controller.event("checkpoint.failed", step=7, cause="disk"),
            controller.event("checkpoint.failed", step=9, cause="disk", times=4),
            controller.event("checkpoint.failed", step=11, cause="disk", times="many"),
        ),
        step=7,
        workers=2,
        joining=1,
        worker_reports=(worker(),),
    )
    for _ in range(2):
        assert (await controller.send(report)).status_code == 200, "the second time its reply was lost"
    stale = await controller.send(controller.next_report(events=(formed,), step=99))
    assert stale.status_code == 200
    await controller.acquire()
    after = await scrape(bench)

    def grown(name: str, **labels: str) -> float:
        return value(after, name, **labels) - value(before, name, **labels)

    assert grown("rubato_generations_total", cause="scale_up") == 1
    assert grown("rubato_generations_total", cause="recovery") == 1
    assert grown("rubato_pause_seconds_sum", cause="recovery") == pytest.approx(0.3)
    assert grown("rubato_workers_lost_total") == 1
    assert grown("rubato_checkpoints_total", result="committed") == 1
    assert grown("rubato_checkpoints_total", result="failed") == 6
    assert grown("rubato_steps_total") == 99
    assert grown("rubato_queue_wait_seconds_count") == 1
    assert grown("rubato_queue_wait_seconds_sum") == pytest.approx(20)
    assert grown("rubato_job_transitions_total", status="running") == 1
    assert value(after, "rubato_jobs", status="running") == 1
    assert value(after, "rubato_jobs", status="failed") == 0
    assert value(after, "rubato_workers", state="joining") == 1
    assert value(after, "rubato_cluster_online", cluster="default") == 1
    assert value(after, "rubato_cluster_cpu_slots", cluster="default", kind="total") == 8
    assert grown("rubato_scheduler_round_seconds_count", result="ok") >= 1


async def test_what_was_rolled_back_is_not_counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    before = await scrape(bench)

    async def fail(*_: object, **__: object) -> None:
        raise OperationalError("INSERT", {}, Exception("disk full"))

    with monkeypatch.context() as patched:
        patched.setattr("service.ingest.store_metrics", fail)
        report = controller.next_report(events=(controller.event("worker.lost", worker_id="w1"),), step=5)
        assert (await controller.send(report)).status_code == 503
    middle = await scrape(bench)
    assert (await controller.send(report)).status_code == 200
    after = await scrape(bench)
    counts = [value(seen, "rubato_workers_lost_total") for seen in (before, middle, after)]
    assert [count - counts[0] for count in counts] == [0, 0, 1]


async def test_requests_are_timed_by_route_and_name_nobody(bench: Bench) -> None:
    job = await bench.submit()
    route = {"method": "GET", "route": "/api/v1/jobs/{reference}", "status": "200"}
    before = await scrape(bench)
    await bench.job(job["id"])
    await bench.job("digits")
    await bench.client.get("/no/such/place")
    await bench.client.request("BREW", "/api/v1/jobs")
    after = await scrape(bench)
    name = "rubato_http_request_seconds_count"
    assert value(after, name, **route) - value(before, name, **route) == 2
    labels = {label for sample in after for label in sample[1]}
    assert ("method", "other") in labels
    assert not [pair for pair in labels if job["id"] in pair[1] or "no/such" in pair[1]]


ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


async def test_the_dashboard_names_only_what_is_exposed(bench: Bench) -> None:
    token = (bench.settings.home / "scraper-token").read_text().strip()
    exposed = (await bench.client.get("/metrics", headers=bearer(token))).text
    families = list(text_string_to_metric_families(exposed))
    names = {family.name + ending for family in families for ending in ENDINGS.get(family.type, ())}
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    named = {name for expression in asked for name in re.findall(r"rubato_\w+", expression)}
    assert len(named) > 10
    assert named - names == set()
    shown = {name.removesuffix(ending) for name in named for ending in ("_total", "_bucket", "_count")}
    about_rubato = {family.name for family in families if re.fullmatch(r"rubato_(?!.*_created).*", family.name)}
    assert about_rubato - shown - {"rubato_sweep_round_seconds"} == set(), "a metric that no panel shows"


async def test_metrics_are_for_the_scraper_and_the_admin(bench: Bench) -> None:
    file = bench.settings.home / "scraper-token"
    assert file.stat().st_mode & 0o777 == 0o600
    scraper = bearer(file.read_text().strip())
    assert (await bench.client.get("/metrics")).status_code == 200
    assert (await bench.client.get("/metrics", headers=bearer(bench.agent.token))).status_code == 403
    assert (await bench.client.get("/metrics", headers={"Authorization": ""})).status_code == 401
    assert (await bench.client.get("/api/v1/jobs", headers=scraper)).status_code == 403


async def probe(bench: Bench, status: int = 200) -> tuple[str, dict[str, dict[str, Any]]]:
    bench.clock.advance(readiness.FRESH.total_seconds())
    response = await bench.client.get("/readyz", headers={"Authorization": ""})
    assert response.status_code == status, response.text
    return response.json()["status"], {check["name"]: check for check in response.json()["checks"]}


async def test_many_askers_for_readiness_cost_one_turn_of_the_writer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may ask, and SQLite has one writer."""
    turns = 0
    look = readiness._look_at_database

    async def counted(context: Context) -> readiness.Check:
        nonlocal turns
        turns += 1
        return await look(context)

    monkeypatch.setattr(readiness, "_look_at_database", counted)
    replies = await asyncio.gather(*(bench.client.get("/readyz") for _ in range(20)))
    assert {reply.status_code for reply in replies} == {200}
    await bench.client.get("/readyz")
    assert turns == 1
    bench.clock.advance(readiness.FRESH.total_seconds())
    await asyncio.gather(*(bench.client.get("/readyz") for _ in range(20)))
    assert turns == 2
    bench.clock.advance(-60)
    await bench.client.get("/readyz")
    assert turns == 3


async def test_readiness_names_what_is_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(bench.settings.home)

    def leave(free: int) -> None:
        monkeypatch.setattr(readiness.shutil, "disk_usage", lambda _: usage._replace(free=free))

    leave(10**11)
    status, checks = await probe(bench)
    assert status == "degraded", "nothing has been heard of an agent or the loop yet"
    assert [name for name, check in checks.items() if not check["ok"]] == ["scheduler", "agent"]
    await bench.schedule()
    status, checks = await probe(bench)
    names = ["database", "migrations", "disk", "storage", "secrets", "scheduler", "agent"]
    assert (status, list(checks)) == ("ok", names)

    bench.clock.advance(60)
    status, checks = await probe(bench)
    assert (status, checks["agent"]["ok"], checks["agent"]["detail"]) == ("degraded", False, "silent: default")
    await bench.agent.sync()

    for free, code, name in ((10_000_000, 503, "failing"), (500_000_000, 200, "degraded")):
        leave(free)
        status, checks = await probe(bench, code)
        assert (status, checks["disk"]["ok"]) == (name, False)
    leave(10**11)
    assert (await probe(bench))[0] == "ok"


@pytest.mark.parametrize(("revision", "code"), [("0001", 503), ("9999", 200)])
async def test_a_database_of_another_release_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, revision: str, code: int
) -> None:
    monkeypatch.setattr(readiness, "head_revision", lambda: "9998")
    async with bench.context.database.write() as session:
        await session.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": revision})
    _, checks = await probe(bench, code)
    assert not checks["migrations"]["ok"]
    assert revision in checks["migrations"]["detail"]


async def test_a_database_that_cannot_be_written_is_told(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def refuse(_: Database) -> AsyncIterator[None]:
        raise OperationalError("BEGIN", {}, Exception("attempt to write a readonly database /secret/path"))
        yield

    async with make_bench() as bench:
        monkeypatch.setattr(Database, "write", refuse)
        status, checks = await probe(bench, 503)
        assert (status, checks["database"]["ok"], checks["migrations"]["ok"]) == ("failing", False, True)
        assert "secret" not in checks["database"]["detail"], "everybody may ask"
        monkeypatch.undo()
        bench.context.hub.close()
        _, checks = await probe(bench, 503)
        assert checks["service"]["detail"] == "is going down"


async def test_every_line_logged_in_a_request_tells_its_id(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    submit = jobs.submit

    async def submit_and_log(*args: Any, **kwargs: Any) -> Any:
        structlog.get_logger("service.jobs").info("from_within")
        return await submit(*args, **kwargs)

    monkeypatch.setattr(jobs, "submit", submit_and_log)
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        response = await bench.client.post("/api/v1/jobs", json={"name": "digits", "recipe": "image-classifier"})
    assert response.status_code == 201
    within = [line["request_id"] for line in lines if line["event"] == "from_within"]
    assert within == [response.headers["x-request-id"]]
    assert "request_id" not in structlog.contextvars.get_contextvars()


async def test_every_line_logged_of_a_job_tells_its_id(bench: Bench) -> None:
    controller = await bench.start()
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await bench.get("/jobs/digits")
        await bench.get("/jobs/digits/events")
        await bench.post("/jobs/digits/scale", 202, {"workers": 2})
        await controller.report(step=1)  # of what comes every few seconds by itself only refusals are told
        await bench.client.get(f"/cluster/v1/jobs/{controller.job_id}/desired")
        await bench.get("/jobs/no-such", 404)
        await bench.get("/me")
    requests = [line for line in lines if line["event"] == "request"]
    assert [line.get("job_id") for line in requests] == [controller.job_id] * 3 + [None] * 3
    assert [line["status"] for line in requests] == [200, 200, 202, 403, 404, 200]
    assert "job_id" not in structlog.contextvars.get_contextvars()
