"""Changing and cloning jobs, entity tags, and requests that are sent twice."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from rubato.wire.cluster import Outcome, Result
from rubato.wire.spec import MAX_LABEL_VALUE
from service.jobs import find
from service.models import AuditEntry, Job

if TYPE_CHECKING:
    import httpx

    from tests.integration.service.conftest import Bench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio


async def patch(bench: Bench, body: Any, job: str = "digits", **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await bench.client.patch(f"/api/v1/jobs/{job}", json=body, headers=sent)


async def finish(controller: SimulatedController) -> None:
    await controller.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest="d")), step=1)


async def commit_checkpoint(controller: SimulatedController, step: int, files: tuple[Any, ...] = ()) -> None:
    name = f"1-{step}"
    event = controller.event("checkpoint.committed", step=step, checkpoint_id=name, bytes=10, files=list(files))
    await controller.report(events=(event,), step=step)


async def test_a_change_is_merged_told_and_audited(bench: Bench) -> None:
    await bench.submit(labels={"team": "vision", "old": "1"}, workers={"initial": 2, "max": 4})
    changes = {
        "labels": {"old": None, "owner": "me"},
        "scheduling": {"priority": 80},
        "workers": {"max": 6},
        "limits": {"queue_timeout": "1h"},
    }
    response = await patch(bench, changes)
    assert response.status_code == 200, response.text
    job = response.json()
    assert job["labels"] == {"team": "vision", "owner": "me"}
    assert (job["min_workers"], job["max_workers"], job["desired_workers"]) == (1, 6, 2)
    assert job["spec"]["scheduling"] == {"priority": 80, "preemptible": True}
    assert job["spec"]["limits"]["queue_timeout"] == 3600
    assert job["spec"]["limits"]["stop_grace"] == 30
    event = (await bench.get("/jobs/digits/events"))["items"][-1]
    assert event["kind"] == "job.updated"
    assert event["data"]["changes"]["workers.max"] == {"from": 4, "to": 6}
    assert "scheduling.priority from 50 to 80" in event["message"]
    async with bench.context.database.read() as session:
        entry = (await session.scalars(select(AuditEntry).order_by(AuditEntry.id.desc()).limit(1))).one()
    assert (entry.actor, entry.action, entry.job_id, entry.detail) == ("admin", "job.updated", job["id"], event["data"])
    await bench.schedule()
    assert (await bench.job("digits"))["status"] == "starting"


async def test_a_change_costs_no_place_in_the_queue(bench: Bench) -> None:
    """A job that was put off for others may have kept one that does not follow from when it was queued."""
    await bench.submit()
    kept = bench.clock() - timedelta(hours=9)
    async with bench.context.database.write() as session:
        await session.execute(update(Job).values(ranked_at=kept))
    for changes, is_kept in (({"labels": {"a": "b"}}, True), ({"scheduling": {"priority": 51}}, False)):
        assert (await patch(bench, changes)).status_code == 200
        async with bench.context.database.read() as session:
            assert ((await find(session, "digits")).ranked_at == kept) is is_kept


async def test_nothing_changed_writes_nothing(bench: Bench) -> None:
    await bench.submit()
    before = await bench.get("/jobs/digits/events")
    response = await patch(bench, {"labels": {"gone": None}, "scheduling": {"priority": 50}})
    assert response.status_code == 200
    assert await bench.get("/jobs/digits/events") == before


async def test_what_an_older_release_left_out_is_no_change_that_somebody_made(bench: Bench) -> None:
    await bench.submit(labels={"a": "1"})
    async with bench.context.database.write() as session:
        job = await find(session, "digits", for_update=True)
        # As stored before these fields were there.
        spec = {name: value for name, value in job.spec.items() if name != "reproducible"}
        job.spec = {**spec, "workers": {name: value for name, value in spec["workers"].items() if name != "standby"}}
    same = await bench.client.patch("/api/v1/jobs/digits", json={"labels": {"a": "1"}})
    assert same.status_code == 200, same.text
    changed = await bench.client.patch("/api/v1/jobs/digits", json={"labels": {"a": "2"}})
    assert changed.status_code == 200, changed.text
    told = [event for event in (await bench.get("/jobs/digits/events"))["items"] if event["kind"] == "job.updated"]
    assert [event["data"]["changes"] for event in told] == [{"labels.a": {"from": "1", "to": "2"}}]
    assert told[0]["message"] == "admin changed labels.a from 1 to 2."


async def test_the_tag_outlives_reports_and_names_what_was_seen(bench: Bench) -> None:
    controller = await bench.start(workers={"initial": 2, "max": 4})
    first = await bench.client.get("/api/v1/jobs/digits")
    tag = first.headers["etag"]
    assert first.json()["etag"] == tag
    await controller.report(step=7, workers=2)
    assert (await bench.client.get("/api/v1/jobs/digits")).headers["etag"] == tag, "a report is not an edit"
    response = await patch(bench, {"workers": {"max": 5}}, If_Match=f'"other", {tag}')
    assert response.status_code == 200
    assert response.headers["etag"] != tag
    stale = await patch(bench, {"workers": {"max": 8}}, If_Match=tag)
    assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed")
    assert stale.json()["etag"] == response.headers["etag"]
    assert (await bench.job("digits"))["max_workers"] == 5
    for verb, body in (("scale", {"workers": 3}), ("pause", None), ("cancel", None)):
        refused = await bench.client.post(f"/api/v1/jobs/digits/{verb}", json=body, headers={"If-Match": tag})
        assert refused.status_code == 412, verb
    assert (await patch(bench, {"workers": {"max": 8}}, If_Match="*")).status_code == 200
    weak = f"W/{(await bench.job('digits'))['etag']}"
    assert (await patch(bench, {"workers": {"max": 4}}, If_Match=weak)).status_code == 412, "weak tags never match"


async def test_new_bounds_move_the_wish_and_reach_the_controller(bench: Bench) -> None:
    controller = await bench.start(workers={"initial": 2, "max": 4})
    before = await controller.desired()
    response = await patch(bench, {"workers": {"min": 3, "max": 6}})
    assert response.json()["desired_workers"] == 3
    await bench.loop.run_once()
    after = await controller.desired(after=before.version, wait=5)
    assert (after.version, after.workers) == (before.version + 1, 3)
    assert (await patch(bench, {"workers": {"min": 1, "max": 2}})).json()["desired_workers"] == 2
    event = (await bench.get("/jobs/digits/events"))["items"][-1]
    assert event["message"].endswith("2 workers are wanted now instead of 3.")
    await bench.post("/jobs/digits/scale", 422, {"workers": 3})


async def test_a_limit_that_waits_for_the_next_attempt_says_so(bench: Bench) -> None:
    controller = await bench.start()
    assert (await patch(bench, {"limits": {"stop_grace": 90, "queue_timeout": 60}})).status_code == 200
    event = (await bench.get("/jobs/digits/events"))["items"][-1]
    assert event["data"]["from_next_attempt"] == ["limits.stop_grace"]
    assert "limits.stop_grace will count from the next attempt on" in event["message"]
    again = await controller.acquire()
    assert again.spec["limits"]["stop_grace"] == 90


@pytest.mark.parametrize(
    ("body", "status", "code", "path"),
    [
        ({"seed": 1}, 422, "invalid_request", "seed"),
        ({"workers": {"initial": 3}}, 422, "invalid_request", "workers.initial"),
        ({"workers": {"min": 9, "max": 4}}, 422, "invalid_spec", "workers.max"),
        ({"workers": {"max": 5000}}, 422, "invalid_spec", "workers.max"),
        ({"workers": {"max": 64}}, 422, "invalid_spec", "batch.num_microbatches"),
        ({"scheduling": {"priority": 101}}, 422, "invalid_spec", "scheduling.priority"),
        ({"labels": {"a": 1}}, 422, "invalid_spec", "labels.a"),
        ({"limits": None}, 422, "invalid_request", "limits"),
        ([], 422, "invalid_request", None),
    ],
)
async def test_a_change_that_does_not_hold_names_the_field(
    bench: Bench, body: Any, status: int, code: str, path: str | None
) -> None:
    before = await bench.submit()
    response = await patch(bench, body)
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert path is None or path in {item["path"] for item in response.json()["errors"]}
    assert (await bench.job("digits"))["etag"] == before["etag"]


async def test_null_takes_all_labels_away(bench: Bench) -> None:
    await bench.submit(labels={"team": "vision", "old": "1"})
    for has_changed in (True, False):
        before = await bench.job("digits")
        response = await patch(bench, {"labels": None})
        assert (response.status_code, response.json()["labels"]) == (200, {}), response.text
        assert (response.json()["etag"] != before["etag"]) is has_changed
    assert (await bench.get("/jobs", label="team=vision"))["items"] == []


async def test_of_an_ended_job_only_labels_change(bench: Bench) -> None:
    await finish(await bench.start())
    response = await patch(bench, {"labels": {"good": "yes"}})
    assert (response.status_code, response.json()["labels"]) == (200, {"good": "yes"})
    refused = await patch(bench, {"labels": {"good": "no"}, "scheduling": {"priority": 1}})
    assert (refused.status_code, refused.json()["code"]) == (409, "job_final")
    assert (await patch(bench, {"labels": {}}, job="unknown")).status_code == 404
    text = await bench.client.patch("/api/v1/jobs/digits", content=b"a: 1", headers={"Content-Type": "text/yaml"})
    assert text.status_code == 415


async def test_a_request_sent_twice_under_a_key_counts_once(bench: Bench) -> None:
    controller = await bench.start()
    key = {"Idempotency-Key": "k"}
    first = await bench.client.post("/api/v1/jobs/digits/checkpoint", headers=key)
    again = await bench.client.post("/api/v1/jobs/digits/checkpoint", headers=key)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert (await controller.desired()).checkpoint_request == 1
    other = await bench.client.post("/api/v1/jobs/digits/scale", json={"workers": 2}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    await bench.post("/jobs/digits/checkpoint", 202)
    assert (await controller.desired()).checkpoint_request == 2


async def test_a_clone_is_the_same_job_but_for_what_was_said(bench: Bench) -> None:
    origin = await bench.submit(config={"lr": 0.1, "epochs": 3}, labels={"team": "vision"})
    response = await bench.client.post(
        "/api/v1/jobs/digits/clone", json={"overrides": {"config": {"lr": 0.01}, "labels": {"team": None}}}
    )
    assert response.status_code == 201, response.text
    job = response.json()
    assert response.headers["location"] == f"/api/v1/jobs/{job['id']}"
    assert response.headers["etag"] == job["etag"]
    assert (job["name"], job["status"], job["labels"]) == ("digits-2", "queued", {})
    assert job["spec"]["config"] == {"lr": 0.01, "epochs": 3}
    assert {**job["spec"], "name": "", "config": {}, "labels": {}} == {
        **origin["spec"],
        "name": "",
        "config": {},
        "labels": {},
    }
    event = (await bench.get(f"/jobs/{job['id']}/events"))["items"][0]
    assert event["data"]["cloned_from"] == origin["id"]
    assert (await bench.post("/jobs/digits/clone", 201, {}))["name"] == "digits-3"
    assert (await bench.post("/jobs/digits/clone", 201, {"overrides": {"name": "mine"}}))["name"] == "mine"


async def test_a_clone_of_a_job_with_many_clones_gets_the_first_number_that_is_free(bench: Bench) -> None:
    await bench.submit()
    for number in (*range(2, 20), *range(21, 24)):
        await bench.submit(f"digits-{number}")
    await bench.submit("digits-20x")
    assert [(await bench.post("/jobs/digits/clone", 201, {}))["name"] for _ in range(2)] == ["digits-20", "digits-24"]


async def test_a_clone_begins_from_a_checkpoint(bench: Bench) -> None:
    controller = await bench.start()
    refused = await bench.post("/jobs/digits/clone", 409, {"from_checkpoint": "latest"})
    assert "has no checkpoint" in refused["detail"]
    await commit_checkpoint(controller, 10)
    await commit_checkpoint(controller, 20)
    newest, older = (await bench.get("/jobs/digits/checkpoints"))["items"]
    for wanted, checkpoint in (("latest", newest), (older["id"], older)):
        job = await bench.post("/jobs/digits/clone", 201, {"from_checkpoint": wanted})
        assert job["spec"]["checkpoint"]["resume_from"] == checkpoint["id"]
        await bench.schedule()
        acquired = await (await bench.controller_of(job["id"])).acquire()
        assert acquired.spec["checkpoint"]["resume_from"] == f"{controller.job_id}/{checkpoint['checkpoint_id']}"
    for overrides, path in (
        ({"seed": 5}, "seed"),
        ({"batch": {"global_size": 512}}, "batch.global_size"),
        ({"batch": {"num_microbatches": 16}}, "batch.num_microbatches"),
    ):
        refused = await bench.post("/jobs/digits/clone", 422, {"from_checkpoint": "latest", "overrides": overrides})
        assert [one["path"] for one in refused["errors"]] == [path]
        assert "rubato export" in refused["errors"][0]["message"]
    unknown = await bench.post("/jobs/digits/clone", 422, {"from_checkpoint": "ckpt_nothing"})
    assert unknown["errors"][0]["path"] == "checkpoint.resume_from"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"overrides": {"name": "digits"}}, 409, "name_taken"),
        ({"overrides": {"colour": 1}}, 422, "invalid_spec"),
        ({"overrides": {"name": "a\x00b"}}, 422, "invalid_request"),
        ({"from_checkpoint": "\x00"}, 422, "invalid_request"),
        ({"overrides": 3}, 422, "invalid_request"),
        ({"spec": {}}, 422, "invalid_request"),
    ],
)
async def test_a_clone_that_does_not_hold_is_refused(bench: Bench, body: Any, status: int, code: str) -> None:
    await bench.submit()
    assert (await bench.post("/jobs/digits/clone", status, body))["code"] == code
    assert len((await bench.get("/jobs"))["items"]) == 1


OWN = {"recipe": None, "entrypoint": "train.py"}
"""A program that takes any config."""


async def test_a_clone_is_no_larger_than_what_can_be_submitted(bench: Bench) -> None:
    limit = bench.settings.max_spec_bytes
    await bench.submit(**OWN, config={"a": "x" * (limit - 100)})  # with its defaults it is over the limit
    for overrides in ({"config": {"b": "x" * 1_000}}, {"config": {"a": "\u00e9" * (limit - 5_000)}}):
        refused = await bench.post("/jobs/digits/clone", 413, {"overrides": overrides})
        assert refused["code"] == "body_too_large"
        assert f"it may have {limit}" in refused["detail"]
    await bench.post("/jobs/digits/clone", 201, {"overrides": {"labels": {"team": "vision"}}})
    await bench.post("/jobs/digits-2/clone", 201, {})


async def test_changes_do_not_add_up_to_more_than_can_be_submitted(bench: Bench) -> None:
    limit = bench.settings.max_spec_bytes
    await bench.submit(**OWN, config={"a": "x" * (limit - 6_000)}, labels={"old": "x"})
    label = "\u00e9" * MAX_LABEL_VALUE
    answers = [await patch(bench, {"labels": {f"label-{number}": label}}) for number in range(12)]
    assert [answer.status_code for answer in answers[:4] + answers[-1:]] == [200] * 4 + [413]
    refused = answers[-1].json()
    assert (refused["code"], f"it may have {limit}" in refused["detail"]) == ("body_too_large", True)
    spec = (await bench.job("digits"))["spec"]
    assert len(json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode()) <= limit
    for changes in ({"labels": {"old": None}}, {"scheduling": {"priority": 51}}):
        assert (await patch(bench, changes)).status_code == 200


async def test_a_spec_that_its_defaults_made_larger_may_change_and_not_grow(bench: Bench) -> None:
    await bench.submit(**OWN, config={"a": "x" * (bench.settings.max_spec_bytes - 100)})
    assert (await patch(bench, {"labels": {"team": "vision"}})).status_code == 413
    assert (await patch(bench, {"scheduling": {"priority": 51}})).status_code == 200


async def test_a_clone_sent_twice_under_a_key_is_one_job(bench: Bench) -> None:
    await bench.submit()
    replies = [
        await bench.client.post("/api/v1/jobs/digits/clone", json={}, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    ]
    assert [reply.status_code for reply in replies] == [201, 201]
    assert replies[0].json() == replies[1].json()
    assert len((await bench.get("/jobs"))["items"]) == 2
