"""What a request says that no route understands is refused before anything is done, and the refusal says why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from api.app import ROUTERS
from tests.simulated_controller import bearer, log_line

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


async def test_no_route_ignores_a_parameter(make_bench: MakeBench) -> None:
    """On one kind of database, which has no part in it."""
    routes = [route for router in ROUTERS for route in router.routes if route.path.startswith("/api/v1/")]
    async with make_bench() as bench:
        for route in routes:
            for method in route.methods - {"HEAD"}:
                path = re.sub(r"\{[^}]+\}", "0", route.path)
                response = await bench.client.request(method, path, params={"bogus": "1"})
                told = (response.status_code, response.json()["code"], response.json()["errors"][0]["path"])
                assert told == (422, "invalid_request", "bogus"), (method, path)
    assert len(routes) > 60


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "/jobs?limits=3", "which takes created_after, cursor, history, label, limit, project, q, status; did"),
        ("DELETE", "/jobs/digits?keep_checkpoint=true", "did you mean keep_checkpoints?"),
        ("POST", "/jobs?dryrun=true", "did you mean dry_run?"),
        ("POST", "/jobs/digits/cancel?force=true", "'force' is no parameter of this route, which takes wait."),
        ("GET", "/me?whom=x&what=y", "'what' is no parameter of this route, which takes none."),
        ("GET", "/jobs/digits?For=running", "did you mean for?"),
    ],
)
async def test_an_unknown_parameter_is_named_beside_the_known_ones(
    bench: Bench, method: str, path: str, says: str
) -> None:
    job = await bench.submit()
    response = await bench.client.request(method, f"/api/v1{path}", json={"name": "other", "recipe": "char-lm"})
    assert (response.status_code, says in response.json()["detail"]) == (422, True), response.text
    (left,) = (await bench.get("/jobs", project="default", limit=2))["items"]
    assert (left["id"], left["status"]) == (job["id"], "queued")


async def test_the_page_and_clusters_may_say_more(bench: Bench) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    assert (await bench.client.get("/jobs?status=failed")).status_code == 200
    desired = f"/cluster/v1/jobs/{controller.job_id}/desired?after=0&new=1"
    headers = {"Authorization": f"Bearer {controller.acquired.token}"}
    assert (await bench.client.get(desired, headers=headers)).status_code == 200


JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "says"),
    [
        *(
            (method, path, b'{"workers": 2}', kind, 415, "with Content-Type: application/json")
            for method, path in (
                ("POST", "/jobs/digits/scale"),
                ("POST", "/jobs/digits/pause"),
                ("PUT", "/projects/default/secrets/A"),
                ("POST", "/session"),
                ("POST", "/jobs"),
                ("POST", "/plan"),
            )
            for kind in (FORM, "text/plain")
        ),
        ("POST", "/jobs/digits/scale", b'{"workers": 2}', None, 415, "this request has none"),
        ("PATCH", "/jobs/digits", b"{}", FORM, 415, "application/merge-patch+json or application/json; this request"),
        ("POST", "/jobs/digits/scale", b'{"workers": 2, "workers": 3}', JSON, 422, "the key 'workers' stands twice"),
        ("PATCH", "/jobs/digits", b'{"labels": {"a": "1", "a": "2"}}', JSON, 422, "the key 'a' stands twice"),
        ("POST", "/jobs", b'{"name": "a", "name": "b"}', JSON, 422, "the key 'name' stands twice"),
        ("POST", "/jobs/digits/scale", b"[" * 100_000, JSON, 422, "nested deeper than 32 levels"),
        ("POST", "/jobs", b"[" * 100_000, JSON, 422, "nested deeper than 32 levels"),
        ("POST", "/jobs/digits/scale", b"{", JSON, 422, "The body is no JSON: "),
        ("POST", "/projects", b'{"name": "a", "description": "\\u0000"}', JSON, 422, "a NUL character"),
        ("GET", "/jobs?project=%00", b"", None, 422, "project holds a NUL character"),
    ],
)
async def test_a_body_is_refused_alike_on_every_route(
    bench: Bench, method: str, path: str, body: bytes, kind: str | None, status: int, says: str
) -> None:
    job = await bench.submit(workers={"initial": 1, "max": 4})
    headers = {} if kind is None else {"Content-Type": kind}
    response = await bench.client.request(method, f"/api/v1{path}", content=body, headers=headers)
    assert (response.status_code, says in response.json()["detail"]) == (status, True), response.text
    assert (await bench.job("digits"))["etag"] == job["etag"]


async def test_a_body_that_may_be_left_out_needs_no_content_type(bench: Bench) -> None:
    await bench.submit()
    assert (await bench.client.post("/api/v1/jobs/digits/pause")).status_code == 202
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = await bench.client.post("/api/v1/jobs/digits/cancel", content=b'{"force": true}', headers=headers)
    assert response.status_code == 202


async def test_a_cursor_is_of_one_list(make_bench: MakeBench, database_url: str) -> None:
    cursors = {}
    async with make_bench(database_url, webhooks=True, webhook_networks=["127.0.0.1/32"]) as bench:
        await fill_lists(bench)
        for path in LISTS:
            first = await bench.get(path, limit=1)
            cursors[path] = cursor = first["next_cursor"]
            assert first["items"] != (await bench.get(path, limit=1, cursor=cursor))["items"], path
        for path in LISTS:
            foreign = {cursor for of, cursor in cursors.items() if of != path}
            for cursor in (*foreign, "", "x", "x:y", ":"):
                problem = await bench.get(path, 422, cursor=cursor)
                assert problem["detail"] == "cursor must be the next_cursor of a former page of this list.", cursor


PROJECT = "/projects/default"
LISTS = (
    "/jobs",
    "/queue",
    "/jobs/digits/attempts",
    "/jobs/digits/generations",
    "/jobs/digits/checkpoints",
    "/projects",
    "/users",
    "/tokens",
    "/audit",
    f"{PROJECT}/secrets",
    f"{PROJECT}/webhooks",
    f"{PROJECT}/webhooks/a/deliveries",
)


async def fill_lists(bench: Bench) -> None:
    """Two of everything; of the secrets with the longest names that there may be."""
    controller = await bench.start()
    for generation in (1, 2):
        await controller.report(events=(controller.event("generation.formed", generation=generation),))
        committed = {"step": generation, "checkpoint_id": f"1-{generation}", "bytes": 0, "files": []}
        await controller.report(events=(controller.event("checkpoint.committed", **committed),))
    await bench.controller_of(controller.job_id)
    bench.clock.advance(3600)
    successor = await bench.controller_of(controller.job_id)
    await successor.acquire()
    for name in ("a", "b"):
        await bench.submit(name, workers={"initial": 9})
        await bench.post("/projects", 201, {"name": name})
        await bench.post("/users", 201, {"name": name})
        await bench.post("/tokens", 201, {"name": name, "user": "a"})
        (
            await bench.client.put(f"/api/v1{PROJECT}/secrets/{name * 128}", json={"value": "long enough"})
        ).raise_for_status()
        await bench.post(f"{PROJECT}/webhooks", 201, {"name": name, "url": "https://127.0.0.1:9/", "events": []})
        await bench.post(f"{PROJECT}/webhooks/a/test", 202)


async def test_a_log_is_read_from_one_place_that_it_has(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(logs=(log_line("a line"),))
    path = "/jobs/digits/logs"
    end = (await bench.get(path))["next"]
    assert (await bench.get(path, after=end))["items"] == []
    for after in ("99:99", f"{end}0"):
        assert f"which is '{end}'" in (await bench.get(path, 422, after=after))["detail"]
    assert (await bench.get(path, before="99:99"))["items"] == (await bench.get(path))["items"]
    assert "Send after" in (await bench.get(path, 422, after="0:0", before=end))["detail"]


async def test_the_audit_is_asked_for_what_there_can_be(bench: Bench) -> None:
    job = await bench.submit()
    (entry,) = (await bench.get("/audit", action="job.submitted", job_id=job["id"]))["items"]
    assert entry["job_id"] == job["id"]
    assert "rubato audit --job NAME" in (await bench.get("/audit", 422, job_id="digits"))["detail"]
    assert "there are checkpoint.deleted, " in (await bench.get("/audit", 422, action="job.submited"))["detail"]


LOOKED_AT = ("/", "/jobs", "/jobs/job_1/logs", "/healthz", "/readyz", "/version", "/docs", "/metrics", "/logo.svg")


@pytest.mark.parametrize("path", [*LOOKED_AT, "/assets/page.js", "/api/openapi.json", "/api/v1/healthz"])
async def test_head_is_answered_as_get_is(bench: Bench, path: str) -> None:
    assets = bench.settings.web_dist / "assets"
    assets.mkdir(parents=True)
    (assets / "page.js").write_text("//")
    (assets.parent / "logo.svg").write_text("<svg/>")
    shown, headers = [], {"Accept-Encoding": "identity"}
    for method in ("GET", "HEAD"):
        response = await bench.client.request(method, path, headers=headers)
        told = {name for name in response.headers if name != "x-request-id"}
        shown.append((response.status_code, told, response.headers["content-type"]))
    assert shown[0] == shown[1]
    assert shown[0][0] == 200


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("HEAD", "/api/v1/jobs", "GET, POST"),
        ("PUT", "/api/v1/jobs/digits", "DELETE, GET, PATCH"),
        ("HEAD", "/api/v1/events", "GET"),
        ("HEAD", "/api/v1/jobs/digits/logs", "GET"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/assets/page.js", "GET, HEAD"),
        ("GET", "/api/v1/packages/token", "HEAD, PUT"),
        ("BREW", "/api/v1/session", "DELETE, POST"),
    ],
)
async def test_another_method_is_refused_with_all_that_there_are(
    bench: Bench, method: str, path: str, allowed: str
) -> None:
    response = await bench.client.request(method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)
    assert method == "HEAD" or response.json()["detail"].endswith(f"possible: {allowed}.")


async def test_refusals_are_sentences(bench: Bench) -> None:
    controller = await bench.start()
    committed = {"step": 1, "checkpoint_id": "1-1", "bytes": 0, "files": []}
    await controller.report(events=(controller.event("checkpoint.committed", **committed),))
    (checkpoint,) = (await bench.get("/jobs/digits/checkpoints"))["items"]
    missing = await bench.get(f"/checkpoints/{checkpoint['id']}/files/nope", 404)
    assert missing["detail"] == "The checkpoint 1-1 has no file 'nope'."
    await bench.submit("other")
    await bench.post("/jobs/other/cancel", 202)
    refused = await bench.post("/jobs/other/scale", 409, {"workers": 1})
    assert refused["detail"] == "other was cancelled; only a job that has not ended can be scaled."
    await bench.post("/users", 201, {"name": "ada"})
    await bench.client.put("/api/v1/projects/default/members/ada", json={"role": "editor"})
    bench.client.headers.update(bearer((await bench.post("/tokens", 201, {"name": "t", "user": "ada"}))["token"]))
    refused = await bench.get("/projects/default/webhooks", 403)
    assert refused["detail"] == "This needs the role admin in the project 'default'; you are an editor."
