"""Drain, kill and stack of single workers: wishes that the controller's poll brings and its report confirms."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from rubato.wire.cluster import ActionAnswer, Outcome, WorkerAction
from service.models import WorkerActionRow
from tests.simulated_controller import PROCESS, SimulatedController, bearer, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

BOTH = (worker(1), worker(2))


async def training(bench: Bench, name: str = "digits") -> SimulatedController:
    controller = await bench.start(name)
    await controller.report(worker_reports=BOTH, workers=2)
    return controller


def path(controller: SimulatedController, worker_id: str, verb: str) -> str:
    return f"/jobs/{controller.job_id}/workers/{worker_id}/{verb}"


async def audited(bench: Bench, action: str) -> list[dict[str, Any]]:
    return [entry["detail"] for entry in (await bench.get("/audit", action=action))["items"]]


@pytest.mark.parametrize("kind", ["drain", "kill"])
async def test_an_action_is_listed_until_it_is_answered(bench: Bench, kind: str) -> None:
    controller = await training(bench)
    before = await controller.desired()
    asked = await bench.post(path(controller, "w2", kind), 202)
    assert (asked["kind"], asked["worker_id"], asked["state"], asked["by"]) == (kind, "w2", "pending", "admin")
    wishes = await controller.desired(after=before.version, wait=5)
    assert wishes.actions == (WorkerAction(asked["number"], kind, "w2", "admin"),)
    assert await controller.desired() == wishes, "listed again until it is answered"
    waiting = asyncio.create_task(bench.post(path(controller, "w2", kind), 200, wait=30))
    answer = ActionAnswer(asked["number"], "done", "w2 left after step 7")
    await controller.report(worker_reports=(worker(1),), answers=(answer,))
    assert (await waiting)["state"] == "done"
    assert (await controller.desired()).actions == ()
    again = await bench.post(path(controller, "w2", kind), 200)
    assert (again["number"], again["state"], again["message"]) == (asked["number"], "done", "w2 left after step 7")
    assert await audited(bench, f"worker.{kind}_requested") == [
        {"worker_id": "w2", "number": asked["number"], "by": "admin"}
    ]


async def test_asking_again_or_with_the_same_key_doubles_nothing(bench: Bench) -> None:
    controller = await training(bench)
    headers = {"Idempotency-Key": "once"}
    url = f"/api/v1{path(controller, 'w1', 'kill')}"
    first = await bench.client.post(url, headers=headers)
    version = (await controller.desired()).version
    same = await bench.client.post(url, headers=headers)
    other = await bench.client.post(url)
    assert (first.status_code, same.status_code, other.status_code) == (202, 202, 200)
    assert first.json() == same.json() == other.json()
    wishes = await controller.desired()
    assert (len(wishes.actions), wishes.version) == (1, version)


async def test_who_read_an_older_edition_acts_on_no_worker(bench: Bench) -> None:
    controller = await training(bench)
    etag = (await bench.job("digits"))["etag"]
    await bench.post("/jobs/digits/scale", 202, {"workers": 3})
    asked = (("POST", "drain"), ("POST", "kill"), ("GET", "stack"))
    for method, verb in asked:
        url = f"/api/v1{path(controller, 'w1', verb)}"
        refused = await bench.client.request(method, url, headers={"If-Match": etag}, params={"wait": 0})
        assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed"), verb
    assert (await controller.desired()).actions == ()
    present = (await bench.job("digits"))["etag"]
    url = f"/api/v1{path(controller, 'w1', 'drain')}"
    assert (await bench.client.post(url, headers={"If-Match": present})).status_code == 202


async def test_a_worker_that_is_not_there_and_a_job_without_workers(bench: Bench) -> None:
    controller = await training(bench)
    for verb in ("drain", "kill"):
        problem = await bench.post(path(controller, "w9", verb), 404)
        assert problem["detail"] == "digits has no worker 'w9' (any more); it has w1, w2."
    assert (await bench.get(path(controller, "w9", "stack"), 404))["code"] == "not_found"
    await bench.post("/jobs/nobody/workers/w1/drain", 404)
    queued = await bench.submit("queued", resources_per_worker={"cpu": 99})
    assert "has no workers now" in (await bench.post(f"/jobs/{queued['id']}/workers/w1/kill", 409))["detail"]
    await bench.post("/jobs/digits/cancel", 202)
    await controller.report(outcome=Outcome("cancelled"))
    assert (await bench.post(path(controller, "w1", "kill"), 409))["code"] == "job_final"
    assert (await bench.get(path(controller, "w1", "stack"), 409))["code"] == "job_final"


async def test_a_worker_that_is_lost_meanwhile_closes_its_actions_also_without_an_answer(bench: Bench) -> None:
    """The controllers of the release before this one know no actions."""
    controller = await training(bench)
    asked = await bench.post(path(controller, "w2", "drain"), 202)
    await controller.report(worker_reports=BOTH, step=2)
    assert len((await controller.desired()).actions) == 1, "it is there still"
    await controller.report(worker_reports=(worker(1),), step=3)
    assert (await controller.desired()).actions == ()
    problem = await bench.post(path(controller, "w2", "drain"), 404)
    assert "has no worker 'w2'" in problem["detail"]
    answer = ActionAnswer(asked["number"], "done", "too late")
    await controller.report(worker_reports=(worker(1),), answers=(answer,))
    assert (await bench.job("digits"))["status"] == "running"


async def test_a_successor_is_told_what_was_not_answered(bench: Bench) -> None:
    first = await training(bench)
    one = await bench.post(path(first, "w1", "drain"), 202)
    two = await bench.post(path(first, "w2", "kill"), 202)
    answer = ActionAnswer(two["number"], "done", "w2 was killed by SIGKILL")
    await first.report(worker_reports=(worker(1),), answers=(answer,))
    second = await bench.controller_of(first.job_id, process=replace(PROCESS, pid=99))
    acquired = await second.acquire(gone=1)
    assert [action.number for action in acquired.desired.actions] == [one["number"]]
    stale = await first.send(first.next_report(answers=(ActionAnswer(one["number"], "done", "of a stale one"),)))
    assert stale.status_code == 409
    await second.report(worker_reports=(worker(1),))
    assert [action.number for action in (await second.desired()).actions] == [one["number"]]


async def test_a_job_that_leaves_the_cluster_leaves_no_action_open(bench: Bench) -> None:
    controller = await training(bench)
    asked = await bench.post(path(controller, "w1", "drain"), 202)
    await bench.post("/jobs/digits/pause", 202)
    await controller.report(worker_reports=BOTH)
    await controller.report(outcome=Outcome("paused"))
    async with bench.context.database.read() as session:
        closed = await session.get_one(WorkerActionRow, (controller.job_id, asked["number"]))
    assert (closed.state, closed.message) == ("gone", "w1 is no worker of the job any more")
    await bench.post("/jobs/digits/resume", 202)
    await bench.schedule()
    successor = await bench.controller_of(controller.job_id)
    assert (await successor.acquire()).desired.actions == ()


async def test_stacks_are_asked_for_awaited_and_shared(bench: Bench) -> None:
    controller = await training(bench)
    url = f"/api/v1{path(controller, 'w1', 'stack')}"
    early = await bench.client.get(url, params={"wait": 0})
    assert (early.status_code, early.headers["retry-after"]) == (202, "1")
    looks = [asyncio.create_task(bench.client.get(url, params={"wait": 30})) for _ in range(3)]
    wishes = await controller.desired()
    (action,) = wishes.actions
    assert (action.kind, action.worker_id) == ("stack", "w1")
    text = 'Thread MainThread (most recent call first):\n  File "train.py", line 7 in forward\0\n'
    answer = ActionAnswer(action.number, "done", "w1 (rank 0), pid 1001 on node-1, in compute", text)
    await controller.report(worker_reports=BOTH, answers=(answer,))
    replies = await asyncio.gather(*looks)
    assert {reply.status_code for reply in replies} == {200}
    assert replies[0].headers["content-type"].startswith("text/plain")
    assert replies[0].text.startswith("w1 (rank 0), pid 1001 on node-1, in compute\n\nThread MainThread")
    assert "line 7 in forward\N{REPLACEMENT CHARACTER}" in replies[0].text
    assert (await bench.client.get(url)).text == replies[0].text, "so young a one answers again"
    assert (await controller.desired()).version == wishes.version
    bench.clock.advance(6)
    await controller.report(worker_reports=BOTH)
    assert (await bench.client.get(url, params={"wait": 0})).status_code == 202
    (newer,) = (await controller.desired()).actions
    assert newer.number > action.number
    failed = ActionAnswer(newer.number, "failed", "w1 waits for a slot: it has no process yet")
    await controller.report(worker_reports=BOTH, answers=(failed,))
    problem = (await bench.client.get(url)).json()
    assert problem["detail"] == "There are no stacks of w1: w1 waits for a slot: it has no process yet."


async def test_a_stack_whose_answer_was_lost_is_asked_for_anew(bench: Bench) -> None:
    """A controller gives up the answers of a batch that the service refuses."""
    controller = await training(bench)
    url = f"/api/v1{path(controller, 'w1', 'stack')}"
    assert (await bench.client.get(url, params={"wait": 0})).status_code == 202
    (lost,) = (await controller.desired()).actions
    bench.clock.advance(59)
    await controller.report(worker_reports=BOTH)
    assert (await bench.client.get(url, params={"wait": 0})).status_code == 202
    assert (await controller.desired()).actions == (lost,), "it may be on its way still"
    bench.clock.advance(2)
    await controller.report(worker_reports=BOTH)
    assert (await bench.client.get(url, params={"wait": 0})).status_code == 202
    wishes = await controller.desired()
    (anew,) = wishes.actions
    assert anew.number > lost.number
    answers = (ActionAnswer(lost.number, "done", "late", "late"), ActionAnswer(anew.number, "done", "w1", "stack"))
    await controller.report(worker_reports=BOTH, answers=answers)
    assert (await bench.client.get(url)).text == "w1\n\nstack"
    assert (await controller.desired()).actions == ()


async def test_others_workers_are_foreign_and_viewers_only_look(bench: Bench) -> None:
    controller = await training(bench)
    await bench.post("/projects", 201, {"name": "other"})
    tokens = {}
    for name, project, role in (("eve", "other", "admin"), ("vic", "default", "viewer"), ("ed", "default", "editor")):
        await bench.post("/users", 201, {"name": name})
        response = await bench.client.put(f"/api/v1/projects/{project}/members/{name}", json={"role": role})
        assert response.status_code == 200
        tokens[name] = (await bench.post("/tokens", 201, {"name": "t", "user": name}))["token"]

    async def ask(name: str, method: str, verb: str) -> httpx.Response:
        url = f"/api/v1{path(controller, 'w1', verb)}"
        return await bench.client.request(method, url, headers=bearer(tokens[name]), params={"wait": 0})

    for method, verb in (("POST", "drain"), ("POST", "kill"), ("GET", "stack")):
        statuses = [(await ask(name, method, verb)).status_code for name in ("eve", "vic", "ed")]
        assert statuses == [404, 403, 202], verb
    kinds = {action.kind: action.by for action in (await controller.desired()).actions}
    assert kinds == {"drain": "ed", "kill": "ed", "stack": "ed"}


async def test_what_was_asked_survives_a_restart_of_the_service(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url) as bench:
        controller = await training(bench)
        asked = await bench.post(path(controller, "w2", "kill"), 202)
        clock = bench.clock
    async with make_bench(database_url, clock=clock) as bench:
        controller.client = bench.client
        (action,) = (await controller.desired()).actions
        assert action.number == asked["number"]
        report = controller.next_report(
            worker_reports=(worker(1),), answers=(ActionAnswer(action.number, "done", "w2 was killed by SIGKILL"),)
        )
        assert (await controller.send(report)).status_code == 200
        assert (await controller.send(report)).status_code == 200, "its acknowledgement was lost"
        again = await bench.post(path(controller, "w2", "kill"), 200)
        assert (again["state"], again["number"]) == ("done", asked["number"])
