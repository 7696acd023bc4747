"""Nodes: cordoned ones take no new workers, drained ones lose theirs, and Ray's own notice is treated alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

import service.nodes
from rubato.wire.cluster import ActionAnswer, Desired, NodeReport
from service.models import Job
from service.scheduling.observe import observe
from tests.simulated_controller import PROCESS, SimulatedController, bearer, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

ONE = NodeReport(node_id="node-1", address="10.0.0.1", cpu=2, hostname="host-1")
TWO = NodeReport(node_id="node-2", address="10.0.0.2", cpu=2, hostname="host-2")


async def spread(bench: Bench) -> SimulatedController:
    """A job with two workers on each of two nodes."""
    bench.agent.nodes = (ONE, TWO)
    controller = await bench.start(workers={"initial": 4, "min": 1, "max": 4})
    await controller.report(worker_reports=on_nodes(1, 1, 2, 2), workers=4)
    return controller


def on_nodes(*nodes: int) -> tuple[Any, ...]:
    return tuple(worker(number, f"node-{node}") for number, node in enumerate(nodes, 1))


async def nodes(bench: Bench) -> dict[str, dict[str, Any]]:
    return {node["node_id"]: node for node in (await bench.get("/clusters/default/nodes"))["items"]}


async def audited(bench: Bench) -> list[tuple[str, str | None, str | None]]:
    items = (await bench.get("/audit", action="node.marked"))["items"]
    return [(item["detail"]["node"], item["detail"]["from"], item["detail"]["to"]) for item in reversed(items)]


async def test_nodes_are_listed_with_what_runs_there(bench: Bench) -> None:
    await spread(bench)
    found = await nodes(bench)
    assert [(node["state"], node["workers_left"], node["cpu"], node["by"]) for node in found.values()] == [
        ("ready", 2, 2, None),
        ("ready", 2, 2, None),
    ]
    assert [(job["name"], job["workers"]) for job in found["node-1"]["jobs"]] == [("digits", 2)]
    await bench.get("/clusters/elsewhere/nodes", 404)
    await bench.post("/nodes/node-9/cordon", 404)


async def test_a_cordoned_node_takes_no_new_workers_and_the_sentence_says_so(bench: Bench) -> None:
    bench.agent.nodes = (ONE, TWO)
    controller = await bench.start(workers={"initial": 2, "min": 1, "max": 4})
    await controller.report(worker_reports=on_nodes(1, 1), workers=2)
    before = (await controller.desired()).version
    cordoned = await bench.post("/nodes/node-2/cordon", 200)
    assert (cordoned["state"], cordoned["by"], cordoned["workers_left"]) == ("cordoned", "admin", 0)
    wishes = await controller.desired(after=before, wait=5)
    assert wishes.avoid_nodes == ("node-2",)
    assert wishes.actions == ()
    await bench.post("/jobs/digits/scale", 202, {"workers": 4})
    await bench.schedule()
    assert (await controller.desired()).workers == 2
    assert "host-2 takes no new workers" in (await bench.get("/jobs/digits/explain"))["because"]
    waiting = await bench.submit("large", workers={"initial": 3, "min": 3, "max": 3})
    await bench.schedule()
    because = (await bench.get(f"/jobs/{waiting['id']}/explain"))["because"]
    shut = "host-2 takes no new workers"
    advice = "`rubato node uncordon` opens a node again, or lower workers.min"
    assert because == f"needs 3 slots of 1 CPU, and the nodes that take workers have 2; {shut}; {advice}"
    await bench.post("/jobs/large/cancel", 202)
    await bench.post("/nodes/node-2/cordon", 200)
    opened = await bench.post("/nodes/node-2/uncordon", 200)
    assert opened["state"] == "ready"
    await bench.schedule()
    wishes = await controller.desired()
    assert (wishes.workers, wishes.avoid_nodes) == (4, ())
    assert await audited(bench) == [("node-2", None, "cordoned"), ("node-2", "cordoned", None)], "each change once"


async def test_a_job_that_starts_later_avoids_the_node_too(bench: Bench) -> None:
    bench.agent.nodes = (ONE, TWO)
    await bench.agent.sync()
    await bench.post("/nodes/node-1/cordon", 200)
    controller = await bench.start(workers={"initial": 4, "min": 1, "max": 4})
    assert controller.acquired is not None
    assert controller.acquired.desired.avoid_nodes == ("node-1",)
    assert controller.acquired.desired.workers == 2


async def test_the_workers_of_a_drained_node_leave(bench: Bench) -> None:
    controller = await spread(bench)
    drained = await bench.post("/nodes/node-2/drain", 202)
    assert (drained["state"], drained["workers_left"]) == ("draining", 2)
    await bench.schedule()
    wishes = await controller.desired()
    assert [(action.kind, action.worker_id, action.within_s) for action in wishes.actions] == [
        ("drain", "w3", None),
        ("drain", "w4", None),
    ]
    assert wishes.avoid_nodes == ("node-2",)
    await bench.loop.run_once()
    assert await controller.desired() == wishes, "nobody is asked twice"
    events = (await bench.get("/jobs/digits/events"))["items"]
    asked = [event["message"] for event in events if event["kind"] == "worker.drain_requested"]
    assert asked == [f"w{number} is to leave host-2: admin drains the node." for number in (3, 4)]
    first, second = wishes.actions
    await controller.report(
        worker_reports=(*on_nodes(1, 1), worker(4, "node-2")), answers=(ActionAnswer(first.number, "done", "w3 left"),)
    )
    assert (await nodes(bench))["node-2"]["workers_left"] == 1
    await controller.report(
        worker_reports=on_nodes(1, 1), workers=2, answers=(ActionAnswer(second.number, "done", "w4 left"),)
    )
    assert (await nodes(bench))["node-2"]["state"] == "drained"
    assert (await bench.post("/nodes/node-2/drain", 200))["state"] == "drained"
    await bench.schedule()
    wishes = await controller.desired()
    assert (wishes.workers, wishes.actions) == (2, ())


@pytest.mark.parametrize("what", ["a new controller", "a restore"])
async def test_a_node_is_not_drained_while_nobody_leads_the_workers_on_it(bench: Bench, what: str) -> None:
    controller = await spread(bench)
    await bench.post("/nodes/node-2/drain", 202)
    if what == "a restore":
        async with bench.context.database.write() as session:
            await session.execute(update(Job).values(attempt=Job.attempt + 1000))
        assert (await nodes(bench))["node-2"]["workers_left"] == 2
    successor = await bench.controller_of(controller.job_id)
    await successor.acquire(gone=1)
    node = (await nodes(bench))["node-2"]
    assert (node["state"], node["workers_left"]) == ("draining", 2)
    (cluster,) = (await bench.get("/cluster"))["clusters"]
    assert [[job["workers"] for job in one["jobs"]] for one in cluster["nodes"]] == [[2], [2]]
    assert len((await bench.get("/jobs/digits/workers"))["items"]) == 4
    async with bench.context.database.read() as session:
        (placed,) = (await observe(session, bench.context, bench.clock(), 64)).view.placed
    assert placed.nodes == ("node-1", "node-1", "node-2", "node-2")
    await successor.report(worker_reports=on_nodes(1, 1), workers=2)
    assert (await nodes(bench))["node-2"]["state"] == "drained"


async def test_a_worker_that_comes_up_on_a_draining_node_is_sent_away_as_well(bench: Bench) -> None:
    controller = await spread(bench)
    await bench.post("/nodes/node-2/drain", 202)
    await bench.schedule()
    await controller.report(worker_reports=(*on_nodes(1, 1, 2, 2), worker(5, "node-2")), workers=5)
    await bench.schedule()
    assert [action.worker_id for action in (await controller.desired()).actions] == ["w3", "w4", "w5"]


async def test_uncordon_undoes_a_drain(bench: Bench) -> None:
    controller = await spread(bench)
    kept = await bench.post(f"/jobs/{controller.job_id}/workers/w1/drain", 202)
    await bench.post("/nodes/node-2/drain", 202)
    await bench.schedule()
    assert len((await controller.desired()).actions) == 3
    version = (await controller.desired()).version
    assert (await bench.post("/nodes/node-2/uncordon", 200))["state"] == "ready"
    wishes = await controller.desired(after=version, wait=5)
    assert [action.number for action in wishes.actions] == [kept["number"]], "a person's own wish stays"
    assert wishes.avoid_nodes == ()
    await bench.schedule()
    assert len((await controller.desired()).actions) == 1


async def test_a_persons_drain_of_a_worker_that_leaves_for_its_node_outlives_the_nodes_drain(bench: Bench) -> None:
    controller = await spread(bench)
    await bench.post("/nodes/node-2/drain", 202)
    await bench.schedule()
    before = await controller.desired()
    url = f"/api/v1/jobs/{controller.job_id}/workers/w3/drain"
    headers = {"Idempotency-Key": "once"}
    asked = await bench.client.post(url, headers=headers)
    assert asked.status_code == 202
    assert (asked.json()["worker_id"], asked.json()["by"]) == ("w3", "admin")
    wishes = await controller.desired(after=before.version, wait=5)
    assert [(action.worker_id, action.by) for action in wishes.actions] == [
        ("w3", "admin"),
        ("w4", "admin, for admin drains the node"),
    ]
    same = await bench.client.post(url, headers=headers)
    other = await bench.client.post(url)
    assert (same.status_code, other.status_code) == (202, 200)
    assert asked.json() == same.json() == other.json()
    assert await controller.desired() == wishes
    number = asked.json()["number"]
    audit = (await bench.get("/audit", action="worker.drain_requested"))["items"]
    assert [entry["detail"] for entry in audit] == [{"worker_id": "w3", "number": number, "by": "admin"}]
    events = (await bench.get("/jobs/digits/events"))["items"]
    assert [event["message"] for event in events if event["kind"] == "worker.drain_requested"] == [
        "w3 is to leave host-2: admin drains the node.",
        "w4 is to leave host-2: admin drains the node.",
        "admin asked w3 to leave.",
    ]
    await bench.post("/nodes/node-2/uncordon", 200)
    assert [action.number for action in (await controller.desired()).actions] == [number]
    await bench.post("/nodes/node-2/drain", 202)
    await bench.schedule()
    assert drains_of(await controller.desired()) == [("w3", None), ("w4", None)]


LET_GO = replace(TWO, draining=True, drain_within_s=90.0)


def drains_of(wishes: Desired) -> list[tuple[str, float | None]]:
    assert {action.kind for action in wishes.actions} <= {"drain"}
    return [(action.worker_id, action.within_s) for action in wishes.actions]


async def test_rays_own_notice_drains_with_a_checkpoint_and_a_deadline(bench: Bench) -> None:
    controller = await spread(bench)
    before = await controller.desired()
    bench.agent.nodes = (ONE, LET_GO)
    await bench.schedule()
    wishes = await controller.desired()
    assert drains_of(wishes) == [("w3", 90.0), ("w4", 90.0)]
    assert wishes.checkpoint_request == before.checkpoint_request + 1
    found = (await nodes(bench))["node-2"]
    assert (found["state"], found["by"], found["drain_within_s"]) == ("draining", "ray", 90.0)
    bench.clock.advance(5.0)
    # Reports travel: the same deadline is never told in the very same words.
    bench.agent.nodes = (ONE, replace(LET_GO, drain_within_s=84.0))
    await bench.schedule()
    later = await controller.desired()
    assert later.version == wishes.version, "one checkpoint, one drain each"
    assert later.checkpoint_request == wishes.checkpoint_request
    assert drains_of(later) == [("w3", 85.0), ("w4", 85.0)], "what is left"
    successor = await bench.controller_of(controller.job_id, process=replace(PROCESS, pid=99))
    bench.clock.advance(60.0)
    assert drains_of((await successor.acquire(gone=1)).desired) == [("w3", 25.0), ("w4", 25.0)]
    bench.clock.advance(60.0)
    assert drains_of(await successor.desired()) == [("w3", 0.0), ("w4", 0.0)]


@pytest.mark.parametrize("verb", ["cordon", "drain"])
async def test_rays_notice_counts_also_on_a_node_that_an_admin_has_marked(bench: Bench, verb: str) -> None:
    controller = await spread(bench)
    await bench.client.post(f"/api/v1/nodes/node-2/{verb}")
    own = (await bench.post(f"/jobs/{controller.job_id}/workers/w3/drain", 202))["number"]
    await bench.post(f"/jobs/{controller.job_id}/workers/w1/drain", 202)
    await bench.schedule()
    before = await controller.desired()
    assert drains_of(before) == [("w3", None), ("w1", None), *([("w4", None)] if verb == "drain" else [])]
    bench.agent.nodes = (ONE, LET_GO)
    await bench.schedule()
    wishes = await controller.desired(after=before.version, wait=5)
    assert wishes.version > before.version
    assert drains_of(wishes) == [("w3", 90.0), ("w1", None), ("w4", 90.0)]
    assert wishes.actions[0].number == own, "the same wish, in a hurry now"
    assert wishes.checkpoint_request == before.checkpoint_request + 1
    assert (await nodes(bench))["node-2"]["by"] == "ray"
    for _ in range(2):
        await bench.schedule()
    assert await controller.desired() == wishes
    # An admin's mark takes nothing back of what Ray does, and says nothing new.
    await bench.post("/nodes/node-2/uncordon", 200)
    await bench.schedule()
    after = await controller.desired()
    assert (after.actions, after.checkpoint_request) == (wishes.actions, wishes.checkpoint_request)


async def test_a_notice_that_comes_to_have_a_deadline_or_a_nearer_one(bench: Bench) -> None:
    controller = await spread(bench)
    told = []
    for left_s in (None, 90.0, 100.0, 30.0, None):
        bench.agent.nodes = (ONE, replace(LET_GO, drain_within_s=left_s))
        await bench.schedule()
        wishes = await controller.desired()
        told.append((drains_of(wishes)[0], wishes.checkpoint_request))
    assert [drain for drain, _ in told] == [("w3", left_s) for left_s in (None, 90.0, 90.0, 30.0, 30.0)]
    assert len({request for _, request in told}) == 1


async def test_an_uncordon_that_comes_between_finds_no_drain_or_withdraws_it(
    make_bench: MakeBench, new_postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_postgres()
    async with (
        make_bench(url) as bench,
        await psycopg.AsyncConnection.connect(url.replace("+psycopg", ""), autocommit=True) as eye,
    ):
        controller = await spread(bench)
        await bench.post("/nodes/node-2/drain", 202)
        read_jobs = service.nodes._jobs_on
        uncordons: list[asyncio.Task[Any]] = []

        async def until_over_or_waiting(task: asyncio.Task[Any]) -> None:
            waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            while not task.done() and await (await eye.execute(waiting)).fetchone() is None:
                await eye.execute("SELECT pg_sleep(0.01)")

        async def interrupted(session: AsyncSession, clusters: Sequence[str]) -> Any:
            found = await read_jobs(session, clusters)
            if not uncordons:
                uncordons.append(asyncio.create_task(bench.post("/nodes/node-2/uncordon", 200)))
                await until_over_or_waiting(uncordons[0])
            return found

        monkeypatch.setattr(service.nodes, "_jobs_on", interrupted)
        async with bench.context.database.write() as session:
            await service.nodes.settle_drains(session, bench.clock())
        assert (await uncordons[0])["state"] == "ready"
        assert (await controller.desired()).actions == ()
        events = (await bench.get("/jobs/digits/events"))["items"]
        assert [event["kind"] for event in events].count("worker.drain_requested") == 2, "it came between"


async def test_only_admins_of_the_service_mark_nodes_and_others_jobs_are_not_named(bench: Bench) -> None:
    await spread(bench)
    await bench.post("/projects", 201, {"name": "other"})
    await bench.post("/users", 201, {"name": "eve"})
    await bench.client.put("/api/v1/projects/other/members/eve", json={"role": "admin"})
    headers = bearer((await bench.post("/tokens", 201, {"name": "t", "user": "eve"}))["token"])
    for verb in ("cordon", "uncordon", "drain"):
        assert (await bench.client.post(f"/api/v1/nodes/node-1/{verb}", headers=headers)).status_code == 403
    seen = (await bench.client.get("/api/v1/clusters/default/nodes", headers=headers)).json()["items"]
    assert [(node["workers_left"], node["jobs"]) for node in seen] == [(2, []), (2, [])]
    assert await audited(bench) == []


async def test_marks_of_nodes_that_are_gone_are_dropped_and_a_successor_hears_the_rest(bench: Bench) -> None:
    controller = await spread(bench)
    await bench.post("/nodes/node-2/cordon", 200)
    bench.agent.nodes = (ONE,)
    await bench.schedule()
    await bench.post("/nodes/node-1/cordon", 200)
    assert (await controller.desired()).avoid_nodes == ("node-1",)
    successor = await bench.controller_of(controller.job_id, process=replace(PROCESS, pid=99))
    assert (await successor.acquire(gone=1)).desired.avoid_nodes == ("node-1",)
