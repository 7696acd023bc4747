"""A job from submit to its end, through the real application, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from rubato.wire.cluster import Failure, Outcome, OutcomeState, Result
from rubato.wire.codec import to_json
from service import clusters
from service.clock import to_rfc3339
from service.logs import LogPosition
from tests.simulated_controller import bearer, log_line, metric, one_node, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

DIGEST = "d" * 64


async def test_submit_run_scale_succeed(bench: Bench) -> None:
    job = await bench.submit(workers={"initial": 2, "min": 1, "max": 4})
    assert (job["status"], job["desired_workers"], job["queue"]) == (
        "queued",
        2,
        {"position": None, "reason": "waits for the scheduler to look at it, in the order of the queue"},
    )
    await bench.loop.run_once()
    waiting = await bench.job("digits")
    assert waiting["queue"]["position"] == 1
    assert "no cluster is online" in waiting["queue"]["reason"]

    await bench.schedule()
    assert (await bench.job(job["id"]))["status"] == "starting"
    controller = await bench.controller_of(job["id"])
    acquired = await controller.acquire()
    assert (acquired.attempt, acquired.job_name, acquired.desired.workers) == (1, "digits", 2)
    assert acquired.storage == bench.settings.storage

    await controller.report(state="starting", phase="forming", joining=2)
    assert (await bench.job(job["id"]))["joining"] == 2
    await controller.report(
        state="running",
        phase="training",
        joining=0,
        step=2,
        worker_reports=(worker(1), worker(2)),
        metrics=(metric(1, 0.9), metric(2, 0.8, accuracy=0.5)),
        logs=(log_line("hello"), log_line("world", rank=1)),
        events=(controller.event("generation.formed", step=1, generation=1, cause="start", workers=2),),
    )
    running = await bench.job(job["id"])
    assert (running["status"], running["step"]) == ("running", 2)
    assert running["metrics"] == {"loss": 0.8, "accuracy": 0.5}
    workers = (await bench.get(f"/jobs/{job['id']}/workers"))["items"]
    assert [(item["worker_id"], item["pid"]) for item in workers] == [("w1", 1001), ("w2", 1002)]

    scaled = await bench.post("/jobs/digits/scale", 202, {"workers": 4})
    assert scaled["desired_workers"] == 4
    await bench.schedule()
    desired = await controller.desired(after=acquired.desired.version)
    assert (desired.workers, desired.run) == (4, "run")
    assert desired.version > acquired.desired.version
    assert (await bench.post("/jobs/digits/scale", 200, {"workers": 4}))["desired_workers"] == 4

    await controller.report(
        step=3, metrics=(metric(3, 0.7),), outcome=Outcome(state="succeeded", result=Result(step=3, digest=DIGEST))
    )
    final = await bench.job(job["id"])
    assert (final["status"], final["result"], final["workers"]) == ("succeeded", {"step": 3, "digest": DIGEST}, 0)
    assert final["finished_at"] is not None
    assert (await bench.get(f"/jobs/{job['id']}/workers"))["items"] == []
    assert (await bench.agent.sync()).run == ()
    assert (await controller.try_desired()).json()["code"] == "fenced"


async def test_event_positions_have_no_gap_and_pages_join(bench: Bench) -> None:
    controller = await bench.start()
    for step in range(1, 6):
        await controller.report(step=step, events=(controller.event("worker.ready", step=step),))
    await bench.post("/jobs/digits/scale", 202, {"workers": 2})
    everything = (await bench.get("/jobs/digits/events"))["items"]
    assert [item["position"] for item in everything] == list(range(1, len(everything) + 1))
    kinds = [item["kind"] for item in everything]
    assert kinds[:4] == ["job.submitted", "job.status", "attempt.acquired", "job.status"]
    assert kinds.count("worker.ready") == 5
    pages = []
    after = 0
    while page := (await bench.get("/jobs/digits/events", after=after, limit=3))["items"]:
        pages += page
        after = page[-1]["position"]
    assert pages == everything


async def test_the_same_batch_twice_is_stored_once(bench: Bench) -> None:
    controller = await bench.start()
    report = controller.next_report(
        step=1, events=(controller.event("worker.ready"),), metrics=(metric(1),), logs=(log_line("once"),)
    )
    first = await controller.send(report)
    before = await _everything(bench)
    second = await controller.send(report)
    assert (first.status_code, second.status_code) == (200, 200)
    assert second.json()["ack"] == report.batch
    assert await _everything(bench) == before


async def test_batches_out_of_order_are_refused(bench: Bench) -> None:
    controller = await bench.start()
    controller.batch += 1
    response = await controller.send(controller.next_report())
    assert response.status_code == 422
    assert response.json()["expected_batch"] == 2


async def test_a_step_trained_again_has_one_row_with_a_new_position(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(step=3, metrics=(metric(1, 0.9), metric(2, 0.8), metric(3, 0.7)))
    await controller.report(step=2, metrics=(metric(2, 0.79),))
    rows = (await bench.get("/jobs/digits/metrics"))["items"]
    assert [(row["step"], row["position"], row["values"]["loss"]) for row in rows] == [
        (1, 1, 0.9),
        (3, 3, 0.7),
        (2, 4, 0.79),
    ]
    tail = (await bench.get("/jobs/digits/metrics", after=3, names="loss"))["items"]
    assert [row["step"] for row in tail] == [2]


async def test_numbers_that_json_does_not_know_become_null(bench: Bench) -> None:
    controller = await bench.start()
    report = controller.next_report(
        step=1, metrics=(metric(1, math.nan, big=math.inf),), logs=(log_line("a\x00b\ud800"),)
    )
    assert controller.acquired is not None
    response = await bench.client.post(
        f"/cluster/v1/jobs/{controller.job_id}/report",
        content=json.dumps(to_json(report)),
        headers=bearer(controller.acquired.token),
    )
    assert response.status_code == 200, response.text
    row = (await bench.get("/jobs/digits/metrics"))["items"][0]
    assert row["values"] == {"loss": None, "big": None}
    assert (await bench.get("/jobs/digits/logs"))["items"][0]["line"] == "a\ufffdb\ufffd"


async def test_failure_is_kept_with_its_place(bench: Bench) -> None:
    controller = await bench.start()
    failure = Failure(
        failure_class="user",
        reason="user_code_error",
        message="train.py raised ValueError in step 7; mend it and submit again.",
        rank=1,
        step=7,
        traceback="Traceback ...",
        last_output=("one", "two"),
    )
    await controller.report(step=6, outcome=Outcome(state="failed", failure=failure))
    job = await bench.job("digits")
    assert (job["status"], job["reason"]) == ("failed", "user_code_error")
    assert job["failure"]["rank"] == 1
    assert job["failure"]["last_output"] == ["one", "two"]
    assert "Read the traceback" in job["failure"]["advice"]
    assert job["message"] == failure.message
    printed = {"traceback", "last_output"}
    (listed,) = (await bench.get("/jobs"))["items"]
    assert listed["failure"] == {name: value for name, value in job["failure"].items() if name not in printed}
    assert printed <= job["failure"].keys()
    for verb in ("scale", "pause", "resume", "cancel", "checkpoint"):
        body = {"workers": 2} if verb == "scale" else None
        assert (await bench.post(f"/jobs/digits/{verb}", 409, body))["code"] == "job_final"


async def test_pause_and_resume_make_a_new_attempt(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(step=10)
    assert (await bench.post("/jobs/digits/pause", 202))["status"] == "pausing"
    assert (await bench.post("/jobs/digits/pause", 200))["status"] == "pausing"
    assert (await bench.post("/jobs/digits/resume", 409))["code"] == "conflict"
    assert (await controller.desired()).run == "pause"
    last = controller.next_report(outcome=Outcome(state="paused"))
    assert (await controller.send(last)).status_code == 200
    assert (await controller.send(last)).json()["ack"] == last.batch, "the reply may get lost: the same batch again"
    paused = await bench.job("digits")
    assert (paused["status"], paused["workers"]) == ("paused", 0)
    assert (await bench.agent.sync()).run == ()

    assert (await bench.post("/jobs/digits/resume", 202))["status"] == "queued"
    await bench.schedule()
    successor = await bench.controller_of(controller.job_id)
    acquired = await successor.acquire()
    assert (acquired.attempt, acquired.resume_step) == (2, 10)


async def test_without_a_controller_pause_and_cancel_need_nobody(bench: Bench) -> None:
    await bench.submit("first")
    assert (await bench.post("/jobs/first/pause", 202))["status"] == "paused"
    assert (await bench.post("/jobs/first/cancel", 202))["status"] == "cancelled"
    assert (await bench.post("/jobs/first/cancel", 200))["status"] == "cancelled"
    await bench.submit("second")
    await bench.schedule()
    assert (await bench.job("second"))["status"] == "starting"
    late = await bench.controller_of((await bench.job("second"))["id"])
    assert (await bench.post("/jobs/second/cancel", 202))["status"] == "cancelled"
    refused = await late.try_acquire()
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")


@pytest.mark.parametrize("state", ["succeeded", "failed"])
async def test_a_cancelled_job_has_neither_result_nor_failure(bench: Bench, state: OutcomeState) -> None:
    controller = await bench.start()
    await bench.post("/jobs/digits/cancel", 202)
    failure = Failure(failure_class="user", reason="user_code_error", message="It broke.")
    result = Result(step=1, digest=DIGEST)
    parts = {"result": result} if state == "succeeded" else {"failure": failure}
    await controller.report(step=1, outcome=Outcome(state=state, **parts))
    job = await bench.job("digits")
    assert (job["status"], job["reason"], job["result"], job["failure"]) == (
        "cancelled",
        "cancelled_by_user",
        None,
        None,
    )
    assert job["message"] == "cancelled at step 1"


async def test_an_acknowledged_cancel_wins(bench: Bench) -> None:
    controller = await bench.start()
    assert (await bench.post("/jobs/digits/cancel", 202, {"force": False}))["status"] == "stopping"
    assert (await controller.desired()).run == "stop"
    assert (await bench.post("/jobs/digits/cancel", 202, {"force": True}))["status"] == "stopping"
    assert (await controller.desired()).force is True
    await controller.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest=DIGEST)))
    job = await bench.job("digits")
    assert (job["status"], job["reason"]) == ("cancelled", "cancelled_by_user")


async def test_a_cancel_may_say_how_long_the_workers_may_take(bench: Bench) -> None:
    controller = await bench.start()
    for wrong in (-1, "soon", 1e9):
        await bench.post("/jobs/digits/cancel", 422, {"grace_seconds": wrong})
    await bench.post("/jobs/digits/cancel", 202)
    first = await controller.desired()
    assert (first.run, first.grace_s) == ("stop", None)
    await bench.post("/jobs/digits/cancel", 202, {"grace_seconds": 2.5})
    assert (await controller.desired(after=first.version)).grace_s == 2.5
    await bench.post("/jobs/digits/cancel", 200, {"grace_seconds": 2.5})
    await bench.post("/jobs/digits/cancel", 200)
    assert (await controller.desired()).grace_s == 2.5
    events = (await bench.get("/jobs/digits/events"))["items"]
    assert [event["message"] for event in events if event["kind"] == "job.cancel_requested"] == [
        "admin asked to cancel the job with the grace of its spec.",
        "admin asked to cancel the job within 2.5 s.",
    ]


async def test_requeue_waits_for_slots_again(bench: Bench) -> None:
    controller = await bench.start()
    failure = Failure(failure_class="infrastructure", reason="capacity_lost", message="The nodes are gone.")
    await controller.report(state="recovering", outcome=Outcome(state="requeue", failure=failure))
    job = await bench.job("digits")
    assert (job["status"], job["attempt"]) == ("queued", 1)
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "starting"


async def test_gang_start_waits_for_all_and_says_why(bench: Bench) -> None:
    bench.agent.nodes = one_node(4)
    holder = await bench.start("holder", workers={"initial": 2, "min": 1, "max": 4})
    await holder.report(worker_reports=(worker(1), worker(2)))
    await bench.submit("large", workers={"initial": 4, "min": 3, "max": 8})
    await bench.submit("small", scheduling={"preemptible": False})
    await bench.submit("huge", workers={"initial": 9, "min": 9, "max": 9})
    await bench.schedule()
    queue = (await bench.get("/cluster"))["queue"]
    assert [(item["name"], item["position"]) for item in queue] == [("large", 1), ("small", 2), ("huge", 3)]
    assert queue[0]["reason"] == "needs 3 slots, free 2, held by holder"
    assert queue[1]["reason"].startswith("waits behind large, which needs 3 slots; it may not go first")
    assert "the whole cluster has 4" in queue[2]["reason"]
    await holder.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest=DIGEST)))
    await bench.schedule()
    statuses = {name: (await bench.job(name))["status"] for name in ("large", "small", "huge")}
    assert statuses == {"large": "starting", "small": "starting", "huge": "queued"}
    assert (await bench.job("large"))["granted_workers"] == 3, "small needed the fourth slot"


async def test_of_a_long_queue_the_head_is_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "SHOWN_OF_QUEUE", 2)
    for name in ("first", "second", "third"):
        await bench.submit(name, workers={"initial": 99, "min": 99, "max": 99})
    await bench.schedule()
    assert [item["name"] for item in (await bench.get("/cluster"))["queue"]] == ["first", "second"]


async def test_queue_timeout_fails_the_job_with_its_reason(bench: Bench) -> None:
    await bench.submit("huge", workers={"initial": 99, "min": 99, "max": 99}, limits={"queue_timeout": "60s"})
    await bench.schedule()
    bench.clock.advance(61)
    await bench.schedule()
    job = await bench.job("huge")
    assert (job["status"], job["reason"]) == ("failed", "unschedulable")
    assert "lower workers.min" in job["message"]
    assert job["failure"]["message"] == job["message"]


async def test_logs_page_filter_and_tail(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(logs=tuple(log_line(f"line {index}", rank=index % 2) for index in range(10)))
    await controller.report(logs=(log_line("last"),))
    assert [item["line"] for item in (await bench.get("/jobs/digits/logs", tail=2))["items"]] == ["line 9", "last"]
    odd = (await bench.get("/jobs/digits/logs", rank="1", tail=2))["items"]
    assert [item["line"] for item in odd] == ["line 7", "line 9"]
    first = await bench.get("/jobs/digits/logs", after="0:0", limit=4)
    assert [item["line"] for item in first["items"]] == [f"line {index}" for index in range(4)]
    rest = await bench.get("/jobs/digits/logs", after=first["next"])
    assert [item["line"] for item in rest["items"]] == [f"line {index}" for index in range(4, 10)] + ["last"]
    assert (await bench.get("/jobs/digits/logs", after=rest["next"]))["items"] == []
    found = (await bench.get("/jobs/digits/logs", q="LINE 3"))["items"]
    assert [item["line"] for item in found] == ["line 3"]


async def test_logs_of_a_time_and_later(bench: Bench) -> None:
    controller = await bench.start()
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    lines = [replace(log_line(f"at {i}"), time=to_rfc3339(noon + timedelta(minutes=i))) for i in range(30)]
    await controller.report(logs=tuple(lines))

    async def at(**query: Any) -> list[str]:
        return [item["line"] for item in (await bench.get("/jobs/digits/logs", **query))["items"]]

    assert (
        await at(since="2026-01-31T12:27:00Z")
        == await at(since="2026-01-31T13:27:00+01:00")
        == [
            "at 27",
            "at 28",
            "at 29",
        ]
    )
    assert await at(since="2026-01-31T12:20:00Z", tail=2) == ["at 28", "at 29"]
    assert await at(since="2026-01-31T12:28:00Z", tail=5) == ["at 28", "at 29"]
    first = await bench.get("/jobs/digits/logs", since="2026-01-31T12:25:00Z", limit=3)
    assert ([item["line"] for item in first["items"]], first["has_more"]) == (["at 25", "at 26", "at 27"], True)
    rest = await bench.get("/jobs/digits/logs", since="2026-01-31T12:25:00Z", after=first["next"])
    assert ([item["line"] for item in rest["items"]], rest["has_more"]) == (["at 28", "at 29"], False)
    assert await at(since="2026-02-01T00:00:00Z") == []
    for bad in ("yesterday", "2026-01-31T12:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00"):
        refused = await bench.client.get("/api/v1/jobs/digits/logs", params={"since": bad})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request"), bad


async def _everything(bench: Bench) -> list[object]:
    return [await bench.get(f"/jobs/digits/{part}") for part in ("events", "metrics", "logs", "attempts")]


async def test_a_scale_beyond_the_cluster_is_taken_and_explained(bench: Bench) -> None:
    await bench.start(workers={"initial": 1, "min": 1, "max": 20})
    job = await bench.post("/jobs/digits/scale", 202, {"workers": 20})
    assert (job["desired_workers"], job["message"]) == (
        20,
        "20 workers are wanted, and the cluster has slots for 8; the rest join when there are more",
    )


async def test_searches_through_logs_hold_up_no_report(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    await controller.report(logs=(log_line("first"),))
    released, searching, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    def search(*_: Any) -> tuple[list[Any], LogPosition]:
        loop.call_soon_threadsafe(searching.set)
        assert released.wait(60)
        return [], LogPosition(0, 0)

    monkeypatch.setattr(bench.context.logs, "read", search)
    url = f"/api/v1/jobs/{controller.job_id}/logs"
    searches = [asyncio.create_task(bench.client.get(url, params={"after": "0:0"})) for _ in range(40)]
    try:
        await asyncio.wait_for(searching.wait(), 30)
        await asyncio.wait_for(controller.report(logs=(log_line("second"),)), 30)
    finally:
        released.set()
        found = await asyncio.gather(*searches)
    assert {one.status_code for one in found} == {200}
    monkeypatch.undo()
    kept = (await bench.client.get(url, params={"after": "0:0"})).json()["items"]
    assert [one["line"] for one in kept] == ["first", "second"]
