"""Jobs that are deleted, and old ones that lose their history; cut short at every point."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from rubato.wire.cluster import Outcome, Result
from service import jobs, sweep
from service.logs import LogStore
from service.models import Checkpoint, Event, Job, Metric, MetricRollup
from service.stored import LocalStored
from service.sweep import Sweeper
from service.watch import JobWatch
from tests.callers import an_admin
from tests.integration.service.processes import ServiceProcess, controller_of, submit
from tests.integration.service.test_people import make_user
from tests.simulated_controller import bearer, log_line, metric

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio

TABLES = (Job, Event, Metric, MetricRollup, Checkpoint)


async def train(controller: SimulatedController, *, folder: Path, steps: int = 130) -> None:
    """Rows, lines and checkpoints of every kind, and the end."""
    (folder / "1-50").mkdir(parents=True)
    (folder / "1-60").mkdir()
    for name in ("1-50", "1-60"):
        (folder / name / "stripe-0.safetensors").write_bytes(b"weights")
        (folder / name / "manifest.json").write_text("{}")
    events = [controller.event("worker.ready", f"number {index}") for index in range(20)]
    told = controller.event("checkpoint.committed", step=50, checkpoint_id="1-50", bytes=1, files=[])
    rows = tuple(metric(step) for step in range(1, steps))
    await controller.report(events=(*events, told), metrics=rows, logs=(log_line("hello"),), step=steps)
    for part in range(3):
        await controller.report(logs=tuple(log_line(f"line {part}.{index}" + "x" * 400) for index in range(10)))
    await controller.report(outcome=Outcome(state="succeeded", result=Result(step=steps, digest="d")))


async def finished(bench: Bench, name: str = "digits", **spec: Any) -> str:
    """The id of a job that has ended and left something everywhere."""
    controller = await bench.start(name, **spec)
    await train(controller, folder=checkpoints_of(bench, controller.job_id))
    return controller.job_id


def checkpoints_of(bench: Bench, job_id: str) -> Path:
    return Path(bench.settings.storage_uri.path) / job_id


def logs_of(bench: Bench, job_id: str) -> Path:
    return bench.settings.home / "logs" / job_id


async def rows_of(bench: Bench, job_id: str) -> dict[str, int]:
    found = {}
    async with bench.context.database.read() as session:
        for table in TABLES:
            key = Job.id if table is Job else table.__table__.c.job_id
            found[table.__tablename__] = await session.scalar(select(func.count()).where(key == job_id)) or 0
    return found


async def left_of(bench: Bench, job_id: str) -> list[str]:
    """What is still there of a job."""
    tables = [name for name, count in (await rows_of(bench, job_id)).items() if count]
    folders = [path for path in (logs_of(bench, job_id), checkpoints_of(bench, job_id)) if path.exists()]
    return [*tables, *map(str, folders)]


async def remove(bench: Bench, job: str, expect: int, **query: Any) -> dict[str, Any]:
    headers = query.pop("headers", {})
    response = await bench.client.delete(f"/api/v1/jobs/{job}", params=query, headers=headers)
    assert response.status_code == expect, response.text
    return {} if expect == 204 else response.json()


async def sweep_all(bench: Bench) -> None:
    """A round now, and one when the row may go, too."""
    await bench.app.state.running.sweeper.run_once()
    bench.clock.advance(61)
    await bench.app.state.running.sweeper.run_once()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "ROWS", 50)
    monkeypatch.setattr(sweep, "FILES", 1)


@pytest.mark.usefixtures("small_parts")
async def test_a_deleted_job_goes_with_all_that_it_left(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url, log_segment_bytes=2000) as bench:
        other, job_id = await finished(bench, "other"), await finished(bench)
        assert len(list(logs_of(bench, job_id).iterdir())) > 1, "several segments"
        assert all((await rows_of(bench, job_id)).values()), "the test needs rows in every table"
        kept = await rows_of(bench, other)
        await remove(bench, "digits", 204)
        for path in (f"/jobs/{job_id}", "/jobs/digits", f"/jobs/{job_id}/events", f"/jobs/{job_id}/logs"):
            await bench.get(path, 404)
        assert [job["id"] for job in (await bench.get("/jobs"))["items"]] == [other]
        await remove(bench, job_id, 204)  # asked again while it is under way
        await bench.app.state.running.sweeper.run_once()
        assert await left_of(bench, job_id) == ["jobs", "checkpoints"], "the row stays for a while, for the watchers"
        await remove(bench, job_id, 204)
        await sweep_all(bench)
        assert await left_of(bench, job_id) == []
        await remove(bench, job_id, 404)
        assert await rows_of(bench, other) == kept
        assert len(await left_of(bench, other)) == len(TABLES) + 2
        (entry,) = (await bench.get("/audit", action="job.deleted"))["items"]
        assert (entry["actor"], entry["job_id"], entry["detail"]["name"]) == ("admin", job_id, "digits")
        assert (await bench.client.delete("/api/v1/projects/default")).status_code == 409, "the other job lies in it"
        await remove(bench, other, 204)
        assert (await bench.client.delete("/api/v1/projects/default")).status_code == 204


async def test_what_is_needed_is_not_deleted(bench: Bench) -> None:
    controller = await bench.start()
    refused = await remove(bench, "digits", 409)
    assert "digits is running" in refused["detail"]
    assert "rubato cancel digits" in refused["detail"]
    await train(controller, folder=checkpoints_of(bench, controller.job_id))
    etag = (await bench.job("digits"))["etag"]
    await remove(bench, "digits", 412, headers={"If-Match": '"another"'})
    (checkpoint,) = (await bench.get("/jobs/digits/checkpoints"))["items"]
    await bench.submit("heir", checkpoint={"resume_from": checkpoint["id"]})
    for keep in (True, False):
        assert (
            "heir begins from checkpoint 1-50" in (await remove(bench, "digits", 409, keep_checkpoints=keep))["detail"]
        )
    await bench.post("/projects", 201, {"name": "secret"})
    await bench.post("/jobs/heir/cancel", 202)
    await bench.submit("hidden-heir", project="secret", checkpoint={"resume_from": checkpoint["id"]})
    async with await make_user(bench, "ada", default="editor") as ada:
        response = await ada.delete("/api/v1/jobs/digits")
        assert response.status_code == 409
        assert "hidden-heir" not in response.text
        assert "A job of another project begins from" in response.json()["detail"]
    await bench.post("/jobs/hidden-heir/cancel", 202)
    # Of this one no event ever told; the storage knows it.
    (checkpoints_of(bench, controller.job_id) / "1-60" / "pinned").write_text("x")
    refused = await remove(bench, "digits", 409)
    assert refused["pinned"] == ["1-60"]
    assert "Checkpoint 1-60 of digits is pinned" in refused["detail"]
    assert (await bench.job("digits"))["status"] == "succeeded"
    await remove(bench, "digits", 204, keep_checkpoints=True, headers={"If-Match": etag})
    await sweep_all(bench)
    assert await left_of(bench, controller.job_id) == [str(checkpoints_of(bench, controller.job_id))]
    names = sorted(path.name for path in checkpoints_of(bench, controller.job_id).iterdir())
    assert names == ["1-50", "1-60"]


async def test_a_name_means_the_same_job_when_it_is_sent_again(bench: Bench) -> None:
    older = await finished(bench)
    async with await make_user(bench, "eva", default="editor") as editor:
        for client in (bench.client, editor):
            newer = await finished(bench)
            for _ in range(3):
                assert (await client.delete("/api/v1/jobs/digits")).status_code == 204
            assert (await bench.job("digits"))["id"] == older
            await bench.get(f"/jobs/{newer}", 404)
            await sweep_all(bench)
            assert await left_of(bench, newer) == []
            assert len(await left_of(bench, older)) == len(TABLES) + 2
    await bench.submit()
    assert "is queued" in (await remove(bench, "digits", 409))["detail"]


async def test_what_is_pinned_after_the_look_stays(bench: Bench) -> None:
    job_id = await finished(bench)
    await remove(bench, job_id, 204)
    (checkpoints_of(bench, job_id) / "1-60" / "pinned").write_text("x")
    await sweep_all(bench)
    assert await left_of(bench, job_id) == [str(checkpoints_of(bench, job_id))]
    kept = checkpoints_of(bench, job_id)
    assert [path.name for path in kept.iterdir()] == ["1-60"]
    assert (kept / "1-60" / "manifest.json").is_file()


class Crash(Exception):
    """The process ends here."""


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Callable[[], bool]]:
    """Ends the sweep before or after the n-th thing that it changes; says whether it came so far."""
    real_transaction = Sweeper._transaction
    effects = {"count": 0, "limit": -1}

    def pass_by() -> None:
        effects["count"] += 1
        if effects["count"] == effects["limit"]:
            raise Crash

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            pass_by()
            result = real(*arguments)
            pass_by()
            return result

        return changed

    class Transaction:
        def __init__(self, sweeper: Sweeper) -> None:
            self.real = real_transaction(sweeper)

        async def __aenter__(self) -> Any:
            pass_by()
            return await self.real.__aenter__()

        async def __aexit__(self, *error: Any) -> Any:
            result = await self.real.__aexit__(*error)
            pass_by()
            return result

    monkeypatch.setattr(Sweeper, "_transaction", lambda self: Transaction(self))
    monkeypatch.setattr(LogStore, "remove", around(LogStore.remove))
    for name in ("remove", "remove_all", "remove_if_empty"):
        monkeypatch.setattr(LocalStored, name, around(getattr(LocalStored, name)))

    def arm(limit: int) -> Callable[[], bool]:
        effects.update(count=0, limit=limit)
        return lambda: effects["count"] >= limit

    return arm


@pytest.mark.usefixtures("small_parts")
@pytest.mark.timeout(900)
async def test_a_sweep_that_ends_anywhere_is_finished_by_the_next(
    bench: Bench, crash_at: Callable[[int], Callable[[], bool]]
) -> None:
    point, has_crashed = 0, True
    while has_crashed:
        point += 1
        job_id = await finished(bench, f"digits-{point}")
        await remove(bench, job_id, 204)
        bench.clock.advance(61)
        came_so_far = crash_at(point)
        with suppress(Crash):
            await Sweeper(bench.context).run_once()
        has_crashed = came_so_far()
        if has_crashed:
            assert "jobs" in await left_of(bench, job_id) or point > 10, "the row goes last"
        crash_at(-1)
        # The lease of the one that ended runs out before another one acts.
        bench.clock.advance(31)
        await remove(bench, job_id, 204 if "jobs" in await left_of(bench, job_id) else 404)
        await Sweeper(bench.context).run_once()
        assert await left_of(bench, job_id) == [], f"cut short at {point}"
    assert point > 15, "there were so many points to end at"


async def test_a_storage_that_does_not_answer_holds_up_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await finished(bench, "first"), await finished(bench, "second")
    await remove(bench, first, 204)
    await remove(bench, second, 204, keep_checkpoints=True)

    def fail(_: LocalStored) -> list[str]:
        raise OSError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStored, "folders", fail)
        third = await finished(bench, "third")
        assert (await remove(bench, third, 503))["code"] == "storage_unreachable"
        await sweep_all(bench)
    assert await left_of(bench, second) == [str(checkpoints_of(bench, second))]
    assert await left_of(bench, first) == ["jobs", "checkpoints", str(checkpoints_of(bench, first))]
    bench.clock.advance(sweep.REST.total_seconds() + 1)
    await bench.app.state.running.sweeper.run_once()
    assert await left_of(bench, first) == []


def test_removals_that_overlap_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "1-50"
    (folder / "part").mkdir(parents=True)
    files = [folder / "part" / str(index) for index in range(3)]
    for file in files:
        file.write_bytes(b"weights")
    real = os.unlink
    overtaken = []

    def unlink(name: str, *, dir_fd: int | None = None) -> None:
        if not overtaken:
            overtaken.append(name)
            real(name, dir_fd=dir_fd)  # the other removal was faster
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    LocalStored(tmp_path, "1-50").remove_all()
    assert overtaken
    assert not folder.exists()
    LocalStored(tmp_path, "1-50").remove_all()


async def test_the_row_stays_while_files_are_left(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await finished(bench)
    await remove(bench, job_id, 204)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStored, "remove_all", lambda _: None)
        await sweep_all(bench)
        assert "jobs" in await left_of(bench, job_id)
    bench.clock.advance(sweep.REST.total_seconds() + 1)
    await bench.app.state.running.sweeper.run_once()
    assert await left_of(bench, job_id) == []


async def test_a_job_whose_rows_cannot_be_removed_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await finished(bench, "first"), await finished(bench, "second")
    await remove(bench, first, 204)
    await remove(bench, second, 204)
    real = Sweeper._remove_metrics

    async def fail(sweeper: Sweeper, job_id: str) -> None:
        if job_id == first:
            raise OperationalError("DELETE", None, Exception("statement timeout"))
        await real(sweeper, job_id)

    with monkeypatch.context() as patched:
        patched.setattr(Sweeper, "_remove_metrics", fail)
        await sweep_all(bench)
        assert "jobs" in await left_of(bench, first)
        assert await left_of(bench, second) == []
    bench.clock.advance(sweep.REST.total_seconds() + 1)
    await bench.app.state.running.sweeper.run_once()
    assert await left_of(bench, first) == []


async def test_checkpoints_in_an_object_store_go_too(make_bench: MakeBench, tmp_path: Path) -> None:
    import fsspec  # type: ignore[import-untyped]

    async with make_bench(storage=f"memory://{tmp_path.name}") as bench:
        controller = await bench.start()
        store, root = fsspec.filesystem("memory"), f"/{tmp_path.name}/{controller.job_id}"
        for name in ("1-10/manifest.json", "1-10/a.safetensors", "1-20/a.safetensors", "1-30/pinned"):
            store.pipe_file(f"{root}/{name}", b"{}")
        await controller.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest="d")))
        assert (await remove(bench, "digits", 409))["pinned"] == ["1-30"]
        store.rm_file(f"{root}/1-30/pinned")
        await remove(bench, "digits", 204)
        await sweep_all(bench)
        assert store.find(root) == []


async def test_watchers_hear_of_it(bench: Bench) -> None:
    job_id = await finished(bench)
    watch = JobWatch(bench.context, an_admin())
    jobs, older = await watch.snapshot()
    assert [job["id"] for job in jobs] == [job_id]
    assert older is None
    await remove(bench, job_id, 204)
    assert await watch.changes() == [("deleted", {"id": job_id})]
    assert await watch.changes() == []
    assert await JobWatch(bench.context, an_admin()).snapshot() == ([], None)


async def blocked_or_done(bench: Bench, task: asyncio.Task[Any]) -> None:
    """Wait until a request waits for a lock of the database, or has its answer."""
    for _ in range(1_000_000):
        if task.done():
            return
        if bench.settings.is_sqlite:
            waiting = bool(getattr(bench.context.database._write_turn, "_waiters", None))
        else:
            async with bench.context.database.read() as session:
                waiting = bool(await session.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))
        if waiting:
            return
        await asyncio.sleep(0)


@pytest.mark.parametrize("what", ["jobs", "checkpoints"])
async def test_a_job_that_is_just_submitted_keeps_its_origin(bench: Bench, what: str) -> None:
    job_id = await finished(bench)
    (checkpoint,) = (await bench.get("/jobs/digits/checkpoints"))["items"]
    path = f"/api/v1/{what}/{job_id if what == 'jobs' else checkpoint['id']}"
    spec = jobs.read_spec(
        {"name": "heir", "recipe": "image-classifier", "checkpoint": {"resume_from": checkpoint["id"]}}
    )
    async with bench.context.database.write() as session:
        await jobs.insert(session, spec, caller=an_admin(), now=bench.clock())
        deletion = asyncio.create_task(bench.client.delete(path))
        await blocked_or_done(bench, deletion)
    response = await deletion
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert "heir begins from" in response.json()["detail"]


async def test_old_jobs_lose_what_the_retention_no_longer_keeps(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url, keep_logs_days=1, keep_events_days=2.5) as bench:
        job_id = await finished(bench)
        running = await bench.start("running")
        await running.report(logs=(log_line("still there"),))
        sweeper = bench.app.state.running.sweeper
        bench.clock.advance(86_000)
        await sweeper.run_once()
        assert (await bench.job(job_id))["dropped"] == []
        bench.clock.advance(500)
        await sweeper.run_once()
        assert (await bench.job(job_id))["dropped"] == ["logs"]
        assert not logs_of(bench, job_id).exists()
        for query in ({}, {"after": "0:0"}):
            assert (await bench.get(f"/jobs/{job_id}/logs", **query))["items"] == []
        assert (await rows_of(bench, job_id))["events"] > 20
        bench.clock.advance(2 * 86_400)
        await sweeper.run_once()
        assert (await bench.job(job_id))["dropped"] == ["logs", "events"]
        assert (await bench.get(f"/jobs/{job_id}/events"))["items"] == []
        assert len((await bench.get(f"/jobs/{job_id}/metrics"))["items"]) == 129, "of metrics nothing was said"
        assert [line["line"] for line in (await bench.get("/jobs/running/logs"))["items"]] == ["still there"]
        assert (await bench.job("running"))["dropped"] == []
        # What is said of the job from now on is kept.
        changed = await bench.client.patch(f"/api/v1/jobs/{job_id}", json={"labels": {"a": "b"}})
        assert changed.status_code == 200, changed.text
        await sweeper.run_once()
        assert [event["kind"] for event in (await bench.get(f"/jobs/{job_id}/events"))["items"]] == ["job.updated"]


async def test_what_the_sweep_does_is_counted(bench: Bench) -> None:
    from tests.integration.service.test_observability import scrape, value

    job_id = await finished(bench)
    before = await scrape(bench)
    await remove(bench, job_id, 204)
    assert value(await scrape(bench), "rubato_sweep_pending_jobs") == 1
    await sweep_all(bench)
    after = await scrape(bench)
    grown = {
        what: value(after, "rubato_swept_total", what=what) - value(before, "rubato_swept_total", what=what)
        for what in ("jobs", "metric_rows", "checkpoints", "log_files")
    }
    assert grown == {"jobs": 1, "metric_rows": 129, "checkpoints": 2, "log_files": 1}
    assert value(after, "rubato_sweep_pending_jobs") == 0


async def test_of_two_replicas_one_sweeps(bench: Bench) -> None:
    job_id = await finished(bench)
    await remove(bench, job_id, 204)
    await Sweeper(bench.context).run_once()
    with pytest.raises(sweep.LeaseLost):
        await Sweeper(replace(bench.context, holder="another")).run_once()


@pytest.fixture
def service(tmp_path: Path, database_url: str) -> Iterator[ServiceProcess]:
    environment = {"RUBATO_DATABASE_URL": database_url} if database_url else {}
    process = ServiceProcess(tmp_path / "home", **environment)
    process.start()
    yield process
    process.end()


async def test_a_service_that_is_killed_goes_on_at_its_next_start(service: ServiceProcess) -> None:
    async with service.client() as client:
        job_id = await submit(client, "digits")
        controller = await controller_of(client, service.agent(client), job_id)
        folder = service.home / "checkpoints" / job_id
        await train(controller, folder=folder)
        assert (await client.delete(f"/api/v1/jobs/{job_id}")).status_code == 204
        service.kill()
    service.start()
    async with service.client() as client:
        assert (await client.get(f"/api/v1/jobs/{job_id}")).status_code == 404, "an acknowledged deletion holds"
        assert (await client.delete(f"/api/v1/jobs/{job_id}")).status_code == 204
        scraper = bearer((service.home / "scraper-token").read_text().strip())
        while folder.exists() or (service.home / "logs" / job_id).exists():
            # Its own counters: each look takes a request, and the sweep goes on meanwhile.
            found = await client.get("/metrics", headers=scraper)
            assert "rubato_sweep_failures_total 0.0" in found.text
