"""Who may act for a job: attempts, leases, fencing, lost controllers."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import ControllerSeen, Distrust, Outcome, ProcessIdentity, Result
from rubato.wire.codec import to_json
from service.backup.attempts import statements_after_restore
from service.jobs import find
from service.models import Base
from tests.integration.service.test_removal import blocked_or_done
from tests.simulated_controller import bearer, log_line, metric, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

OTHER_PID = ProcessIdentity(node_id="node-1", boot_id="boot-1", pid=5555, start_time=99)
OTHER_BOOT = ProcessIdentity(node_id="node-2", boot_id="boot-2", pid=5555, start_time=99)


async def _rows(bench: Bench) -> dict[str, list[Any]]:
    """Every row of every table: what "changes nothing" means."""
    async with bench.context.database.read() as session:
        return {
            table.name: [tuple(row) for row in (await session.execute(select(table))).all()]
            for table in Base.metadata.sorted_tables
        }


async def test_a_stale_attempt_is_fenced_and_changes_nothing(bench: Bench) -> None:
    stale = await bench.start()
    await stale.report(step=5, metrics=(metric(5),), logs=(log_line("mine"),))
    unacknowledged = stale.next_report(step=6, metrics=(metric(6),), events=(stale.event("worker.ready"),))
    successor = await bench.controller_of(stale.job_id, process=OTHER_PID)
    assert (await successor.acquire(gone=1)).attempt == 2
    before = await _rows(bench)
    files = {path: path.read_bytes() for path in (bench.settings.home / "logs").rglob("*.jsonl")}

    for report in (
        unacknowledged,
        stale.next_report(logs=(log_line("late"),)),
        stale.next_report(outcome=Outcome(state="succeeded", result=Result(step=9, digest="d" * 64))),
    ):
        response = await stale.send(report)
        assert (response.status_code, response.json()["code"], response.json()["attempt"]) == (409, "fenced", 2)
    assert (await stale.try_desired()).json()["code"] == "fenced"
    assert await _rows(bench) == before
    assert {path: path.read_bytes() for path in (bench.settings.home / "logs").rglob("*.jsonl")} == files


async def test_a_successor_waits_for_the_lease_without_proof(bench: Bench) -> None:
    first = await bench.start()
    successor = await bench.controller_of(first.job_id, process=OTHER_BOOT)
    refused = (await successor.try_acquire()).json()
    assert refused["code"] == "lease_held"
    assert refused["predecessor"] == {
        "attempt": 1,
        "node_id": "node-1",
        "boot_id": "boot-1",
        "pid": 4242,
        "start_time": 77,
    }
    assert refused["retry_after"] == 45.0
    bench.clock.advance(44)
    assert (await successor.try_acquire()).json()["code"] == "lease_held"
    bench.clock.advance(1)
    assert (await successor.acquire()).attempt == 2


async def test_a_successor_that_waited_for_the_database_is_granted_what_was_free(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await bench.start()
    successor = await bench.controller_of(first.job_id, process=OTHER_BOOT)
    steady, heartbeat = [0.0], bench.context.heartbeat
    monkeypatch.setattr(heartbeat, "_clock", lambda: steady[0])
    bench.clock.advance(45)
    heartbeat.look(bench.clock())
    async with bench.context.database.write() as session:
        await find(session, first.job_id, for_update=True)
        asking = asyncio.create_task(successor.try_acquire())
        await blocked_or_done(bench, asking)
        bench.clock.advance(10)
        steady[0] += 10
        heartbeat.look(bench.clock())  # as the loop does, once a second
    assert (await asking).status_code == 200


async def test_reports_and_polls_renew_the_lease(bench: Bench) -> None:
    first = await bench.start()
    successor = await bench.controller_of(first.job_id, process=OTHER_BOOT)
    for _ in range(3):
        bench.clock.advance(20)
        await first.desired()
        bench.clock.advance(20)
        await first.report()
    assert (await successor.try_acquire()).json()["retry_after"] == 45.0


@pytest.mark.parametrize(
    ("process", "gone", "granted"),
    [
        pytest.param(OTHER_PID, 1, True, id="seen gone on the same boot"),
        pytest.param(OTHER_BOOT, 1, False, id="the word of another boot"),
        pytest.param(OTHER_PID, 0, False, id="no word"),
        pytest.param(OTHER_PID, 7, False, id="the word on another attempt"),
        pytest.param(None, 0, True, id="the same process lost the reply"),
    ],
)
async def test_what_proves_that_a_predecessor_is_gone(
    bench: Bench, process: ProcessIdentity | None, gone: int, granted: bool
) -> None:
    first = await bench.start()
    successor = await bench.controller_of(first.job_id, process=process or first.process)
    response = await successor.try_acquire(gone)
    assert response.status_code == (200 if granted else 409)


async def test_the_agents_confirmation_frees_the_attempt_at_once(bench: Bench) -> None:
    first = await bench.start()
    successor = await bench.controller_of(first.job_id, process=OTHER_BOOT)
    await bench.agent.sync(ControllerSeen(job_id=first.job_id, state="gone", attempt=0))
    assert (await successor.try_acquire()).json()["code"] == "lease_held"
    await bench.agent.sync(ControllerSeen(job_id=first.job_id, state="gone", attempt=1))
    assert (await successor.acquire()).attempt == 2
    # An old word about attempt 1 says nothing of attempt 2.
    await bench.agent.sync(ControllerSeen(job_id=first.job_id, state="gone", attempt=1))
    third = await bench.controller_of(first.job_id)
    assert (await third.try_acquire()).json()["code"] == "lease_held"


async def test_a_lost_controller_makes_the_job_recover_under_the_next(bench: Bench) -> None:
    first = await bench.start()
    await first.report(step=40, restarts=1, scalings=2, metrics=(metric(39), metric(40)))
    bench.clock.advance(29)
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "running"
    bench.clock.advance(2)
    await bench.schedule()
    lost = await bench.job("digits")
    assert (lost["status"], lost["reason"]) == ("recovering", "controller_lost")
    assert [item.job_id for item in (await bench.agent.sync()).run] == [first.job_id]

    successor = await bench.controller_of(first.job_id, process=OTHER_PID)
    acquired = await successor.acquire(gone=1)
    assert (acquired.resume_step, acquired.restarts, acquired.scalings, acquired.last_step) == (40, 1, 2, 40)
    await successor.report(step=41)
    found = await bench.job("digits")
    assert (found["status"], found["attempt"], found["step"]) == ("running", 2, 41)


async def test_a_successor_is_told_which_checkpoints_were_found_to_be_wrong(bench: Bench) -> None:
    first = await bench.start()
    assert first.acquired is not None
    assert first.acquired.distrusted == ()
    wrong = (Distrust(40, 1, 3), Distrust(60, 1, 5))
    alarms = [first.event("diverged", step=70, distrusted=to_json(one)) for one in wrong]
    of_joiner = first.event("diverged", step=80, agreed_step=80)
    await first.report(step=80, events=(*alarms, of_joiner))
    successor = await bench.controller_of(first.job_id, process=OTHER_PID)
    assert (await successor.acquire(gone=1)).distrusted == wrong


async def test_a_successor_is_told_which_checkpoint_must_be_there(bench: Bench) -> None:
    first = await bench.start()
    assert first.acquired is not None
    assert first.acquired.newest_checkpoint == ""
    saved = [
        first.event("checkpoint.committed", step=step, checkpoint_id=f"1-{step}", bytes=1, files=[]) for step in (9, 10)
    ]
    await first.report(step=10, events=saved)
    second = await bench.controller_of(first.job_id, process=OTHER_PID)
    assert (await second.acquire(gone=1)).newest_checkpoint == "1-10"
    await second.report(step=10, events=(second.event("checkpoint.deleted", checkpoint_id="1-10"),))
    third = await bench.controller_of(first.job_id, process=replace(OTHER_PID, pid=6666))
    assert (await third.acquire(gone=2)).newest_checkpoint == "1-9"


async def test_a_silent_controller_that_comes_back_goes_on(bench: Bench) -> None:
    controller = await bench.start()
    bench.clock.advance(40)
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "recovering"
    await controller.report(step=3)
    assert (await bench.job("digits"))["status"] == "running"
    told = [event["message"] for event in (await bench.get("/jobs/digits/events"))["items"]]
    assert told[-2:] == [
        "recovering became starting: its workers are being started.",
        "starting became running: its workers train.",
    ]


async def test_an_attempt_that_does_not_know_yet_how_many_steps_there_are_hides_nothing(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(state="running", total_steps=30_000)
    await controller.report(state="recovering", total_steps=None)
    assert (await bench.job("digits"))["total_steps"] == 30_000
    await controller.report(state="running", total_steps=20_000)
    assert (await bench.job("digits"))["total_steps"] == 20_000


async def test_all_workers_lost_stays_within_the_attempt(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(state="recovering", restarts=1, reason="backing off for 5 s")
    job = await bench.job("digits")
    assert (job["status"], job["restarts"], job["message"]) == ("recovering", 1, "backing off for 5 s")
    await controller.report(state="starting", reason="")
    assert (await bench.job("digits"))["status"] == "starting"
    await controller.report(state="running")
    job = await bench.job("digits")
    assert (job["status"], job["attempt"]) == ("running", 1)


async def test_a_forced_cancel_of_a_silent_cluster_ends(bench: Bench) -> None:
    controller = await bench.start()
    await bench.post("/jobs/digits/cancel", 202, {"force": True})
    bench.clock.advance(140)
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "stopping"
    bench.clock.advance(20)
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "cancelled"
    assert (await controller.send(controller.next_report())).json()["code"] == "fenced"


async def test_a_forced_pause_of_a_silent_cluster_ends_and_the_job_goes_on_elsewhere(bench: Bench) -> None:
    controller = await bench.start()
    bench.clock.advance(40)
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "recovering"
    assert "`rubato pause --force`" in (await bench.job("digits"))["scheduling"]
    assert (await bench.post("/jobs/digits/pause", 202))["status"] == "pausing"
    assert "--force" in (await bench.post("/jobs/digits/resume", 409))["detail"]
    bench.clock.advance(1000)
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "pausing", "nobody said that the cluster is gone for good"
    await bench.post("/jobs/digits/pause", 202, {"force": True})
    await bench.post("/jobs/digits/pause", 200, {"force": True})
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "paused"
    await bench.post("/jobs/digits/pause", 200, {"force": True})
    assert (await controller.send(controller.next_report())).json()["code"] == "fenced"
    assert (await bench.get("/jobs/digits/workers"))["items"] == []

    bench.agent = replace(bench.agent, cluster_id="elsewhere", version=0)
    await bench.post("/jobs/digits/resume", 202)
    await bench.schedule()
    successor = await bench.controller_of(controller.job_id)
    assert (await successor.acquire()).attempt == 2
    wishes = await successor.desired()
    assert (wishes.run, wishes.force) == ("run", False)


async def test_a_pause_that_was_forced_after_a_restore_leaves_no_workers(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(worker_reports=(worker(1), worker(2)))
    async with bench.context.database.write() as session:
        connection = await session.connection()
        for statement in statements_after_restore("sqlite" if bench.settings.is_sqlite else "postgresql", 1000):
            await connection.exec_driver_sql(statement)
    await bench.post("/jobs/digits/pause", 202, {"force": True})
    bench.clock.advance(160)
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "paused"
    bench.agent = replace(bench.agent, cluster_id="elsewhere", version=0)
    await bench.post("/jobs/digits/resume", 202)
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "starting"
    assert (await bench.get("/jobs/digits/workers"))["items"] == []


async def test_a_job_that_nobody_began_before_its_cluster_fell_silent_is_placed_anew(bench: Bench) -> None:
    job = await bench.submit()
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "starting"
    bench.clock.advance(60)
    await bench.submit("later", scheduling={"priority": 50})
    bench.agent = replace(bench.agent, cluster_id="elsewhere", version=0)
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "starting", "its agent may only be restarting"
    bench.clock.advance(61)
    await bench.loop.run_once()
    queued = await bench.job("digits")
    assert queued["status"] == "queued"
    assert (queued["queue"]["position"], (await bench.job("later"))["queue"]["position"]) == (1, 2), "it kept its place"
    await bench.schedule()
    assert (await (await bench.controller_of(job["id"])).acquire()).attempt == 1


async def test_a_job_that_nobody_began_stays_where_it_would_only_be_placed_again(
    make_bench: MakeBench, database_url: str
) -> None:
    async with make_bench(database_url, cluster_offline_after=timedelta(seconds=300)) as bench:
        await bench.submit()
        await bench.schedule()

        async def statuses() -> list[str]:
            events = (await bench.get("/jobs/digits/events"))["items"]
            return [event["data"]["to"] for event in events if event["kind"] == "job.status"]

        bench.clock.advance(300)
        await bench.loop.run_once()
        assert await statuses() == ["starting"], "the cluster still counts as online"
        bench.clock.advance(1)
        await bench.loop.run_once()
        assert await statuses() == ["starting", "queued"]


async def test_silence_that_nobody_listened_to_moves_no_job(bench: Bench) -> None:
    await bench.submit()
    await bench.schedule()
    bench.clock.advance(3600)
    bench.context.heartbeat.look(bench.clock())
    await bench.loop.run_once()
    assert (await bench.job("digits"))["status"] == "starting"


async def test_tickets_and_tokens_are_good_for_their_own_job_only(bench: Bench) -> None:
    one = await bench.start("one")
    two = await bench.start("two")
    two.ticket, ticket = one.ticket, two.ticket
    assert (await two.try_acquire()).status_code == 403
    two.ticket = ticket
    one.job_id, two.job_id = two.job_id, one.job_id
    assert (await one.send(one.next_report())).status_code == 403
    assert (await two.try_desired()).status_code == 403
    two.ticket = ticket[:-1] + ("0" if ticket[-1] != "0" else "1")
    assert (await two.try_acquire()).status_code == 401


async def test_numbers_that_no_column_holds_are_refused(bench: Bench) -> None:
    controller = await bench.start()
    await bench.agent.sync(ControllerSeen(controller.job_id, "gone", 2**63))
    for name in ("pid", "start_time"):
        controller.process = replace(controller.process, **{"pid": 1, "start_time": 1, name: 2**63})
        refused = await controller.try_acquire()
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, f"process.{name}")


async def test_a_second_agent_looks_on_until_the_lease_of_the_first_ends(bench: Bench) -> None:
    controller = await bench.start()
    first, second = bench.agent, type(bench.agent)(bench.client, bench.agent.token, agent_id="agent-2")
    reply = await second.sync()
    assert (reply.acting, reply.run) == (False, ())
    bench.clock.advance(16)
    reply = await second.sync()
    assert reply.acting
    assert [item.job_id for item in reply.run] == [controller.job_id]
    assert not (await first.sync()).acting


async def test_an_agent_that_follows_under_the_same_name_acts_at_once(bench: Bench) -> None:
    """It has seen nothing yet, so it hears all that is to run."""
    controller = await bench.start()
    reply = await type(bench.agent)(bench.client, bench.agent.token, agent_id=bench.agent.agent_id).sync()
    assert (reply.acting, [item.job_id for item in reply.run]) == (True, [controller.job_id])


async def test_no_agent_or_cluster_lives_on_by_a_clock_that_was_set_back(bench: Bench) -> None:
    controller = await bench.start()
    second = type(bench.agent)(bench.client, bench.agent.token, agent_id="agent-2")
    bench.clock.advance(-7200)
    assert (await bench.get("/cluster"))["clusters"][0]["status"] == "offline"
    reply = await second.sync()
    assert (reply.acting, [item.job_id for item in reply.run]) == (True, [controller.job_id])
    assert (await bench.get("/cluster"))["clusters"][0]["status"] == "online"


@pytest.mark.parametrize("wrong", [{"wait": math.nan}, {"wait": math.inf}, {"cpu": math.nan}, {"gpu_used": math.inf}])
async def test_a_sync_with_numbers_that_no_clock_counts_is_refused(bench: Bench, wrong: dict[str, float]) -> None:
    in_node = wrong.keys() - {"wait"}
    node = {"node_id": "node-1", "address": "127.0.0.1", "cpu": 8} | (wrong if in_node else {})
    body = {"agent_id": "a", "wire_version": WIRE_VERSION, "nodes": [node], "wait": 0} | ({} if in_node else wrong)
    async with asyncio.timeout(30):
        refused = await bench.client.post(
            "/cluster/v1/clusters/default/sync",
            content=json.dumps(body),
            headers={**bearer(bench.agent.token), "Content-Type": "application/json"},
        )
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert (await bench.get("/cluster"))["clusters"] == []


async def test_a_restart_gives_every_attempt_a_whole_lease(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url) as bench:
        controller = await bench.start()
        acquired = controller.acquired
        clock = bench.clock
    clock.advance(3600)
    async with make_bench(database_url, clock=clock) as bench:
        await bench.loop.run_once()
        assert (await bench.job("digits"))["status"] == "running", "the silence was the service's own"
        controller.client = bench.client
        await controller.report(step=9)
        assert controller.acquired is acquired
        assert (await bench.job("digits"))["step"] == 9


async def test_an_unacknowledged_log_tail_is_never_read_and_is_cut(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url) as bench:
        controller = await bench.start()
        await controller.report(logs=(log_line("kept"),))
        folder = bench.settings.home / "logs" / controller.job_id
    # As kill -9 leaves it between the append and the commit.
    segment = folder / "00000000.jsonl"
    committed = segment.read_bytes()
    segment.write_bytes(committed + committed + b'{"half')
    (folder / "00000001.jsonl").write_bytes(b'{"rotated')
    async with make_bench(database_url) as bench:
        if bench.settings.is_sqlite:
            assert segment.read_bytes() == committed
            assert not (folder / "00000001.jsonl").exists()
        # Elsewhere another replica may be writing just there: whoever appends next cuts it.
        assert [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]] == ["kept"]
        controller.client = bench.client
        await controller.report(logs=(log_line("again"),))
        assert [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]] == ["kept", "again"]
        assert segment.read_bytes().count(b"\n") == 2


async def test_a_failed_commit_leaves_no_doubled_log_line(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    report = controller.next_report(logs=(log_line("once"),), metrics=(metric(1),))

    async def fail(*_: object, **__: object) -> None:
        raise OSError("injected behind the append")

    with monkeypatch.context() as patch:
        patch.setattr("service.ingest.settle_status", fail)
        assert (await controller.send(report)).status_code == 500
    segment = bench.settings.home / "logs" / controller.job_id / "00000000.jsonl"
    assert segment.stat().st_size > 0, "the fault took effect behind the append"
    assert (await bench.get("/jobs/digits/logs"))["items"] == []
    assert (await controller.send(report)).status_code == 200
    assert [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]] == ["once"]
    assert len(segment.read_bytes().splitlines()) == 1


async def test_a_superseded_long_poll_ends_at_once(bench: Bench) -> None:
    first = await bench.start()
    successor = await bench.controller_of(first.job_id, process=OTHER_PID)
    version = (await first.desired()).version
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        poll = group.create_task(first.try_desired(after=version, wait=25))
        await asyncio.sleep(0)
        await successor.acquire(gone=1)
    assert (poll.result().status_code, poll.result().json()["code"]) == (409, "fenced")
