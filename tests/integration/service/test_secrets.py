"""Secrets: written and never shown, given to attempts only, and taken out of what jobs say."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest
from sqlalchemy import delete, func, select

from rubato.wire.cluster import Failure, Outcome, ProcessIdentity, Report
from service.job_secrets import MAX_JOB_BYTES
from service.models import Attempt, AttemptSecret, Base, Project, Secret
from service.project_secrets import MAX_CHARS
from service.redaction import WITHHELD, Redactor
from service.rotation import seal_anew
from service.vault import KEY_FILE, Sealed, Vault
from tests.integration.service.test_people import make_user
from tests.integration.service.test_removal import blocked_or_done
from tests.simulated_controller import SimulatedController, bearer, log_line, worker

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

CANARY, LATER = "s3cr3t-canary-value", "another-canary-value"
SECRETS = "/api/v1/projects/default/secrets"


async def put(client: httpx.AsyncClient, value: str, name: str = "TOKEN", project: str = "default") -> httpx.Response:
    return await client.put(f"/api/v1/projects/{project}/secrets/{name}", json={"value": value})


async def fetch(controller: SimulatedController, token: str | None = None) -> httpx.Response:
    assert controller.acquired is not None
    headers = bearer(token or controller.acquired.token)
    return await controller.client.get(f"/cluster/v1/jobs/{controller.job_id}/secrets", headers=headers)


async def stored(bench: Bench) -> str:
    """Every cell of every table, as text."""
    async with bench.context.database.read() as session:
        rows = [(await session.execute(select(table))).all() for table in Base.metadata.sorted_tables]
    return repr(rows)


def files(folder: Path) -> bytes:
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert found
    return b"".join(found)


async def test_a_secret_is_set_listed_and_removed_and_never_shown(bench: Bench) -> None:
    made = await put(bench.client, CANARY)
    assert (made.status_code, made.json()["name"], made.json()["updated_by"]) == (201, "TOKEN", "admin")
    bench.clock.advance(5)
    again = await put(bench.client, LATER)
    assert again.status_code == 200
    assert again.json()["created_at"] == made.json()["created_at"] < again.json()["updated_at"]
    await put(bench.client, CANARY, "SECOND")
    listed = await bench.get("/projects/default/secrets")
    assert [item["name"] for item in listed["items"]] == ["SECOND", "TOKEN"]
    page = await bench.get("/projects/default/secrets", limit=1)
    assert (await bench.get("/projects/default/secrets", cursor=page["next_cursor"]))["items"] == listed["items"][1:]
    assert (await bench.client.delete(f"{SECRETS}/TOKEN")).status_code == 204
    assert (await bench.client.delete(f"{SECRETS}/TOKEN")).status_code == 404
    audit = (await bench.get("/audit"))["items"]
    assert [(entry["action"], entry["detail"]["secret"]) for entry in audit] == [
        ("secret.deleted", "TOKEN"),
        ("secret.set", "SECOND"),
        ("secret.set", "TOKEN"),
        ("secret.set", "TOKEN"),
    ]
    said = made.text + again.text + json.dumps(listed) + json.dumps(audit) + await stored(bench)
    for value in (CANARY, LATER):
        assert value not in said
        assert value.encode() not in files(bench.settings.home)


async def test_a_secret_is_replaced_and_removed_as_it_was_seen(bench: Bench) -> None:
    url = f"{SECRETS}/TOKEN"
    nothing = await bench.client.put(url, json={"value": CANARY}, headers={"If-Match": "*"})
    assert (nothing.status_code, nothing.json()["code"]) == (412, "precondition_failed"), "there is none to replace"
    made = await put(bench.client, CANARY)
    (seen,) = (await bench.get("/projects/default/secrets"))["items"]
    assert made.headers["etag"] == made.json()["etag"] == seen["etag"]
    bench.clock.advance(5)
    rotated = await bench.client.put(url, json={"value": LATER}, headers={"If-Match": seen["etag"]})
    assert (rotated.status_code, rotated.headers["etag"] != seen["etag"]) == (200, True)
    for late in (
        await bench.client.put(url, json={"value": CANARY}, headers={"If-Match": seen["etag"]}),
        await bench.client.delete(url, headers={"If-Match": seen["etag"]}),
    ):
        assert (late.status_code, late.json()["etag"]) == (412, rotated.headers["etag"])
    controller = await bench.start(secrets=["TOKEN"])
    assert (await fetch(controller)).json()["secrets"] == {"TOKEN": LATER}
    assert (await bench.client.delete(url, headers={"If-Match": rotated.headers["etag"]})).status_code == 204


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKEN", "short"),
        ("TOKEN", " " * 20),
        ("TOKEN", "abc\ndef\nghi\njkl"),
        ("TOKEN", "1234567\r\n"),
        ("TOKEN", "x" * 16385),
        ("no-name", CANARY),
        ("1X", CANARY),
        ("A" * 129, CANARY),
    ],
)
async def test_a_secret_that_could_not_be_kept_is_refused_and_not_repeated(bench: Bench, name: str, value: str) -> None:
    refused = await put(bench.client, value, name)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    assert value not in refused.text
    nul = await put(bench.client, "a value with \x00 in it")
    assert nul.status_code == 422
    assert "a value with" not in nul.text


async def test_who_writes_and_who_uses(bench: Bench) -> None:
    boss = await make_user(bench, "boss", default="admin")
    ada = await make_user(bench, "ada", default="editor")
    await bench.post("/projects", 201, {"name": "other"})
    assert (await put(boss, CANARY)).status_code == 201
    assert (await put(ada, LATER)).status_code == 403
    assert (await put(boss, CANARY, project="other")).status_code == 404
    assert (await put(bench.client, CANARY, "THEIRS", "other")).status_code == 201
    spec = {"name": "digits", "recipe": "image-classifier"}
    assert (await ada.post("/api/v1/jobs", json={**spec, "secrets": ["TOKEN"]})).status_code == 201
    refused = await ada.post("/api/v1/jobs", json={**spec, "name": "b", "secrets": ["THEIRS"]})
    assert refused.status_code == 422, "another project's secret is none"
    for client in (boss, ada):
        await client.aclose()


async def test_unknown_secrets_are_refused_with_what_to_do(bench: Bench) -> None:
    await put(bench.client, CANARY)
    await bench.submit("known", secrets=["TOKEN"])
    spec = {"name": "digits", "recipe": "image-classifier", "secrets": ["TOKEN", "NOPE"]}
    for parameters in ({}, {"dry_run": True}):
        problem = await bench.post("/jobs", 422, spec, **parameters)
        assert problem["errors"] == [
            {
                "path": "secrets",
                "message": "the project 'default' has no secret 'NOPE'; "
                "set it with `rubato secret set NOPE --project default`",
            }
        ]
    assert (await bench.post("/jobs/known/clone", 422, {"overrides": {"secrets": ["NOPE"]}}))["code"] == "invalid_spec"
    for wrong in (["no-name"], ["TOKEN", "TOKEN"], [f"S{n}" for n in range(65)]):
        assert (await bench.post("/jobs", 422, {**spec, "secrets": wrong}))["errors"][0]["path"] == "secrets"
    both = {**spec, "secrets": ["TOKEN"], "env": {"TOKEN": "x"}}
    assert "stands in env, too" in (await bench.post("/jobs", 422, both))["detail"]


async def test_an_attempt_keeps_its_values_and_the_next_one_gets_the_new(bench: Bench) -> None:
    await put(bench.client, CANARY)
    await put(bench.client, "not-asked-for", "OTHER")
    controller = await bench.start(secrets=["TOKEN"])
    first = await fetch(controller)
    assert (first.status_code, first.json()) == (200, {"secrets": {"TOKEN": CANARY}})
    assert first.headers["cache-control"] == "no-store"
    await put(bench.client, LATER)
    assert (await fetch(controller)).json()["secrets"] == {"TOKEN": CANARY}, "a joiner gets what the others have"
    stale = controller.acquired
    assert stale is not None
    process = ProcessIdentity("node-1", "boot-1", 4343, 78)
    successor = SimulatedController(bench.client, controller.job_id, controller.ticket, process=process)
    await successor.acquire(gone=stale.attempt)
    assert (await fetch(successor)).json()["secrets"] == {"TOKEN": LATER}
    refused = await fetch(successor, stale.token)
    assert (refused.status_code, refused.json()["code"]) == (409, "fenced")
    second = await bench.start("second")
    assert (await fetch(second)).json() == {"secrets": {}}
    assert second.acquired is not None
    assert (await fetch(successor, second.acquired.token)).status_code == 403
    for token in (bench.token, bench.agent.token, controller.ticket):
        assert (await fetch(successor, token)).status_code == 403


async def test_what_a_job_says_is_stored_without_them(bench: Bench) -> None:
    await put(bench.client, CANARY)
    controller = await bench.start(secrets=["TOKEN"])
    await controller.report(logs=(log_line(f"old {CANARY}"),))
    await put(bench.client, LATER)
    assert controller.acquired is not None
    successor = SimulatedController(
        bench.client, controller.job_id, controller.ticket, process=ProcessIdentity("node-1", "boot-1", 1, 1)
    )
    await successor.acquire(gone=controller.acquired.attempt)
    await successor.report(
        # A worker of the attempt before lives on, and holds the old value.
        logs=(log_line(f"{CANARY} and {LATER}"),),
        events=(successor.event("worker.ready", f"heard {LATER}", note={"deep": [CANARY]}),),
        reason=f"waits for {CANARY}",
    )
    assert "waits for [secret TOKEN]" in (await bench.job("digits"))["message"]
    failure = Failure("user", "user_code_error", f"bad {LATER}", traceback=f"  {CANARY}", last_output=(f"{LATER}!",))
    await successor.report(outcome=Outcome("failed", failure=failure))
    job = await bench.job("digits")
    assert (job["status"], job["failure"]["message"], job["message"]) == ("failed", *["bad [secret TOKEN]"] * 2)
    assert (job["failure"]["traceback"], job["failure"]["last_output"]) == ("  [secret TOKEN]", ["[secret TOKEN]!"])
    events = (await bench.get("/jobs/digits/events"))["items"]
    assert ("heard [secret TOKEN]", {"note": {"deep": ["[secret TOKEN]"]}}) in [
        (e["message"], e["data"]) for e in events
    ]
    lines = [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]]
    assert lines == ["old [secret TOKEN]", "[secret TOKEN] and [secret TOKEN]"]
    said = json.dumps([job, events, lines]) + await stored(bench)
    for value in (CANARY, LATER):
        assert value not in said
        assert value.encode() not in files(bench.settings.home)
    async with bench.context.database.read() as session:
        assert await session.scalar(select(func.count()).select_from(AttemptSecret)) == 0, "an ended job needs none"


async def test_values_are_opened_once_for_an_attempt_and_not_for_each_report(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_and_count(vault: Vault, sealed: Sealed, purpose: str) -> str:
        opened.append(purpose)
        return really_open(vault, sealed, purpose)

    really_open = Vault.open
    monkeypatch.setattr(Vault, "open", open_and_count)
    await put(bench.client, CANARY)
    controller = await bench.start(secrets=["TOKEN"])
    for attempt in (1, 2):
        assert controller.acquired is not None
        if attempt == 2:
            process = ProcessIdentity("node-1", "boot-1", 1, 1)
            controller = SimulatedController(bench.client, controller.job_id, controller.ticket, process=process)
            await controller.acquire(gone=1)
        for _ in range(3):
            await controller.report(logs=(log_line(CANARY),))
        assert opened == ["secret:default:TOKEN"] * attempt, "two attempts that were given the same have one value"
    lines = [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]]
    assert lines == ["[secret TOKEN]"] * 6


@pytest.mark.parametrize(("bound", "value"), [("MAX_KEPT", 1), ("KEPT_CHARS", len(CANARY))])
async def test_what_is_kept_for_reports_is_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(f"service.job_secrets.{bound}", value)
    await put(bench.client, CANARY)
    controllers = [await bench.start(name, secrets=["TOKEN"]) for name in ("one", "two")]
    for controller in controllers:
        await controller.report(logs=(log_line(CANARY),))
        assert len(bench.context.redactors._kept) == 1
    await controllers[0].report(logs=(log_line(CANARY),))
    lines = [item["line"] for item in (await bench.get("/jobs/one/logs"))["items"]]
    assert lines == ["[secret TOKEN]"] * 2, "what was dropped is made again"


async def test_whoever_writes_does_not_wait_for_a_long_redaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(bench.client, CANARY)
    controller = await bench.start(secrets=["TOKEN"])
    begun, may_end = threading.Event(), threading.Event()

    def redact_slowly(redactor: Redactor, report: Report) -> Report:
        begun.set()
        # Where it stood in the way of others, this ends by itself, and so does the test.
        assert may_end.wait(60), "nobody else could write"
        return really_redact(redactor, report)

    really_redact = Redactor.report
    monkeypatch.setattr(Redactor, "report", redact_slowly)
    report = asyncio.ensure_future(controller.report(logs=(log_line(CANARY),)))
    assert await asyncio.to_thread(begun.wait, 60)
    assert (await put(bench.client, LATER, "OTHER")).status_code == 201
    may_end.set()
    await report
    assert [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]] == ["[secret TOKEN]"]


async def test_the_secrets_of_a_job_are_bounded_together(bench: Bench) -> None:
    names = [f"KEY_{number}" for number in range(5)]
    for name in names:
        assert (await put(bench.client, "x" * MAX_CHARS, name)).status_code == 201
    spec = {"name": "digits", "recipe": "image-classifier", "secrets": names}
    (finding,) = (await bench.post("/jobs", 422, spec))["errors"]
    assert finding["path"] == "secrets"
    too_large = f"the secrets of a job may have {MAX_JOB_BYTES} bytes in all, and these have {5 * MAX_CHARS}"
    assert finding["message"].startswith(too_large)
    controller = await bench.start(secrets=names[:4])
    await put(bench.client, "ü" * MAX_CHARS, names[0])
    assert controller.acquired is not None
    process = ProcessIdentity("node-1", "boot-1", 1, 1)
    successor = SimulatedController(bench.client, controller.job_id, controller.ticket, process=process)
    await successor.acquire(gone=controller.acquired.attempt)
    refused = await fetch(successor)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert too_large in refused.json()["detail"]
    await successor.report(logs=(log_line("x" * MAX_CHARS),))
    assert (await bench.get("/jobs/digits/logs"))["items"][0]["line"] != "x" * MAX_CHARS, "the workers before hold it"


async def test_a_secret_that_was_deleted_fails_the_next_attempt_only(bench: Bench) -> None:
    await put(bench.client, CANARY)
    controller = await bench.start(secrets=["TOKEN"])
    await bench.client.delete(f"{SECRETS}/TOKEN")
    assert (await fetch(controller)).json()["secrets"] == {"TOKEN": CANARY}
    assert controller.acquired is not None
    successor = SimulatedController(
        bench.client, controller.job_id, controller.ticket, process=ProcessIdentity("node-1", "boot-1", 1, 1)
    )
    await successor.acquire(gone=controller.acquired.attempt)
    refused = await fetch(successor)
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "rubato secret set TOKEN --project default" in refused.json()["detail"]


@pytest.fixture
def keyed(make_bench: MakeBench, database_url: str, tmp_path: Path) -> Any:
    """Starts the service with a key file of these keys, again and again on one database."""

    def start(*keys: str) -> Any:
        file = tmp_path / "keys"
        file.write_text("\n".join(keys))
        return make_bench(database_url, secret_keys_file=file)

    return start


OLD, NEW = "0" * 64, "1" * 64


async def secrets_check(bench: Bench) -> dict[str, Any]:
    bench.clock.advance(1)  # until then the answer is that of before
    reply = await bench.client.get("/readyz")
    assert reply.status_code == 200, reply.text
    return next(check for check in reply.json()["checks"] if check["name"] == "secrets")


async def test_keys_are_rotated_by_restarts(keyed: Any) -> None:
    async with keyed(OLD) as bench:
        await put(bench.client, CANARY)
        await bench.start(secrets=["TOKEN"])
    async with keyed(NEW, OLD) as bench, bench.context.database.read() as session:
        for table in (Secret, AttemptSecret):
            assert set((await session.scalars(select(table.key_id))).all()) == {bench.context.vault.key_id}
    async with keyed(NEW) as bench:
        assert (await secrets_check(bench))["ok"]
        bench.clock.advance(60)  # the scheduler before this one has its lease no more
        controller = await bench.start("again", secrets=["TOKEN"])
        assert (await fetch(controller)).json()["secrets"] == {"TOKEN": CANARY}


async def test_a_job_that_crashes_for_ever_takes_no_more_room_with_each_attempt(bench: Bench) -> None:
    await put(bench.client, CANARY)
    controller = await bench.start(secrets=["TOKEN"])
    for number in range(1, 5):
        await controller.report(worker_reports=(worker(number),))
        await controller.acquire(gone=number)
        if number == 3:
            await put(bench.client, LATER)
        (shown,) = (await bench.get("/jobs/digits/workers"))["items"]
        assert shown["worker_id"] == f"w{number}", "those of the last report are there until the next one"
    assert (await fetch(controller)).json() == {"secrets": {"TOKEN": LATER}}
    await controller.report(worker_reports=(worker(9),), logs=(log_line(f"{CANARY} and {LATER}"),))
    async with bench.context.database.read() as session:
        given = (await session.execute(select(AttemptSecret.attempt).order_by(AttemptSecret.attempt))).scalars().all()
        workers = (await session.execute(select(Attempt.workers).order_by(Attempt.number))).scalars().all()
    assert list(given) == [4, 5], "of each value that its workers may hold, one"
    assert [len(reported) for reported in workers] == [0, 0, 0, 0, 1]
    (line,) = (await bench.get("/jobs/digits/logs"))["items"]
    assert line["line"] == "[secret TOKEN] and [secret TOKEN]"


async def test_a_value_cannot_be_set_while_it_is_sealed_anew(
    make_bench: MakeBench, new_postgres: Callable[[], str]
) -> None:
    """With replicas the first one that knows the new key starts while another one takes requests."""
    url = new_postgres()
    refused: list[str] = []

    class BusyVault(Vault):
        def seal_anew(self, sealed: Sealed, purpose: str) -> Sealed:
            with psycopg.connect(url.replace("+psycopg", ""), options="-c lock_timeout=1s") as other:
                try:
                    other.execute("UPDATE secrets SET updated_by = 'somebody'")
                except psycopg.errors.LockNotAvailable:
                    refused.append(purpose)
            return super().seal_anew(sealed, purpose)

    async with make_bench(url) as bench:
        await put(bench.client, CANARY)
        before = (bench.settings.home / KEY_FILE).read_text().strip()
        async with bench.context.database.write() as session:
            await seal_anew(session, BusyVault([bytes.fromhex(NEW), bytes.fromhex(before)]))
    assert refused == ["secret:default:TOKEN"]


async def test_attempts_that_were_given_the_same_have_the_same_after_a_rotation(keyed: Any) -> None:
    async with keyed(OLD) as bench:
        await put(bench.client, CANARY)
        controller = await bench.start(secrets=["TOKEN"])
        async with bench.context.database.write() as session:
            [row] = (await session.scalars(select(AttemptSecret))).all()
            values = {"job_id": controller.job_id, "name": row.name, "key_id": row.key_id, "sealed": row.sealed}
            session.add(AttemptSecret(**values, attempt=2))  # as releases before this one left it
    async with keyed(NEW, OLD) as bench, bench.context.database.read() as session:
        given = (await session.scalars(select(AttemptSecret.sealed))).all()
    assert len(given) == 2
    assert len(set(given)) == 1, "a redactor opens them once"


async def test_a_wrong_key_is_told_and_stops_nothing_else(keyed: Any) -> None:
    async with keyed(OLD) as bench:
        await put(bench.client, CANARY)
        controller = await bench.start(secrets=["TOKEN"])
    async with keyed(NEW) as bench:
        check = await secrets_check(bench)
        assert not check["ok"]
        assert not check["required"]
        assert "is not in the key file; put it back, or set them anew" in check["detail"]
        controller.client = bench.client
        refused = await fetch(controller)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        await controller.report(logs=(log_line(f"this {CANARY}"),), step=3)
        assert [item["line"] for item in (await bench.get("/jobs/digits/logs"))["items"]] == [WITHHELD]
        assert (await bench.job("digits"))["step"] == 3
        assert (await put(bench.client, LATER)).status_code == 200, "set anew"


@pytest.mark.parametrize("content", ["", "nonsense"])
async def test_a_file_without_keys_is_told(keyed: Any, content: str) -> None:
    async with keyed(content) as bench:
        assert not (await secrets_check(bench))["ok"]
        refused = await put(bench.client, CANARY)
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        await bench.start()
        assert (await bench.job("digits"))["status"] == "running", "who needs no secret goes on"


@pytest.mark.parametrize("what", ["members/ada", "secrets/KEY"])
async def test_a_project_that_is_just_deleted_takes_nothing_in(bench: Bench, what: str) -> None:
    await make_user(bench, "ada")
    await bench.post("/projects", 201, {"name": "spare"})
    async with bench.context.database.write() as session:
        await session.execute(delete(Project).where(Project.name == "spare"))
        body = {"role": "viewer"} if what == "members/ada" else {"value": "a-secret-value"}
        adding = asyncio.create_task(bench.client.put(f"/api/v1/projects/spare/{what}", json=body))
        await blocked_or_done(bench, adding)
    assert (await adding).status_code == 404, (await adding).text
