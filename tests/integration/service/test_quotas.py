"""Quotas of projects, and jobs that go first and make way, on the databases."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from rubato.wire.cluster import Outcome, Result
from service import jobs
from service.scheduling import loop
from tests.callers import an_admin
from tests.integration.service.test_people import make_user
from tests.integration.service.test_removal import blocked_or_done
from tests.simulated_controller import one_node, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio


async def quota(bench: Bench, project: str = "default", expect: int = 200, **limits: Any) -> dict[str, Any]:
    response = await bench.client.patch(f"/api/v1/projects/{project}", json={"quota": limits})
    assert response.status_code == expect, response.text
    return response.json()


def workers(count: int) -> dict[str, int]:
    return {"initial": count, "min": count, "max": count}


async def succeed(controller: SimulatedController) -> None:
    await controller.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest="d")))


async def test_an_admin_sets_what_a_project_may_use_and_everybody_in_it_sees_it(bench: Bench) -> None:
    none = {"max_slots": None, "max_queued": None, "max_priority": None}
    assert (await bench.get("/projects/default"))["quota"] == none
    changed = await quota(bench, max_slots=4, max_queued=2)
    assert changed["quota"] == {**none, "max_slots": 4, "max_queued": 2}
    assert (await quota(bench, max_queued=None, max_priority=70))["quota"] == {
        **none,
        "max_slots": 4,
        "max_priority": 70,
    }
    await bench.start(workers={"initial": 3, "min": 1, "max": 4})
    await bench.submit("second", workers={"initial": 3, "min": 3, "max": 3})
    async with await make_user(bench, "ada", default="viewer") as ada, await make_user(bench, "eve") as eve:
        seen = (await ada.get("/api/v1/projects/default")).json()
        assert seen["use"] == {"slots": 3, "queued": 1}
        assert (await ada.patch("/api/v1/projects/default", json={"quota": {"max_slots": 9}})).status_code == 403
        assert (await eve.get("/api/v1/projects/default")).status_code == 404
    for wrong in ({"max_slots": -1}, {"max_slots": "4"}, {"max_priority": 101}, {"max_gpus": 1}):
        await quota(bench, expect=422, **wrong)
    await quota(bench, "no-such", 404, max_slots=1)
    entries = (await bench.get("/audit", action="project.updated"))["items"]
    assert entries[-1]["detail"]["quota"] == {"max_queued": [None, 2], "max_slots": [None, 4]}


async def test_submits_beyond_the_quota_are_refused(bench: Bench) -> None:
    await quota(bench, max_queued=1, max_priority=70, max_slots=3)
    spec = {
        "name": "a",
        "recipe": "image-classifier",
        "scheduling": {"priority": 71},
        "workers": {"initial": 4, "min": 4},
    }
    for query in ({}, {"dry_run": "true"}):
        refused = await bench.client.post("/api/v1/jobs", json=spec, params=query)
        assert refused.status_code == 422
        assert [item["path"] for item in refused.json()["errors"]] == ["scheduling.priority", "workers.min"]
        assert "may be 70 at most by the quota" in refused.json()["errors"][0]["message"]
    await bench.submit("first")
    refused = await bench.client.post("/api/v1/jobs", json={"name": "second", "recipe": "image-classifier"})
    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")
    assert "The project 'default' has 1 in the queue, and its quota is 1" in refused.json()["detail"]
    assert (await bench.post("/jobs/first/clone", 409, {}))["code"] == "quota_exceeded"
    await bench.post("/projects", 201, {"name": "other"})
    await bench.submit("second", project="other")
    changed = await bench.client.patch("/api/v1/jobs/first", json={"scheduling": {"priority": 80}})
    assert (changed.status_code, changed.json()["code"]) == (422, "invalid_spec")
    await bench.schedule()
    await bench.submit("third")
    # What is there already stays as it is, and may be changed in other ways.
    await quota(bench, max_priority=10)
    changed = await bench.client.patch("/api/v1/jobs/third", json={"labels": {"a": "b"}})
    assert changed.status_code == 200, changed.text


async def test_of_two_submits_at_once_one_finds_the_last_place(bench: Bench) -> None:
    await quota(bench, max_queued=1)

    async def submit(name: str) -> int:
        spec = {"name": name, "recipe": "image-classifier"}
        return (await bench.client.post("/api/v1/jobs", json=spec)).status_code

    assert sorted(await asyncio.gather(*(submit(f"job-{index}") for index in range(4)))) == [201, 409, 409, 409]


async def test_the_scheduler_keeps_to_it(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "other"})
    await quota(bench, max_slots=3)
    controller = await bench.start("first", workers={"initial": 6, "min": 1, "max": 6})
    assert (await controller.desired()).workers == 3
    await bench.submit("second")
    await bench.submit("theirs", project="other")
    await bench.schedule()
    second = await bench.job("second")
    assert second["message"] == "needs 1 slot, project default uses 3 of its 3 slots"
    assert (await bench.job("theirs"))["status"] == "starting"
    await quota(bench, max_slots=5)
    await bench.schedule()
    assert (await bench.job("second"))["status"] == "starting"
    assert (await controller.desired()).workers == 4


async def test_the_queue_of_a_project_at_its_quota_hides_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "WINDOW", 2)
    monkeypatch.setattr(loop, "MAX_WINDOW", 2)
    await bench.post("/projects", 201, {"name": "other"})
    await quota(bench, max_slots=1)
    await bench.start("first")
    for index in range(5):
        await bench.submit(f"mine-{index}")
    await bench.submit("theirs", project="other")
    await bench.schedule()
    assert (await bench.job("theirs"))["status"] == "starting"


async def test_a_job_goes_first_makes_way_and_keeps_its_place(bench: Bench) -> None:
    bench.agent.nodes = one_node(4)
    long = await bench.start("long", workers=workers(2))
    await long.report(workers=2, worker_reports=(worker(1), worker(2)))
    await bench.submit("large", workers=workers(4))
    bench.clock.advance(1)
    small_id = (await bench.submit("small"))["id"]
    await bench.schedule()
    assert (await bench.job("large"))["message"] == "needs 4 slots, free 2, held by long"
    small = await bench.controller_of(small_id)
    await small.acquire()
    await small.report(workers=1, worker_reports=(worker(3),))
    events = (await bench.get("/jobs/small/events"))["items"]
    assert any("before large, which needs 4 slots" in event["message"] for event in events)
    bench.clock.advance(5)
    await bench.schedule()
    assert (await small.desired()).run == "run", "the first cannot start yet"
    await succeed(long)
    await bench.schedule()
    assert (await small.desired()).run == "pause"
    assert (await bench.job("small"))["status"] == "pausing"
    bench.clock.advance(300)
    await bench.submit("late", workers=workers(4))
    await small.report(outcome=Outcome(state="paused"))
    await bench.agent.sync()
    await bench.loop.run_once()
    assert (await bench.job("large"))["status"] == "starting"
    queue = (await bench.get("/queue"))["items"]
    assert [item["name"] for item in queue] == ["small", "late"], "it is where it was, before those who came later"


async def test_a_user_s_own_pause_gives_the_place_up(bench: Bench) -> None:
    bench.agent.nodes = one_node(3)
    await bench.start("long", workers=workers(2))
    await bench.submit("large", workers=workers(3))
    bench.clock.advance(1)
    small_id = (await bench.submit("small"))["id"]
    await bench.schedule()
    small = await bench.controller_of(small_id)
    await small.acquire()
    await small.report()
    await bench.post("/jobs/small/pause", 202)
    await small.report(outcome=Outcome(state="paused"))
    bench.clock.advance(60)
    await bench.submit("late")
    bench.clock.advance(60)
    await bench.post("/jobs/small/resume", 202)
    names = [item["name"] for item in (await bench.get("/queue"))["items"]]
    assert names == ["large", "late", "small"]


async def test_a_project_is_not_deleted_under_a_job_that_is_just_submitted(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "other"})
    spec = jobs.read_spec({"name": "a", "recipe": "image-classifier", "project": "other"})
    async with bench.context.database.write() as session:
        await jobs.insert(session, spec, caller=an_admin(), now=bench.clock())
        deletion = asyncio.create_task(bench.client.delete("/api/v1/projects/other"))
        await blocked_or_done(bench, deletion)
    response = await deletion
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert (await bench.get("/projects/other"))["use"]["queued"] == 1
