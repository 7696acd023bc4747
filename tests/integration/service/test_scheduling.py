"""The scheduler through the real application, on both databases: what controllers are told, and what people see."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, select, text
from structlog.testing import capture_logs

from rubato.wire.cluster import NodeReport, Outcome, Result
from rubato.wire.codec import to_json
from service.ids import new_id
from service.models import Job
from service.scheduling.loop import LATE, WINDOW
from service.scheduling.observe import observe
from service.scheduling.sentences import UNSEEN
from tests.simulated_controller import SimulatedController, bearer, metric, one_node, training, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

DIGEST = "d" * 64
SUCCEEDED = Outcome(state="succeeded", result=Result(step=1, digest=DIGEST))


async def started(bench: Bench, name: str, count: int, **spec: Any) -> SimulatedController:
    controller = await bench.start(name, **spec)
    await controller.report(**training(count))
    return controller


async def test_a_controller_is_told_what_was_granted_and_the_rest_when_slots_are_free(bench: Bench) -> None:
    bench.agent.nodes = one_node(3)
    first = await started(bench, "first", 2, workers={"initial": 2, "min": 1, "max": 4})
    second = await started(bench, "second", 1)
    wished = await bench.post("/jobs/first/scale", 202, {"workers": 4})
    assert (wished["desired_workers"], wished["granted_workers"]) == (4, 2)
    await bench.schedule()
    assert (await first.desired()).workers == 2
    job = await bench.job("first")
    assert (job["granted_workers"], job["scheduling"]) == (2, "wants 4, has 2: 0 slots free, held by second")

    await second.report(outcome=SUCCEEDED)
    version = (await first.desired()).version
    await bench.schedule()
    told = await first.desired()
    assert (told.workers, told.version > version) == (3, True)
    granted = [item for item in (await bench.get("/jobs/first/events"))["items"] if item["kind"] == "job.granted"]
    assert [(item["data"]["from"], item["data"]["to"]) for item in granted] == [(2, 3)]
    assert granted[0]["message"] == "grows from 2 to 3 of the 4 it wants: slots were free."

    await bench.post("/jobs/first/scale", 202, {"workers": 1})
    await bench.schedule()
    assert (await first.desired()).workers == 1


async def test_an_elastic_job_takes_what_is_free_and_gives_back_to_one_that_waits(bench: Bench) -> None:
    bench.agent.nodes = one_node(4)
    elastic = await started(bench, "elastic", 4, workers={"initial": 1, "min": 1, "max": 4, "autoscale": "capacity"})
    assert elastic.acquired is not None
    assert elastic.acquired.desired.workers == 4
    await bench.schedule()
    assert "3 more from free slots (autoscale: capacity)" in (await bench.job("elastic"))["scheduling"]

    bench.clock.advance(1)
    await bench.submit("small", workers={"initial": 2, "min": 2, "max": 2})
    await bench.schedule()
    assert (await elastic.desired()).workers == 2
    waiting = await bench.job("small")
    assert waiting["queue"] == {"position": 1, "reason": "needs 2 slots, free 0; elastic gives slots back for it"}
    await bench.schedule()
    assert (await bench.job("small"))["status"] == "queued", "nothing is granted before it is free"
    await elastic.report(**training(2))
    await bench.schedule()
    assert (await bench.job("small"))["status"] == "starting"

    small = await bench.controller_of((await bench.job("small"))["id"])
    await small.acquire()
    await small.report(outcome=SUCCEEDED, **training(0))
    await bench.schedule()
    assert (await elastic.desired()).workers == 2, "its count changed a moment ago"
    assert "may grow again at" in (await bench.job("elastic"))["scheduling"]
    bench.clock.advance(31)
    await elastic.report()
    await bench.schedule()
    assert (await elastic.desired()).workers == 4


async def test_a_less_important_job_is_paused_with_a_checkpoint_and_comes_back(bench: Bench) -> None:
    bench.agent.nodes = one_node(2)
    low = await started(bench, "low", 2, workers={"initial": 2, "min": 2, "max": 2})
    await bench.submit("high", workers={"initial": 1, "min": 1, "max": 1}, scheduling={"priority": 90})
    await bench.schedule()
    assert (await bench.job("low"))["status"] == "running", "it has hardly begun"
    bench.clock.advance(121)
    await low.report(step=7)
    await bench.schedule()
    job = await bench.job("low")
    assert (job["status"], job["reason"]) == ("pausing", "preempted")
    assert "is paused with a checkpoint for high (priority 90)" in job["scheduling"]
    told = await low.desired()
    assert (told.run, told.force) == ("pause", False)
    await bench.schedule()
    assert (await bench.job("high"))["status"] == "queued"

    await low.report(outcome=Outcome(state="paused"))
    job = await bench.job("low")
    assert (job["status"], job["reason"], job["granted_workers"]) == ("queued", "preempted", 0)
    await bench.schedule()
    assert ((await bench.job("high"))["status"], (await bench.job("low"))["status"]) == ("starting", "queued")
    high = await bench.controller_of((await bench.job("high"))["id"])
    await high.acquire()
    await high.report(outcome=SUCCEEDED)
    await bench.schedule()
    again = await bench.controller_of(low.job_id)
    acquired = await again.acquire()
    assert (acquired.attempt, acquired.resume_step, acquired.desired.run) == (2, 7, "run")
    assert (await bench.job("low"))["reason"] is None


async def test_a_pause_or_cancel_of_its_user_wins_over_a_preemption(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    low = await started(bench, "low", 1)
    await bench.submit("high", scheduling={"priority": 90})
    bench.clock.advance(121)
    await low.report()
    await bench.schedule()
    assert (await bench.job("low"))["status"] == "pausing"
    await bench.post("/jobs/low/pause", 202)
    await low.report(outcome=Outcome(state="paused"))
    assert (await bench.job("low"))["status"] == "paused"
    await bench.post("/jobs/low/cancel", 202)
    job = await bench.job("low")
    assert (job["status"], job["reason"]) == ("cancelled", "cancelled_by_user")


async def test_max_duration_counts_what_it_held_slots_and_nothing_else(bench: Bench) -> None:
    job = await bench.submit("limited", limits={"max_duration": "100s"})
    bench.clock.advance(500)  # in the queue
    await bench.schedule()
    controller = await bench.controller_of(job["id"])
    await controller.acquire()
    await controller.report()
    bench.clock.advance(60)
    await controller.report()
    await bench.post("/jobs/limited/pause", 202)
    await controller.report(outcome=Outcome(state="paused"))
    bench.clock.advance(1000)  # paused
    await bench.post("/jobs/limited/resume", 202)
    await bench.schedule()
    again = await bench.controller_of(job["id"])
    await again.acquire()
    await again.report()
    bench.clock.advance(39)
    await again.report()
    await bench.schedule()
    assert (await bench.job("limited"))["status"] == "running"
    bench.clock.advance(2)
    await again.report()
    await bench.schedule()
    stopping = await bench.job("limited")
    assert (stopping["status"], stopping["reason"]) == ("stopping", "deadline_exceeded")
    assert (await again.desired()).run == "stop"
    await again.report(outcome=Outcome(state="cancelled"))
    final = await bench.job("limited")
    assert (final["status"], final["reason"]) == ("cancelled", "deadline_exceeded")
    kinds = [item["kind"] for item in (await bench.get("/jobs/limited/events"))["items"]]
    assert kinds.count("job.deadline_exceeded") == 1


async def test_goodput_gives_back_a_worker_that_brings_nothing(bench: Bench) -> None:
    bench.agent.nodes = one_node(4)
    spec = {"initial": 1, "min": 1, "max": 4, "autoscale": "goodput"}
    controller = await started(bench, "measured", 1, workers=spec)
    assert (await controller.desired()).workers == 1, "nothing is known yet"

    async def train(count: int, rate: float, first: int) -> None:
        rows = tuple(metric(first + step, samples_per_second=rate) for step in range(30))
        rows = tuple(type(row)(**{**vars(row), "workers": count}) for row in rows)
        await controller.report(step=first + 30, metrics=rows, **training(count))
        bench.clock.advance(31)
        await controller.report()
        await bench.schedule()

    await train(1, 100.0, 1)
    assert (await controller.desired()).workers == 2
    await train(2, 105.0, 31)
    assert (await controller.desired()).workers == 1
    assert "brought too little" in (await bench.job("measured"))["scheduling"]
    await train(1, 100.0, 61)
    await train(1, 100.0, 91)
    assert (await controller.desired()).workers == 1, "it was tried"
    shown = await bench.get("/jobs/measured/explain")
    assert set(shown["rates"]) == {"1", "2"}


async def test_what_others_hold_of_ray_is_told_and_not_counted(bench: Bench) -> None:
    (node,) = bench.agent.nodes
    controller = await bench.start("wide", workers={"initial": 4, "min": 1, "max": 4})
    two = (worker(1), worker(2))
    waiting = replace(worker(3), pid=None, rank=None, node="", state="starting")
    await controller.report(workers=2, joining=1, worker_reports=(*two, waiting))
    bench.agent.nodes = (replace(node, cpu_used=node.cpu),)
    await bench.schedule()
    assert (await controller.desired()).workers == 4, "Ray may have room in a moment"
    kept = (await bench.job("wide"))["scheduling"]
    told = (
        f"Ray has no place for 2 more workers yet: others than Rubato hold {node.cpu - 2:g} of {node.cpu:g} CPU slots"
    )
    assert (await bench.get("/jobs/wide/explain"))["because"] == f"{kept}; {told}"
    bench.agent.nodes = (replace(node, cpu_used=2),)
    await bench.agent.sync()
    assert (await bench.get("/jobs/wide/explain"))["because"] == kept


async def test_lost_slots_are_not_granted_any_more_and_come_back_with_the_node(bench: Bench) -> None:
    two = (*one_node(2), NodeReport(node_id="node-2", address="127.0.0.2", cpu=2, hostname="node-2"))
    bench.agent.nodes = two
    controller = await bench.start("wide", workers={"initial": 4, "min": 1, "max": 4})
    four = (worker(1), worker(2), worker(3, "node-2"), worker(4, "node-2"))
    await controller.report(workers=4, worker_reports=four)
    bench.agent.nodes = two[:1]
    await controller.report(workers=2, worker_reports=four[:2])
    await bench.schedule()
    assert (await controller.desired()).workers == 2
    job = await bench.job("wide")
    assert job["scheduling"] == "wants 4, is granted 2: the cluster has lost slots"
    bench.agent.nodes = two
    await bench.schedule()
    assert (await controller.desired()).workers == 4


async def test_the_queue_page_by_page_and_who_holds_the_slots(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    await started(bench, "holder", 1, scheduling={"preemptible": False})
    for index in range(5):
        bench.clock.advance(1)
        await bench.submit(f"job-{index}", scheduling={"priority": 50 + 10 * (index == 4)})
    await bench.schedule()
    whole = await bench.get("/queue")
    assert [(item["position"], item["name"]) for item in whole["items"]] == [
        (1, "job-4"),
        (2, "job-0"),
        (3, "job-1"),
        (4, "job-2"),
        (5, "job-3"),
    ]
    assert whole["items"][0]["because"] == "needs 1 slot, free 0, held by holder"
    assert whole["items"][1]["because"] == "waits behind job-4, which needs 1 slot"
    assert [(item["name"], item["granted_workers"]) for item in whole["running"]] == [("holder", 1)]
    pages: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = await bench.get("/queue", limit=2, **cursor)
        pages += page["items"]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert pages == whole["items"]
    for wrong in ("nonsense", "~", "2026-01-31T12:00:00Z~x", f"2026-01-31T12:00:00~{pages[0]['job_id']}", "\x00~job_"):
        await bench.get("/queue", 422, cursor=wrong)
    shown = await bench.get("/jobs/job-2/explain")
    assert (shown["position"], shown["because"]) == (4, "waits behind job-4, which needs 1 slot")


async def test_a_page_goes_on_where_the_last_one_ended_though_its_last_job_moved(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    for index in range(6):
        bench.clock.advance(1)
        await bench.submit(f"job-{index}")
    first = await bench.get("/queue", limit=3)
    assert [item["name"] for item in first["items"]] == ["job-0", "job-1", "job-2"]
    for priority in (90, 10):
        response = await bench.client.patch("/api/v1/jobs/job-2", json={"scheduling": {"priority": priority}})
        assert response.status_code == 200, response.text
        rest = (await bench.get("/queue", limit=3, cursor=first["next_cursor"]))["items"]
        assert [item["name"] for item in rest] == ["job-3", "job-4", "job-5"], priority
    await bench.post("/jobs/job-2/cancel", 202)
    assert len((await bench.get("/queue", limit=3, cursor=first["next_cursor"]))["items"]) == 3


async def test_age_outweighs_priority_in_the_end(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    holder = await started(bench, "holder", 1, scheduling={"preemptible": False})
    await bench.submit("old", scheduling={"priority": 0})
    bench.clock.advance(91 * 60)
    await bench.submit("young", scheduling={"priority": 90})
    await holder.report()
    await bench.schedule()
    assert [item["name"] for item in (await bench.get("/queue"))["items"]] == ["old", "young"]


async def test_a_round_that_changes_nothing_writes_nothing(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    await started(bench, "holder", 1)
    for index in range(3):
        await bench.submit(f"job-{index}")
    await bench.schedule()
    await bench.schedule()
    before = [(item["name"], item["updated_at"]) for item in (await bench.get("/jobs"))["items"]]
    writes = 0
    write = bench.context.database.write

    def counted() -> Any:
        nonlocal writes
        writes += 1
        return write()

    bench.context.database.write = counted  # type: ignore[method-assign]
    bench.clock.advance(1)
    for _ in range(3):
        await bench.loop.run_once()
    assert writes == 0
    bench.context.database.write = write  # type: ignore[method-assign]
    assert [(item["name"], item["updated_at"]) for item in (await bench.get("/jobs"))["items"]] == before


async def _fill_queue(bench: Bench, count: int) -> None:
    """Many queued jobs, written at once: copies of one that was submitted."""
    template = await bench.submit("template", workers={"initial": 1, "min": 1, "max": 1})
    async with bench.context.database.write() as session:
        columns = [column for column in Job.__table__.columns if column.name not in ("id", "name")]
        row = (await session.execute(select(*columns).where(Job.id == template["id"]))).mappings().one()
        rows = [{**row, "id": new_id("job", bench.clock()), "name": f"many-{index}"} for index in range(count)]
        await session.execute(insert(Job), rows)


async def test_a_round_reads_the_head_of_a_long_queue_and_no_more(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    await started(bench, "holder", 1, scheduling={"preemptible": False})
    await _fill_queue(bench, 500)
    await bench.schedule()
    now = bench.clock()
    async with bench.context.database.read() as session:
        seen = await observe(session, bench.context, now, WINDOW)
    assert len(seen.view.waiting) == WINDOW
    assert seen.has_more
    assert all(position is not None for position, _ in list(seen.told.values())[1:]), "all of the head were told"
    page = await bench.get("/queue", limit=200)
    assert page["items"][0]["because"] == "needs 1 slot, free 0, held by holder"
    assert page["items"][WINDOW]["because"] == UNSEEN
    assert page["items"][199]["position"] == 200
    last = (await bench.get("/queue", limit=200, cursor=page["next_cursor"]))["items"][-1]
    assert (last["position"], (await bench.get(f"/jobs/{last['job_id']}/explain"))["position"]) == (400, 400)
    if bench.context.database.is_sqlite:
        async with bench.context.database.read() as session:
            plan = await session.execute(
                text("EXPLAIN QUERY PLAN SELECT id FROM jobs WHERE status = 'queued' ORDER BY ranked_at, id LIMIT 65")
            )
            steps = [row.detail for row in plan]
        assert any("ix_jobs_queue" in step for step in steps), steps
        assert not any("TEMP B-TREE" in step for step in steps), "the index holds the order"

    # Who was told a position and is overtaken by more important ones has none any more.
    overtaken = page["items"][WINDOW - 1]["name"]
    await bench.submit("urgent", scheduling={"priority": 99})
    await bench.schedule()
    assert (await bench.job(overtaken))["queue"] == {"position": None, "reason": UNSEEN}
    assert (await bench.job("urgent"))["queue"]["position"] == 1


async def test_jobs_that_fit_nowhere_do_not_hide_those_behind(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    for index in range(WINDOW + 1):
        await bench.submit(f"huge-{index}", workers={"initial": 9, "min": 9, "max": 9})
    bench.clock.advance(1)
    await bench.submit("small")
    await bench.schedule()
    assert (await bench.job("small"))["status"] == "starting"


async def test_a_wait_ends_in_time_also_far_back_in_the_queue(bench: Bench) -> None:
    bench.agent.nodes = one_node(1)
    holder = await started(bench, "holder", 1, scheduling={"preemptible": False})
    await _fill_queue(bench, 100)
    await bench.submit("impatient", limits={"queue_timeout": 10})
    bench.clock.advance(11)
    await holder.report()
    await bench.schedule()
    job = await bench.job("impatient")
    assert (job["status"], job["reason"]) == ("failed", "queue_timeout")


async def test_a_stored_spec_that_cannot_be_decided_about_does_not_stop_the_others(bench: Bench) -> None:
    """As an earlier release stored them, which had no upper bounds; and lapses go on while a plan fails."""
    bench.agent.nodes = one_node(8)
    await bench.submit("vast", batch={"global_size": 30_000, "num_microbatches": 30_000})
    await bench.submit("tiny")
    await bench.submit("odd")
    await bench.submit("good")
    for name, section, changed in (
        ("vast", "batch", {"global_size": 10**30, "num_microbatches": 10**30}),
        ("tiny", "resources_per_worker", {"cpu": 3e-308}),
        ("odd", "batch", {"num_microbatches": "many"}),
    ):
        async with bench.context.database.write() as session:
            job = (await session.scalars(select(Job).where(Job.name == name))).one()
            job.spec = {**job.spec, section: {**job.spec[section], **changed}}
    await bench.schedule()
    assert (await bench.job("good"))["status"] == "starting"
    assert (await bench.job("tiny"))["status"] == "starting"
    assert "is passed over" in (await bench.job("odd"))["scheduling"]


async def test_a_plan_that_fails_takes_back_no_lapse_and_readyz_tells_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await started(bench, "first", 1, limits={"max_duration": 60})

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("a bug of the scheduler")

    monkeypatch.setattr("service.scheduling.loop.decide_around", fail)
    bench.clock.advance(59)
    await controller.report(**training(1))
    bench.clock.advance(2)
    await bench.agent.sync()
    with pytest.raises(ZeroDivisionError):
        await bench.loop.run_once()
    assert (await bench.job("first"))["status"] == "stopping"
    checks = {check["name"]: check for check in (await bench.client.get("/readyz")).json()["checks"]}
    assert not checks["scheduler"]["ok"]
    assert "its last round failed (ZeroDivisionError)" in checks["scheduler"]["detail"]
    monkeypatch.undo()
    bench.clock.advance(1)  # until then the answer is that of before
    await bench.loop.run_once()
    checks = {check["name"]: check for check in (await bench.client.get("/readyz")).json()["checks"]}
    assert checks["scheduler"]["ok"]


async def test_a_round_that_waits_too_long_for_its_turn_judges_nothing_and_says_so_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.submit()
    await bench.agent.sync()
    plan = bench.loop._plan

    async def plan_slowly(*args: Any) -> Any:
        planned = await plan(*args)
        bench.clock.advance(LATE.total_seconds() + 1)
        return planned

    with monkeypatch.context() as patched, capture_logs() as lines:
        patched.setattr(bench.loop, "_plan", plan_slowly)
        for _ in range(3):
            await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "queued"
    assert [line["late_s"] for line in lines if line["event"] == "scheduling_round_late"] == [LATE.total_seconds() + 1]
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "starting"


async def test_what_has_nan_is_kept_with_null_in_its_place(bench: Bench) -> None:
    controller = await bench.start()
    report = controller.next_report(
        events=(controller.event("worker.ready", deep=[1.0, {"loss": float("nan")}], step=7),),
        worker_reports=(replace(worker(1), microbatches=3, microbatch_seconds=float("nan")),),
    )
    headers = {**bearer(controller.acquired.token), "Content-Type": "application/json"}
    url = f"/cluster/v1/jobs/{controller.job_id}/report"
    sent = await bench.client.post(url, content=json.dumps(to_json(report)), headers=headers)
    assert sent.status_code == 200, sent.text
    (kept,) = [e for e in (await bench.get("/jobs/digits/events"))["items"] if e["kind"] == "worker.ready"]
    assert kept["data"]["deep"] == [1.0, {"loss": None}]
    (shown,) = (await bench.get("/jobs/digits/workers"))["items"]
    assert (shown["microbatches"], shown["microbatch_seconds"]) == (3, None)


async def test_a_job_that_goes_back_to_the_queue_between_two_looks_is_seen_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = await started(bench, "first", 1)
    async with bench.context.database.read() as session:
        execute = session.execute

        async def with_a_requeue(statement: Any, **options: Any) -> Any:
            rows = await execute(statement, **options)
            if "LEFT OUTER JOIN attempts" in str(statement):
                await controller.report(outcome=Outcome(state="requeue"))
            return rows

        monkeypatch.setattr(session, "execute", with_a_requeue)
        seen = await observe(session, bench.context, bench.clock(), WINDOW)
    assert (await bench.job("first"))["status"] == "queued"
    assert [one.job_id for one in (*seen.view.placed, *seen.view.waiting)] == [controller.job_id]
