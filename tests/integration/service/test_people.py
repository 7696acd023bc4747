"""Projects, users, tokens: who may see and do what, walked over every route."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.routing import APIRoute

from api.app import ROUTERS
from api.auth import PEOPLE, roles_of
from api.tails import all_jobs, job_events
from service.access import ProjectRole
from tests.simulated_controller import SimulatedController, bearer

if TYPE_CHECKING:
    from fastapi.responses import StreamingResponse

    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

JOB = "/api/v1/jobs/{reference}"
CHECKPOINT = "/api/v1/checkpoints/{checkpoint_id}"
# What people may do, by the least role in the project. Written out, so that a route without its mark is found here.
ANYBODY = {
    "GET /api/v1/recipes",
    "POST /api/v1/plan",
    "GET /api/v1/projects",
    "GET /api/v1/tokens",
    "POST /api/v1/tokens",
    "DELETE /api/v1/tokens/{token_id}",
    "GET /api/v1/me",
    "GET /api/v1/cluster",
    "DELETE /api/v1/session",
    "POST /api/v1/login-links",
}
VIEWERS = {
    "GET /api/v1/jobs",
    "GET /api/v1/events",
    "GET /api/v1/queue",
    "GET /api/v1/clusters/{cluster_id}/nodes",
    "HEAD /api/v1/packages/{sha256}",
    "GET /api/v1/projects/{project}",
    "GET /api/v1/projects/{project}/secrets",
    f"GET {JOB}",
    *(
        f"GET {JOB}/{what}"
        for what in (
            "explain",
            "workers",
            "attempts",
            "generations",
            "events",
            "metrics",
            "metrics/chart",
            "logs",
            "logs/file",
            "checkpoints",
            "code",
            "code/text",
        )
    ),
    f"GET {CHECKPOINT}",
    f"GET {CHECKPOINT}/files/{{name}}",
}
EDITORS = {
    "POST /api/v1/jobs",
    "PUT /api/v1/packages/{sha256}",
    f"PATCH {JOB}",
    f"DELETE {JOB}",
    *(f"POST {JOB}/{verb}" for verb in ("clone", "scale", "pause", "resume", "cancel", "checkpoint")),
    f"GET {JOB}/workers/{{worker_id}}/stack",
    *(f"POST {JOB}/workers/{{worker_id}}/{verb}" for verb in ("drain", "kill")),
    f"PATCH {CHECKPOINT}",
    f"DELETE {CHECKPOINT}",
}
ADMINS = {
    "PUT /api/v1/projects/{project}/members/{user}",
    "DELETE /api/v1/projects/{project}/members/{user}",
    "PUT /api/v1/projects/{project}/secrets/{name}",
    "DELETE /api/v1/projects/{project}/secrets/{name}",
    "GET /api/v1/projects/{project}/webhooks",
    "POST /api/v1/projects/{project}/webhooks",
    "DELETE /api/v1/projects/{project}/webhooks/{name}",
    "POST /api/v1/projects/{project}/webhooks/{name}/test",
    "GET /api/v1/projects/{project}/webhooks/{name}/deliveries",
}
ENDLESS = {"GET /api/v1/events"}


async def make_user(bench: Bench, name: str, **roles: str) -> httpx.AsyncClient:
    """A client with the token of a new user who has these roles."""
    await bench.post("/users", 201, {"name": name})
    for project, role in roles.items():
        granted = await bench.client.put(f"/api/v1/projects/{project}/members/{name}", json={"role": role})
        assert granted.status_code == 200, granted.text
    token = (await bench.post("/tokens", 201, {"name": "test", "user": name}))["token"]
    transport = httpx.ASGITransport(app=bench.app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=str(bench.client.base_url), headers=bearer(token))


async def with_checkpoint(bench: Bench, name: str = "digits", **spec: Any) -> tuple[SimulatedController, str]:
    """A running job and the id of its checkpoint."""
    controller = await bench.start(name, **spec)
    event = controller.event("checkpoint.committed", step=10, checkpoint_id="1-10", bytes=1, files=[])
    await controller.report(events=(event,), step=10)
    (checkpoint,) = (await bench.get(f"/jobs/{name}/checkpoints"))["items"]
    return controller, checkpoint["id"]


async def test_a_name_that_several_projects_share_is_not_changed_by_guess(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "vision"})
    mine, theirs = await bench.submit("digits"), await bench.submit("digits", project="vision")
    assert (await bench.get("/jobs/digits"))["id"] == theirs["id"], "to look at the newest does no harm"
    for path in ("/jobs/digits/cancel", "/jobs/digits/pause"):
        refused = await bench.post(path, 409)
        assert f"by its id ({mine['id']} in default, {theirs['id']} in vision)" in refused["detail"]
    assert (await bench.job(mine["id"]))["status"] == (await bench.job(theirs["id"]))["status"] == "queued"
    async with await make_user(bench, "ada", vision="editor") as ada:
        assert (await ada.post("/api/v1/jobs/digits/cancel")).status_code in (200, 202), "who sees one may name it"
    await bench.post(f"/jobs/{mine['id']}/cancel", 202)
    assert (await bench.job(theirs["id"]))["status"] == "cancelled"


def routes_of_people() -> dict[str, APIRoute]:
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return {
        f"{method} {route.path}": route
        for route in found
        if roles_of(route.endpoint) == PEOPLE
        for method in sorted(route.methods)
    }


async def test_every_route_with_every_role(bench: Bench) -> None:
    controller, checkpoint = await with_checkpoint(bench)
    await bench.post("/projects", 201, {"name": "other"})
    people = {
        "outsider": await make_user(bench, "outsider"),
        "foreign": await make_user(bench, "foreign", other="admin"),
        "viewer": await make_user(bench, "viewer", default="viewer"),
        "editor": await make_user(bench, "editor", default="editor"),
        "admin": await make_user(bench, "boss", default="admin"),
    }
    routes = routes_of_people()
    assert routes.keys() == ANYBODY | VIEWERS | EDITORS | ADMINS, "a new route of people goes into one of these lists"
    least = {route: rank for rank, group in enumerate((ANYBODY, VIEWERS, EDITORS, ADMINS)) for route in group}
    ranks = {"outsider": 0, "foreign": 0, "viewer": 1, "editor": 2, "admin": 3}

    def address(path: str) -> str:
        path = path.replace("{reference}", controller.job_id).replace("{checkpoint_id}", checkpoint)
        path = path.replace("{project}", "default").replace("{user}", "nobody").replace("{sha256}", "0" * 64)
        path = path.replace("{worker_id}", "1").replace("{cluster_id}", "default")
        return path.replace("{name}", "x").replace("{token_id}", "tok_x")

    for route in sorted(routes, key=lambda route: (route.startswith(("DELETE", "POST")), route)):
        method, path = route.split(" ")
        for who, client in people.items():
            expected = None
            if "{reference}" in path or "{checkpoint_id}" in path or "{project}" in path:
                expected = 404 if who in ("outsider", "foreign") else 403 if ranks[who] < least[route] else None
            elif (3 if who == "foreign" else ranks[who]) < least[route]:
                # A collection: it takes the role in some project, and shows what lies in one's own.
                expected = 403
            if expected is None and route in ENDLESS:
                continue
            response = await client.request(method, address(path))
            if expected is not None:
                assert response.status_code == expected, (route, who, response.text)
            else:
                assert response.status_code not in (401, 403), (route, who, response.text)
                assert response.status_code < 500, (route, who, response.text)
            if who in ("outsider", "foreign") and expected == 404 and method != "HEAD":
                unknown = await client.request(method, address(path).replace(controller.job_id, "job_unknown"))
                assert unknown.json()["code"] == response.json()["code"] == "not_found"
    for client in people.values():
        await client.aclose()


@pytest.mark.parametrize("what", ["projects", "users"])
async def test_what_is_made_again_with_its_key_was_made_once(bench: Bench, what: str) -> None:
    """A reply that was lost is no reason to hear that the name is taken."""

    async def make(name: str, key: str) -> httpx.Response:
        return await bench.client.post(f"/api/v1/{what}", json={"name": name}, headers={"Idempotency-Key": key})

    first, again = await make("night", "k1"), await make("night", "k1")
    assert first.status_code == again.status_code == 201
    assert first.json() == again.json()
    other = await make("day", "k1")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    taken = await make("night", "k2")
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    action = {"projects": "project.created", "users": "user.created"}[what]
    assert len((await bench.get("/audit", action=action))["items"]) == 1


async def test_a_project_is_changed_as_it_was_read(bench: Bench) -> None:
    url = "/api/v1/projects/default"
    seen = (await bench.client.get(url)).headers["etag"]
    assert (await bench.client.get(url)).headers["etag"] == seen
    changed = await bench.client.patch(url, json={"quota": {"max_slots": 4}}, headers={"If-Match": seen})
    assert changed.status_code == 200
    assert changed.headers["etag"] != seen
    late = await bench.client.patch(url, json={"quota": {"max_slots": 8}}, headers={"If-Match": seen})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    assert late.json()["etag"] == changed.headers["etag"]
    assert (await bench.get("/projects/default"))["quota"]["max_slots"] == 4
    assert (await bench.client.patch(url, json={"description": "ours"}, headers={"If-Match": "*"})).status_code == 200


async def test_a_project_is_removed_as_it_was_read(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "vision"})
    url = "/api/v1/projects/vision"
    seen = (await bench.client.get(url)).headers["etag"]
    changed = await bench.client.patch(url, json={"description": "in use again"})
    late = await bench.client.delete(url, headers={"If-Match": seen})
    assert (late.status_code, late.json()["etag"]) == (412, changed.headers["etag"])
    assert (await bench.client.delete(url, headers={"If-Match": changed.headers["etag"]})).status_code == 204
    assert (await bench.client.delete(url, headers={"If-Match": "*"})).status_code == 404


async def test_a_user_is_changed_as_it_was_read(bench: Bench) -> None:
    await bench.post("/users", 201, {"name": "ada"})
    (seen,) = (await bench.get("/users"))["items"]
    url = "/api/v1/users/ada"
    shut = await bench.client.patch(url, json={"is_disabled": True}, headers={"If-Match": seen["etag"]})
    assert (shut.status_code, shut.headers["etag"]) == (200, shut.json()["etag"])
    late = await bench.client.patch(url, json={"is_admin": True}, headers={"If-Match": seen["etag"]})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    assert late.json()["etag"] == shut.headers["etag"] != seen["etag"]
    (found,) = (await bench.get("/users"))["items"]
    assert (found["is_admin"], found["etag"]) == (False, shut.headers["etag"])
    again = await bench.client.patch(url, json={"is_disabled": False}, headers={"If-Match": f'"x", {found["etag"]}'})
    assert (again.status_code, again.json()["etag"]) == (200, seen["etag"]), "it is as it was"


async def test_a_token_is_shown_once_and_ends_in_time(bench: Bench) -> None:
    ada = await make_user(bench, "ada", default="editor")
    made = (await ada.post("/api/v1/tokens", json={"name": "laptop", "expires_in": 60})).json()
    assert made["user"] == "ada"
    assert made["token"].startswith("rbt_")
    listed = (await ada.get("/api/v1/tokens")).json()["items"]
    assert [item["name"] for item in listed] == ["laptop", "test"]
    assert all("token" not in item for item in listed)
    laptop = bearer(made["token"])
    me = {"user": "ada", "role": "user", "projects": {"default": "editor"}}
    assert (await bench.client.get("/api/v1/me", headers=laptop)).json() == me
    bench.clock.advance(61)
    assert (await bench.client.get("/api/v1/me", headers=laptop)).status_code == 401
    assert (await ada.get("/api/v1/me")).status_code == 200
    for entry in (await bench.get("/audit", action="token.created"))["items"]:
        assert made["token"] not in str(entry)


async def test_a_token_that_expires_makes_none_that_outlives_it(bench: Bench) -> None:
    await make_user(bench, "boss")
    await bench.client.patch("/api/v1/users/boss", json={"is_admin": True})
    short = await bench.post("/tokens", 201, {"name": "short", "user": "boss", "expires_in": 60})
    headers = bearer(short["token"])
    for more in ({}, {"user": "boss"}, {"role": "cluster"}, {"user": "boss", "expires_in": 60}):
        made = await bench.client.post("/api/v1/tokens", json={"name": "t", **more}, headers=headers)
        assert (made.status_code, made.json()["expires_at"]) == (201, short["expires_at"]), more
    refused = await bench.client.post("/api/v1/tokens", json={"name": "t", "expires_in": 61}, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert short["expires_at"] in refused.json()["detail"]
    less = await bench.client.post("/api/v1/tokens", json={"name": "t", "expires_in": 5}, headers=headers)
    assert less.json()["expires_at"] < short["expires_at"]
    # A browser that signed in with it is no way around.
    link = (await bench.client.post("/api/v1/login-links", headers=headers)).json()
    transport = httpx.ASGITransport(app=bench.app)
    async with httpx.AsyncClient(transport=transport, base_url=str(bench.client.base_url)) as browser:
        await browser.get(link["url"])
        made = await browser.post("/api/v1/tokens", json={"name": "t"}, headers={"Sec-Fetch-Site": "same-origin"})
        assert (made.status_code, made.json()["expires_at"]) == (201, short["expires_at"])
    endless = await bench.post("/tokens", 201, {"name": "t", "user": "boss"})
    assert endless["expires_at"] is None, "the home's own token never expires"


async def test_everybody_revokes_the_own_tokens_only(bench: Bench) -> None:
    ada, bob = await make_user(bench, "ada"), await make_user(bench, "bob")
    token = (await ada.post("/api/v1/tokens", json={"name": "t"})).json()
    assert (await bob.get("/api/v1/tokens")).json()["items"][0]["user"] == "bob"
    assert (await bob.delete(f"/api/v1/tokens/{token['id']}")).status_code == 404
    assert (await bob.post("/api/v1/tokens", json={"name": "t", "user": "ada"})).status_code == 403
    assert (await bob.post("/api/v1/tokens", json={"name": "t", "role": "scraper"})).status_code == 403
    assert (await ada.delete(f"/api/v1/tokens/{token['id']}")).status_code == 204
    assert (await bench.client.get("/api/v1/me", headers=bearer(token["token"]))).status_code == 401
    own = (await bob.get("/api/v1/tokens")).json()["items"][0]["id"]
    assert (await bench.client.delete(f"/api/v1/tokens/{own}")).status_code == 204
    assert (await bob.get("/api/v1/me")).status_code == 401


async def test_a_user_who_is_shut_out_is_out_at_once(bench: Bench) -> None:
    ada = await make_user(bench, "ada", default="editor")
    link = (await ada.post("/api/v1/login-links")).json()
    transport = httpx.ASGITransport(app=bench.app)
    async with httpx.AsyncClient(transport=transport, base_url=str(bench.client.base_url)) as browser:
        await browser.get(link["url"])
        assert (await browser.get("/api/v1/me")).json()["user"] == "ada"
        await bench.client.patch("/api/v1/users/ada", json={"is_disabled": True})
        assert (await browser.get("/api/v1/me")).status_code == 401
        assert (await ada.get("/api/v1/me")).status_code == 401
        await bench.client.patch("/api/v1/users/ada", json={"is_disabled": False, "is_admin": True})
        assert (await ada.get("/api/v1/me")).json()["role"] == "admin"
        assert (await ada.patch("/api/v1/users/ada", json={"is_admin": False})).status_code == 409


async def test_a_name_means_the_own_project_s_job(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "other", "description": "theirs"})
    ada = await make_user(bench, "ada", default="editor")
    own = await bench.submit("digits")
    foreign = await bench.submit("digits", project="other")
    await bench.submit("hidden", project="other", labels={"team": "x"})
    assert (await bench.job("digits"))["id"] == foreign["id"], "an admin sees the newest of all"
    assert (await ada.get("/api/v1/jobs/digits")).json()["id"] == own["id"]
    assert (await ada.get(f"/api/v1/jobs/{foreign['id']}")).status_code == 404
    assert (await ada.get("/api/v1/jobs/hidden")).status_code == 404
    assert [item["id"] for item in (await ada.get("/api/v1/jobs")).json()["items"]] == [own["id"]]
    assert (await ada.get("/api/v1/jobs", params={"project": "other"})).json()["items"] == []
    await bench.schedule()
    queue = (await bench.get("/cluster"))["queue"] + (await ada.get("/api/v1/cluster")).json()["queue"]
    assert "hidden" not in str((await ada.get("/api/v1/cluster")).json()), queue
    assert [item["name"] for item in (await ada.get("/api/v1/projects")).json()["items"]] == ["default"]
    cancelled = await ada.post("/api/v1/jobs/digits/cancel")
    assert cancelled.json()["id"] == own["id"]


async def test_nobody_submits_into_a_foreign_project_or_from_its_checkpoints(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "other"})
    _, checkpoint = await with_checkpoint(bench, "theirs", project="other")
    ada = await make_user(bench, "ada", default="editor")
    vic = await make_user(bench, "vic", default="viewer", other="editor")
    spec = {"name": "mine", "recipe": "image-classifier"}
    for project in ("other", "no-such"):
        refused = await ada.post("/api/v1/jobs", json={**spec, "project": project})
        assert (refused.status_code, refused.json()["errors"]) == (
            422,
            [{"path": "project", "message": f"there is no project {project!r}; you may submit to default"}],
        )
    assert (await vic.post("/api/v1/jobs", json=spec)).status_code == 403
    resumed = {**spec, "checkpoint": {"resume_from": checkpoint}}
    refused = await ada.post("/api/v1/jobs", json=resumed)
    assert refused.json()["errors"][0]["path"] == "checkpoint.resume_from"
    assert (await vic.post("/api/v1/jobs", json={**resumed, "project": "other"})).status_code == 201
    clone = await vic.post("/api/v1/jobs/theirs/clone", json={"overrides": {"project": "default"}})
    assert clone.status_code == 403
    assert (await ada.post("/api/v1/jobs", json=spec)).status_code == 201


async def ends(response: StreamingResponse, change: Any) -> list[bytes]:
    """What a stream still says after a change that ends it."""
    chunks = response.body_iterator.__aiter__()
    for _ in range(2):  # connected, and the first look
        await anext(chunks)
    waiting = asyncio.ensure_future(collect(chunks))
    await change()
    async with asyncio.timeout(20):
        return await waiting


async def collect(chunks: Any) -> list[bytes]:
    return [chunk async for chunk in chunks]


@pytest.mark.parametrize("how", ["revoked", "disabled", "role withdrawn", "expired"])
async def test_an_open_stream_ends_with_its_right(bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    job = await bench.submit()
    await make_user(bench, "ada", default="viewer")
    token = await bench.post("/tokens", 201, {"name": "t", "user": "ada", "expires_in": 3600})
    async with bench.context.database.read() as session:
        caller = await bench.context.authority.recognise(session, token["token"], bench.clock())
    monkeypatch.setattr("api.sse.RECHECK_S", 0.05)

    async def change() -> None:
        match how:
            case "revoked":
                await bench.client.delete(f"/api/v1/tokens/{token['id']}")
            case "disabled":
                await bench.client.patch("/api/v1/users/ada", json={"is_disabled": True})
            case "role withdrawn":
                await bench.client.delete("/api/v1/projects/default/members/ada")
            case "expired":
                bench.clock.advance(3601)

    for response in (job_events(bench.context, caller, job["id"], 0), all_jobs(bench.context, caller)):
        said = await ends(response, change)
        assert not [chunk for chunk in said if chunk.startswith(b"event: end")], (
            "the client is to come back, and is told"
        )


async def test_a_stream_goes_on_where_the_right_of_another_ends(bench: Bench) -> None:
    await bench.submit()
    ada, _ = await make_user(bench, "ada", default="viewer"), await make_user(bench, "bob", default="viewer")
    async with bench.context.database.read() as session:
        caller = await bench.context.authority.recognise(
            session, ada.headers["authorization"].removeprefix("Bearer "), bench.clock()
        )
    chunks = all_jobs(bench.context, caller).body_iterator.__aiter__()
    for _ in range(2):
        await anext(chunks)
    await bench.client.patch("/api/v1/users/bob", json={"is_disabled": True})
    second = await bench.submit("second")
    async with asyncio.timeout(20):
        while second["id"].encode() not in (chunk := await anext(chunks)):
            assert chunk
    await chunks.aclose()


async def test_a_project_with_jobs_stays(bench: Bench) -> None:
    assert (await bench.get("/projects/default"))["members"] == []
    await bench.post("/projects", 409, {"name": "default"})
    await bench.post("/projects", 422, {"name": "Not A Name"})
    await bench.post("/projects", 201, {"name": "empty"})
    assert (await bench.client.delete("/api/v1/projects/empty")).status_code == 204
    await bench.submit()
    assert (await bench.client.delete("/api/v1/projects/default")).status_code == 409
    for name in ("admin", "x y", "job\x00"):
        await bench.post("/users", 422, {"name": name})
    assert (await bench.client.delete("/api/v1/projects/%00")).status_code == 404


async def test_a_name_with_a_nul_is_nobody_s(bench: Bench) -> None:
    await bench.post("/users", 201, {"name": "bob"})
    await bench.client.put("/api/v1/projects/default/members/bob", json={"role": "viewer"})
    for method, path, body in (
        ("GET", "/projects/default%00", None),
        ("PATCH", "/projects/default%00", {"description": "another"}),
        ("PATCH", "/users/bob%00", {"is_disabled": True}),
        ("PUT", "/projects/default%00/members/bob", {"role": "viewer"}),
        ("PUT", "/projects/default/members/bob%00", {"role": "viewer"}),
        ("DELETE", "/projects/default%00/members/bob", None),
        ("DELETE", "/projects/default/members/bob%00", None),
        ("GET", "/projects/default%00/secrets", None),
        ("DELETE", "/projects/default%00/secrets/TOKEN", None),
        ("DELETE", "/projects/default/secrets/TOKEN%00", None),
        ("GET", "/projects/default%00/webhooks", None),
        ("DELETE", "/projects/default%00/webhooks/chat", None),
        ("GET", "/projects/default/webhooks/chat%00/deliveries", None),
    ):
        response = await bench.client.request(method, f"/api/v1{path}", json=body)
        assert (response.status_code, response.json()["code"]) == (404, "not_found"), (method, path, response.text)
    project = await bench.get("/projects/default")
    assert project["description"] != "another"
    assert project["members"] == [{"user": "bob", "role": "viewer"}]
    assert (await bench.get("/users"))["items"][0]["disabled_at"] is None


async def test_the_trail_names_who_did_what_page_by_page(bench: Bench) -> None:
    ada = await make_user(bench, "ada", default="editor")
    await ada.post("/api/v1/jobs", json={"name": "mine", "recipe": "image-classifier"})
    await ada.post("/api/v1/jobs/mine/cancel")
    assert (await ada.get("/api/v1/audit")).status_code == 403
    told = [entry["action"] for entry in (await bench.get("/audit", actor="ada"))["items"]]
    assert told == ["job.cancel_requested", "job.submitted"]
    found: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        page = await bench.get("/audit", limit=2, **cursor)
        found += [entry["id"] for entry in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == sorted(found, reverse=True)
    assert len(found) == 5, "user.created, member.granted, token.created, and the two of ada"


def test_roles_include_those_before_them() -> None:
    order = [ProjectRole.VIEWER, ProjectRole.EDITOR, ProjectRole.ADMIN]
    for index, role in enumerate(order):
        assert [role.includes(other) for other in order] == [other <= index for other in range(3)]


async def test_jobs_are_filtered_by_project_label_and_time(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "other"})
    await bench.submit("a", labels={"team": "vision", "size": "1"})
    bench.clock.advance(10)
    await bench.submit("b", labels={"team": "vision"})
    await bench.submit("c", project="other", labels={"team": "speech"})

    async def names(**query: Any) -> list[str]:
        return [item["name"] for item in (await bench.get("/jobs", **query))["items"]]

    assert await names(project="other") == ["c"]
    assert await names(label="team=vision") == ["b", "a"]
    assert await names(label=["team=vision", "size=1"]) == ["a"]
    assert await names(label="team=vi%") == []
    assert await names(created_after="2026-01-31T12:00:05Z") == ["c", "b"]
    assert await names(created_after="2026-01-31T13:00:05+01:00", q="b") == ["b"]
    for query in ({"label": "team"}, {"created_after": "yesterday"}, {"created_after": "2026-01-31T12:00:05"}):
        assert (await bench.get("/jobs", 422, **query))["code"] == "invalid_request"
    assert (await bench.get("/jobs", 422, label="a=\x00"))["code"] == "invalid_request"
