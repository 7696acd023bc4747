"""Webhooks against a real HTTPS server: what is told, signed, tried again, given up, and never sent anywhere else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import insert, select
from standardwebhooks import Webhook as Verifier

from rubato.wire.cluster import Failure, Outcome
from service.models import Delivery, Webhook
from service.webhooks.outbox import CLAIM_LIFETIME, RETENTION, claim, delivery_row, forget_old, settle
from service.webhooks.retries import MAX_TRIES, DeliveryDecision
from service.webhooks.sending import Sent
from service.webhooks.turns import REST
from tests.https_server import HOST, HttpsServer, https_server
from tests.integration.service.processes import ServiceProcess, submit
from tests.simulated_controller import log_line
from tests.webhook_hands import HERE, WEBHOOKS, Names, add, deliveries, dispatcher, kinds

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


def asking(webhook: str) -> dict[str, Any]:
    return {"name": "a", "recipe": "image-classifier", "notifications": [{"on": ["failed"], "webhook": webhook}]}


async def test_a_webhook_is_shown_without_its_secret_but_once(bench: Bench, server: HttpsServer) -> None:
    secret = await add(bench, server, "status", "status")
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    (shown,) = (await bench.get(WEBHOOKS))["items"]
    assert (shown["name"], shown["url"], shown["events"]) == ("team", server.url(), ["status"])
    assert "secret" not in shown
    taken = await bench.post(WEBHOOKS, 409, {"name": "team", "url": server.url()})
    assert taken["code"] == "name_taken"
    await bench.post(WEBHOOKS, 422, {"name": "local", "url": "https://127.0.0.2/"})
    async with bench.context.database.read() as session:
        webhook = (await session.scalars(select(Webhook))).one()
    assert secret.encode() not in webhook.sealed
    audit = (await bench.get("/audit"))["items"]
    assert [(entry["action"], secret in str(entry)) for entry in audit] == [("webhook.created", False)]
    assert (await bench.client.delete(f"/api/v1{WEBHOOKS}/team")).status_code == 204
    assert (await bench.client.delete(f"/api/v1{WEBHOOKS}/team")).status_code == 404


async def test_what_is_sent_is_signed_and_says_what_happened(bench: Bench, server: HttpsServer) -> None:
    secret = await add(bench, server, "status")
    job = await bench.submit()
    await bench.schedule()
    await dispatcher(bench, server).run_once()
    (one,) = server.received
    message = json.loads(one.body)
    assert (message["type"], message["timestamp"]) == ("job.status", "2026-01-31T12:00:00.000000Z")
    assert message["data"]["job"] == {"id": job["id"], "name": "digits", "project": "default"}
    assert message["data"]["event"]["data"] == {"from": "queued", "to": "starting", "reason": None}
    assert message["data"]["event"]["message"].startswith("queued became starting: ")
    (delivery,) = await deliveries(bench)
    assert one.headers["webhook-id"] == delivery["id"]
    assert one.headers["host"] == f"{HOST}:{server.port}"
    assert one.headers["webhook-timestamp"] == str(int(bench.clock().timestamp()))
    signed = b".".join((delivery["id"].encode(), one.headers["webhook-timestamp"].encode(), one.body))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert one.headers["webhook-signature"] == f"v1,{mac}"
    assert (delivery["status"], delivery["tries"], delivery["last_status"], delivery["error"]) == (
        "delivered",
        1,
        204,
        "",
    )


async def test_each_webhook_is_told_of_what_it_asked_for(bench: Bench, server: HttpsServer) -> None:
    for topic in ("status", "scaling", "failure", "checkpoint"):
        await add(bench, server, topic, name=topic, path=f"/{topic}")
    await add(bench, server, name="all", path="/all")
    await bench.post("/projects", 201, {"name": "other"})
    await bench.submit("foreign", project="other")
    controller = await bench.start(workers={"initial": 1, "max": 4})
    await bench.post("/jobs/digits/scale", 202, {"workers": 2})
    formed = {"generation": 2, "workers": 2, "from_workers": 1, "paused_seconds": 0.1}
    await controller.report(
        events=(
            controller.event("generation.formed", cause="scale_up", **formed),
            controller.event("generation.formed", cause="recovery", **formed),
            controller.event("worker.lost", worker_id="w1"),
            controller.event("worker.ready"),
            controller.event("checkpoint.committed", step=10, checkpoint_id="1-10", bytes=1, files=[]),
            controller.event("checkpoint.failed", step=20, cause="disk"),
        )
    )
    await controller.report(outcome=Outcome("failed", failure=Failure("user", "user_code_error", "it broke")))
    await dispatcher(bench, server).run_once()
    status = ["job.status"] * 3
    assert kinds(server, "/status") == status, "starting, running, failed"
    assert kinds(server, "/scaling") == ["job.scale_requested", "generation.formed"]
    assert kinds(server, "/failure") == ["worker.lost", "checkpoint.failed", "job.status"]
    assert kinds(server, "/checkpoint") == ["checkpoint.committed", "checkpoint.failed"]
    assert len(kinds(server, "/all")) == 3 + 2 + 2 + 1
    assert "foreign" not in str([one.body for one in server.received])


async def test_a_job_asks_for_what_its_webhooks_do_not_tell_of_every_job(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "asked", name="team", path="/team")
    await add(bench, server, "failure", name="duty", path="/duty")
    asked = [{"on": ["running", "failed"], "webhook": "team"}, {"on": ["failed"], "webhook": "duty"}]
    await bench.submit("others")
    controller = await bench.start("digits", notifications=asked)
    await controller.report(events=(controller.event("worker.lost", worker_id="w1"),))
    await controller.report(outcome=Outcome("failed", failure=Failure("user", "user_code_error", "it broke")))
    await dispatcher(bench, server).run_once()
    told = [json.loads(one.body)["data"] for one in server.received if one.path == "/team"]
    assert [(one["job"]["name"], one["event"]["data"]["to"]) for one in told] == [
        ("digits", "running"),
        ("digits", "failed"),
    ]
    assert kinds(server, "/duty") == ["worker.lost", "job.status"], "what it asks for itself, and that once"


async def test_a_job_cannot_ask_a_webhook_that_is_not_there(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "asked", name="team")
    for dry_run in (True, False):
        (finding,) = (await bench.post("/jobs", 422, asking("teem"), dry_run=dry_run))["errors"]
        assert finding["path"] == "notifications"
        assert finding["message"].startswith("the project 'default' has no webhook 'teem'")
    made = await bench.post("/jobs", 201, asking("team"))
    assert made["spec"]["notifications"] == asking("team")["notifications"]


async def test_secrets_are_not_told(bench: Bench, server: HttpsServer) -> None:
    await bench.client.put("/api/v1/projects/default/secrets/TOKEN", json={"value": "c4n4ry-value"})
    await add(bench, server)
    controller = await bench.start(secrets=["TOKEN"])
    lost = controller.event("worker.lost", "it said c4n4ry-value", cause="c4n4ry-value")
    await controller.report(events=(lost,), logs=(log_line("c4n4ry-value"),))
    await dispatcher(bench, server).run_once()
    bodies = b"".join(one.body for one in server.received)
    assert b"it said [secret TOKEN]" in bodies
    assert b"c4n4ry" not in bodies


async def test_500s_and_then_200(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.schedule()
    server.answers = [500, 503, 200]
    loop = dispatcher(bench, server)
    waits = []
    for tries in (1, 2):
        await loop.run_once()
        (delivery,) = await deliveries(bench)
        assert (delivery["status"], delivery["tries"], delivery["last_status"]) == (
            "pending",
            tries,
            (500, 503)[tries - 1],
        )
        assert delivery["error"] == f"It answered with {delivery['last_status']}."
        due = (await _row(bench)).next_at
        assert due is not None
        waits.append((due - bench.clock()).total_seconds())
        await loop.run_once()
        assert len(server.received) == tries, "not before its time"
        bench.clock.advance(waits[-1] + REST.total_seconds())
    assert 2.5 <= waits[0] <= 5 < 10 <= waits[1] <= 20
    await loop.run_once()
    (delivery,) = await deliveries(bench)
    assert (delivery["status"], delivery["tries"], delivery["error"]) == ("delivered", 3, "")
    assert len({one.headers["webhook-id"] for one in server.received}) == 1, "a receiver can tell that it is the same"
    assert len({one.headers["webhook-signature"] for one in server.received}) == 3, "fresh each time"


async def _row(bench: Bench) -> Delivery:
    async with bench.context.database.read() as session:
        return (await session.scalars(select(Delivery))).one()


async def test_what_never_arrives_is_given_up_and_shown(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.schedule()
    server.answers = [500] * 100
    loop = dispatcher(bench, server)
    for _ in range(MAX_TRIES + 1):
        await loop.run_once()
        bench.clock.advance(6 * 3600 + 60)
    assert len(server.received) == MAX_TRIES
    (delivery,) = await deliveries(bench, status="failed")
    assert delivery["error"] == f"It answered with 500. It was given up after {MAX_TRIES} tries."
    assert delivery["next_at"] is None
    assert await deliveries(bench, status="pending") == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("/elsewhere", "a redirect (302), and none is followed"),
        (410, "It wants no more of it"),
        ("hang", "no answer within"),
    ],
)
async def test_an_endpoint_that_misbehaves(bench: Bench, server: HttpsServer, answer: int | str, says: str) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.schedule()
    server.answers = [server.url(answer) if isinstance(answer, str) and answer.startswith("/") else answer]
    await dispatcher(bench, server, **({"timeout_s": 2.0} if answer == "hang" else {})).run_once()
    (delivery,) = await deliveries(bench)
    assert says in delivery["error"]
    assert delivery["status"] == ("failed" if answer == 410 else "pending")
    assert {one.path for one in server.received} <= {"/hook"}


async def test_of_a_body_without_an_end_nothing_is_read(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.schedule()
    server.answers = ["drip"]
    await dispatcher(bench, server).run_once()
    (delivery,) = await deliveries(bench)
    assert (delivery["status"], delivery["last_status"]) == ("delivered", 200)


async def test_a_name_that_answers_otherwise_the_second_time(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "scaling")
    await bench.submit(workers={"initial": 1, "max": 4})
    # What would have been asked again between the check and the connection would lead to 127.0.0.2.
    names = Names("127.0.0.1", "127.0.0.2")
    loop = dispatcher(bench, server, names)
    for workers in (2, 3):
        await bench.post("/jobs/digits/scale", 202, {"workers": workers})
        await loop.run_once()
        assert names.asked == workers - 1
        assert len(server.received) == 1, "resolved once a try, and connected to that very address"
    delivery, before = await deliveries(bench)
    assert (before["status"], delivery["status"]) == ("delivered", "pending")
    assert f"{HOST} leads to 127.0.0.2; only public addresses are allowed" in delivery["error"]
    assert "RUBATO_WEBHOOK_NETWORKS" in delivery["error"]


async def test_a_certificate_for_another_name_is_refused(bench: Bench, tmp_path: Path) -> None:
    with https_server(tmp_path / "other", name="other.example") as server:
        await add(bench, server, "status")
        await bench.submit()
        await bench.schedule()
        await dispatcher(bench, server).run_once()
        (delivery,) = await deliveries(bench)
        assert "The connection failed: " in delivery["error"]
        assert "certificate" in delivery["error"].lower()
        assert server.received == []


async def test_a_test_is_tried_once_and_waited_for(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "failure")
    path = f"{WEBHOOKS}/team/test"
    loop = dispatcher(bench, server)
    for answer, status in ((204, "delivered"), (500, "failed")):
        server.answers = [answer]
        running = asyncio.ensure_future(bench.post(path, 200, wait=60))
        while not running.done():
            await loop.run_once()
            await asyncio.sleep(0)
        shown = await running
        assert (shown["status"], shown["tries"], shown["last_status"], shown["type"]) == (
            status,
            1,
            answer,
            "webhook.test",
        )
    assert json.loads(server.received[0].body)["data"] == {"project": "default", "webhook": "team"}
    assert (await bench.post(path, 202, wait=0))["finished_at"] is None
    assert (await bench.post(f"{WEBHOOKS}/nope/test", 404))["code"] == "not_found"


async def test_off_is_off(make_bench: MakeBench, server: HttpsServer, database_url: str) -> None:
    async with make_bench(database_url, webhooks=True) as bench:
        await add(bench, server)
    async with make_bench(database_url) as bench:
        refused = await bench.post(WEBHOOKS, 409, {"name": "b", "url": server.url()})
        assert "RUBATO_WEBHOOKS=true" in refused["detail"]
        await bench.post(f"{WEBHOOKS}/team/test", 409)
        (finding,) = (await bench.post("/jobs", 422, asking("team")))["errors"]
        assert "RUBATO_WEBHOOKS=true" in finding["message"]
        await bench.submit()
        await bench.post("/jobs/digits/cancel", 202)
        assert await deliveries(bench) == []


async def test_what_did_not_happen_is_not_told(
    bench: Bench, server: HttpsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(bench, server)
    controller = await bench.start()
    before = len(await deliveries(bench))

    async def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("service.ingest.store_metrics", fail)
    report = controller.next_report(events=(controller.event("worker.lost"),))
    assert (await controller.send(report)).status_code == 500
    assert len(await deliveries(bench)) == before
    monkeypatch.undo()
    for _ in range(2):
        assert (await controller.send(report)).status_code == 200
    assert len(await deliveries(bench)) == before + 1, "sent again, it is one event"


async def test_a_claim_that_ran_out_is_another_one_s(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.schedule()
    webhook_id = (await _row(bench)).webhook_id

    async def take() -> Any:
        async with bench.context.database.write() as session:
            return await claim(session, webhook_id, bench.clock())

    lost = await take()
    assert await take() is None, "it is claimed"
    await dispatcher(bench, server).run_once()
    assert server.received == []
    bench.clock.advance(CLAIM_LIFETIME.total_seconds())
    again = await take()
    assert (again.parcel, again.tries) == (lost.parcel, 2)
    async with bench.context.database.write() as session:
        await settle(session, lost, Sent(500, "late"), DeliveryDecision("failed", None, "late"), bench.clock())
    assert (await _row(bench)).status == "pending", "who lost the claim decides nothing"
    async with bench.context.database.write() as session:
        await settle(session, again, Sent(204), DeliveryDecision("delivered", None, ""), bench.clock())
    assert (await _row(bench)).status == "delivered"


async def test_deliveries_are_kept_for_a_while(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    await bench.submit()
    await bench.schedule()
    first = await deliveries(bench)
    bench.clock.advance(RETENTION.total_seconds() - 1)
    await bench.post("/jobs/digits/cancel", 202)
    both = await deliveries(bench)
    assert len(both) > len(first) == 1
    for kept in (both, both[: -len(first)]):
        async with bench.context.database.write() as session:
            await forget_old(session, bench.clock())
        assert await deliveries(bench) == kept
        bench.clock.advance(2)


async def test_of_two_replicas_each_delivery_has_one(
    make_bench: MakeBench, new_postgres: Callable[[], str], server: HttpsServer
) -> None:
    url = new_postgres()
    options = {"webhooks": True, "webhook_networks": (HERE,)}
    async with make_bench(url, **options) as first, make_bench(url, clock=first.clock, **options) as second:
        for index in range(4):
            await add(first, server, "status", name=f"team-{index}", path=f"/{index}")
        for index in range(10):
            await first.submit(f"job-{index}")
            await first.post(f"/jobs/job-{index}/cancel", 202)
        loops = [dispatcher(bench, server) for bench in (first, second)]
        for _ in range(3):
            await asyncio.gather(*(loop.run_once() for loop in loops))
        counts = Counter(one.headers["webhook-id"] for one in server.received)
        written = [one for index in range(4) for one in await deliveries(first, f"team-{index}")]
    assert {one["status"] for one in written} == {"delivered"}
    assert counts == {one["id"]: 1 for one in written}
    assert len(written) == 4 * 10 * 2, "stopping, cancelled"


async def test_of_eight_that_claim_at_once_each_delivery_has_one(bench: Bench, server: HttpsServer) -> None:
    await add(bench, server, "status")
    webhook_id = (await bench.get(WEBHOOKS))["items"][0]["id"]
    async with bench.context.database.write() as session:
        rows = [delivery_row(webhook_id, None, "job.status", str(number), bench.clock()) for number in range(200)]
        await session.execute(insert(Delivery), rows)

    async def claim_all() -> list[str]:
        claimed = []
        while True:
            async with bench.context.database.write() as session:
                found = await claim(session, webhook_id, bench.clock())
            if found is None:
                return claimed
            assert found.tries == 1
            claimed.append(found.parcel.message_id)

    claimed = await asyncio.gather(*(claim_all() for _ in range(8)))
    assert Counter(one for by_one in claimed for one in by_one) == Counter(row["id"] for row in rows)
    if not bench.context.settings.is_sqlite:  # which has one writer
        assert sum(bool(by_one) for by_one in claimed) > 1, "they took turns for one that did all"


async def test_a_real_service_delivers_by_itself(tmp_path: Path, server: HttpsServer) -> None:
    process = ServiceProcess(
        tmp_path / "home",
        RUBATO_WEBHOOKS="true",
        RUBATO_WEBHOOK_NETWORKS='["127.0.0.1/32"]',
        RUBATO_WEBHOOK_CA_FILE=str(server.ca_file),
    )
    process.start()
    try:
        async with process.client() as client:
            body = {"name": "team", "url": server.url(host="127.0.0.1"), "events": ["status"]}
            made = await client.post("/api/v1/projects/default/webhooks", json=body)
            assert made.status_code == 201, made.text
            server.answers = [500]
            await submit(client, "digits")
            assert (await client.post("/api/v1/jobs/digits/cancel")).status_code == 202
            delivered = await _wait_delivered(client, 2)
        assert process.stop() == 0
    finally:
        process.end()
    assert max(one["tries"] for one in delivered) >= 2, "the first one was refused with 500"
    for one in server.received:
        assert Verifier(made.json()["secret"]).verify(one.body, one.headers)["data"]["job"]["name"] == "digits"


async def _wait_delivered(client: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(200):
        while True:
            page = await client.get("/api/v1/projects/default/webhooks/team/deliveries", params={"status": "delivered"})
            if len(items := page.json()["items"]) == count:
                return list(items)
            await asyncio.sleep(0.1)
