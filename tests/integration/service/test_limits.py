"""What one caller, and one job, may take of the service."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from api.tails import all_jobs
from rubato.wire.codec import to_json
from service.auth import new_token
from tests.callers import an_admin
from tests.integration.service.test_people import make_user
from tests.pickle_bomb import PickleBomb
from tests.simulated_controller import bearer, log_line, metric

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

DEEP: Any = functools.reduce(lambda inner, _: [inner], range(40), 1)


async def test_a_token_that_asks_too_often_is_told_when_to_come_again(make_bench: MakeBench) -> None:
    async with make_bench(requests_per_second=0.1, request_burst=20) as bench:
        controller = await bench.start()
        codes = [(await bench.client.get("/api/v1/me")).status_code for _ in range(25)]
        refused = await bench.client.get("/api/v1/me")
        assert codes[0] == 200
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 10
        assert "come again" in refused.json()["detail"]
        # Machines are paced by their protocol, and what is public needs no token.
        for _ in range(30):
            await controller.report()
            await bench.agent.sync()
        assert (await bench.client.get("/healthz")).status_code == 200
        scraper = bearer((bench.settings.home / "scraper-token").read_text().strip())
        assert (await bench.client.get("/metrics", headers=scraper)).status_code == 200


async def test_one_who_asks_too_often_is_in_nobody_else_s_way(make_bench: MakeBench) -> None:
    async with (
        make_bench(requests_per_second=0.1, request_burst=10) as bench,
        await make_user(bench, "ada") as ada,
        await make_user(bench, "bob") as bob,
    ):
        for _ in range(11):
            last = await ada.get("/api/v1/me")
        assert last.status_code == 429
        assert (await bob.get("/api/v1/me")).status_code == 200


def from_address(bench: Bench, address: str) -> httpx.AsyncClient:
    """A browser that is not signed in."""
    transport = httpx.ASGITransport(app=bench.app, raise_app_exceptions=False, client=(address, 1234))
    return httpx.AsyncClient(transport=transport, base_url=str(bench.client.base_url))


async def test_who_fails_to_sign_in_too_often_is_told_when_to_come_again(
    make_bench: MakeBench, database_url: str
) -> None:
    async with (
        make_bench(database_url, failed_sign_ins_per_minute=4) as bench,
        from_address(bench, "192.0.2.1") as guesser,
        from_address(bench, "192.0.2.2") as other,
    ):
        signed_in = [(await guesser.post("/api/v1/session", json={"token": bench.token})).status_code for _ in range(9)]
        assert set(signed_in) == {204}, "those that succeed are not counted"
        for _ in range(2):
            assert (await guesser.post("/api/v1/session", json={"token": new_token()})).status_code == 401
            assert (await guesser.get("/login?code=wrong")).status_code == 303
        link = await bench.post("/login-links", 201)
        for refused in (
            await guesser.post("/api/v1/session", json={"token": new_token()}),
            await guesser.post("/api/v1/session", json={"token": bench.token}),
            await guesser.get("/login?code=wrong"),
            await guesser.get(link["url"]),
        ):
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
            assert 1 <= int(refused.headers["retry-after"]) <= 15
            assert refused.json()["detail"].startswith(
                "More than 4 sign-ins a minute failed from your address; try again"
            )
            assert "set-cookie" not in refused.headers
        # Who has signed in goes on, and so does everybody else.
        assert (await guesser.get("/api/v1/me")).status_code == 200
        assert (await other.get(link["url"])).headers["location"] == "/", "a link that was refused is not spent"
        assert (await other.post("/api/v1/session", json={"token": bench.token})).status_code == 204


async def test_a_good_token_signs_in_no_more_often_than_it_may_ask(make_bench: MakeBench) -> None:
    async with make_bench(requests_per_second=0.1, request_burst=3) as bench, from_address(bench, "192.0.2.1") as one:
        codes = [(await one.post("/api/v1/session", json={"token": bench.token})).status_code for _ in range(4)]
        assert codes == [204, 204, 204, 429]


async def test_streams_are_counted_and_given_back(make_bench: MakeBench) -> None:
    async with make_bench(streams_per_user=2) as bench:
        job = await bench.submit()
        caller = an_admin()
        streams = [all_jobs(bench.context, caller).body_iterator.__aiter__() for _ in range(2)]
        for chunks in streams:
            await anext(chunks)
        with pytest.raises(Exception, match="2 open streams"):
            all_jobs(bench.context, caller)
        headers = {"Accept": "text/event-stream"}
        # The home's token is somebody else, and has its own.
        mine = [bench.context.limits.stream(await token_of(bench)) for _ in range(2)]
        for one in mine:
            one.__enter__()
        for path in (f"/api/v1/jobs/{job['id']}/events", f"/api/v1/jobs/{job['id']}/logs", "/api/v1/events"):
            refused = await bench.client.get(path, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited"), path
        for one in mine:
            one.__exit__(None, None, None)
        for chunks in streams:
            await chunks.aclose()
        all_jobs(bench.context, caller)


async def token_of(bench: Bench) -> str:
    async with bench.context.database.read() as session:
        caller = await bench.context.authority.recognise(session, bench.token, bench.clock())
    assert caller.person is not None
    return caller.person


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/jobs/digits/clone", {"overrides": {"config": {"x": DEEP}}}),
        ("PATCH", "/api/v1/jobs/digits", {"labels": {"x": DEEP}}),
        ("POST", "/api/v1/jobs/digits/scale", {"workers": DEEP}),
        ("POST", "/api/v1/users", {"name": DEEP}),
        ("PATCH", "/api/v1/projects/default", {"quota": {"max_slots": DEEP}}),
    ],
)
async def test_what_is_nested_too_deep_is_refused(make_bench: MakeBench, method: str, path: str, body: Any) -> None:
    async with make_bench() as bench:
        await bench.submit()
        response = await bench.client.request(method, path, json=body)
        assert (response.status_code, response.json()["code"]) == (422, "invalid_request"), response.text
        raw = await bench.client.request(
            method, path, content=b'{"a":' + b"[" * 100_000, headers={"Content-Type": "application/json"}
        )
        assert raw.status_code == 422, raw.text


async def test_pickles_are_refused_by_all_who_read_bytes_and_run_nowhere(bench: Bench, tmp_path: Path) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    bomb = PickleBomb(tmp_path / "mark")
    cluster, attempt = bearer(bench.agent.token), bearer(controller.acquired.token)
    readers = (
        ("POST", "/cluster/v1/clusters/default/sync", cluster),
        ("POST", "/cluster/v1/attempts/acquire", bearer(controller.ticket)),
        ("POST", f"/cluster/v1/jobs/{controller.job_id}/report", attempt),
        ("POST", "/api/v1/jobs", {}),
        ("POST", "/api/v1/jobs", {"Content-Type": "application/yaml"}),
        ("PATCH", "/api/v1/jobs/digits", {}),
        ("POST", "/api/v1/jobs/digits/clone", {}),
    )
    for name, data in bomb.forms().items():
        for method, path, headers in readers:
            sent = {"Content-Type": "application/json", **headers}
            response = await bench.client.request(method, path, content=data, headers=sent)
            assert response.status_code == 422, (name, path)
            assert response.json()["code"] in ("invalid_request", "invalid_spec"), "in YAML some are a text"
        if name != "torch":  # that is a zip, of files that nobody reads
            address = f"/api/v1/packages/{hashlib.sha256(data).hexdigest()}"
            response = await bench.client.put(address, content=data)
            assert (response.status_code, response.json()["code"]) == (422, "package_invalid"), name
    text = bomb.forms()["text"].decode()
    await controller.report(events=(controller.event("worker.ready", data=text),), logs=(log_line(text),))
    assert (await bench.get("/jobs/digits/events"))["items"][-1]["data"] == {"data": text}
    assert not bomb.went_off


async def test_a_report_is_not_nested_too_deep_either(bench: Bench) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    report = to_json(controller.next_report(events=(controller.event("worker.ready"),)))
    report["events"][0]["data"] = {"x": DEEP}
    response = await bench.client.post(
        f"/cluster/v1/jobs/{controller.job_id}/report", json=report, headers=bearer(controller.acquired.token)
    )
    assert (response.status_code, response.json()["code"]) == (422, "invalid_request")
    assert "nested deeper than 32" in response.json()["detail"]


async def test_a_job_beyond_its_quota_of_lines_goes_on_and_says_so_once(
    make_bench: MakeBench, database_url: str
) -> None:
    async with make_bench(database_url, max_job_log_bytes=1000) as bench:
        controller = await bench.start()
        for part in range(4):
            await controller.report(
                logs=tuple(log_line(f"{part}.{index}" + "x" * 100) for index in range(5)), step=part
            )
        lines = (await bench.get("/jobs/digits/logs", tail=100))["items"]
        stored = [line["line"][:3] for line in lines[:-1]]
        assert stored == [f"{part}.{index}" for part in range(2) for index in range(5)]
        assert (lines[-1]["stream"], lines[-1]["worker_id"]) == ("system", "service")
        assert lines[-1]["line"].startswith("1000 bytes of log lines of this job are stored, which is its quota")
        job = await bench.job("digits")
        assert (job["status"], job["step"], job["log_lines_dropped"]) == ("running", 3, 10)
        segment = bench.settings.home / "logs" / controller.job_id / "00000000.jsonl"
        assert job["log_bytes"] == segment.stat().st_size
        told = [
            event for event in (await bench.get("/jobs/digits/events"))["items"] if event["kind"] == "quota.reached"
        ]
        assert [event["data"] for event in told] == [{"what": "logs", "limit": 1000}]


async def test_a_job_beyond_its_quota_of_metrics_still_shows_the_newest_values(
    make_bench: MakeBench, database_url: str
) -> None:
    async with make_bench(database_url, max_job_metric_rows=10) as bench:
        controller = await bench.start()
        for first in (1, 11, 21):
            await controller.report(metrics=tuple(metric(step, step / 100) for step in range(first, first + 10)))
        rows = (await bench.get("/jobs/digits/metrics"))["items"]
        assert [row["step"] for row in rows] == list(range(1, 11))
        job = await bench.job("digits")
        assert (job["metrics"], job["metric_rows_dropped"]) == ({"loss": 0.3}, 20)
        kinds = [event["kind"] for event in (await bench.get("/jobs/digits/events"))["items"]]
        assert kinds.count("quota.reached") == 1
