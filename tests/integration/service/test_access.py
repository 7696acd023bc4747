"""Who may call what: every route with every kind of caller; cookies, hosts, headers, problem documents."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.routing import APIRoute
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from api.app import ROUTERS
from api.auth import roles_of
from service.auth import Role
from service.models import Base
from tests.simulated_controller import bearer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

PUBLIC = {
    "/healthz",
    "/readyz",
    "/version",
    "/login",
    "/docs",
    "/api/openapi.json",
    "/api/v1/healthz",
    "/api/v1/readyz",
    "/api/v1/version",
    "/api/v1/schemas/job-spec",
    "/api/v1/openapi.json",
    "/api/v1/session",
    "/",
    "/jobs",
    "/jobs/{path:path}",
    "/cluster",
    "/compare",
    "/settings",
    "/sign-in",
    "/{name}",
}
DEEP: object = functools.reduce(lambda inner, _: [inner], range(40), 1)
PLAIN = {"Content-Type": "text/plain"}
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def _routes() -> list[tuple[str, str, APIRoute]]:
    routes = [route for router in ROUTERS for route in router.routes]
    assert all(isinstance(route, APIRoute) for route in routes), "anything else would run without `authorize`"
    return [(method, route.path, route) for route in routes for method in sorted(route.methods)]


async def test_every_route_refuses_whoever_it_is_not_for(bench: Bench) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    tokens = {
        Role.ADMIN: bench.token,
        Role.CLUSTER: bench.agent.token,
        Role.TICKET: controller.ticket,
        Role.ATTEMPT: controller.acquired.token,
        Role.SCRAPER: (bench.settings.home / "scraper-token").read_text().strip(),
    }
    await bench.post("/users", 201, {"name": "nobody"})
    tokens[Role.USER] = (await bench.post("/tokens", 201, {"name": "t", "user": "nobody"}))["token"]
    assert set(tokens) == set(Role)
    wrong = bench.token[:-1] + ("0" if bench.token[-1] != "0" else "1")
    transport = httpx.ASGITransport(app=bench.app, raise_app_exceptions=False)
    # What was not included by a router is the mount of the page's assets.
    assert len(bench.app.routes) == len(ROUTERS) + 1
    walked = 0
    async with httpx.AsyncClient(transport=transport, base_url=str(bench.client.base_url)) as client:
        for method, path, route in _routes():
            roles = roles_of(route.endpoint)
            if not roles:
                assert path in PUBLIC, f"{method} {path} is public and not on the list"
                continue
            url = re.sub(r"\{[^}]+\}", controller.job_id, path)
            for headers in ({}, bearer(wrong), bearer("nonsense"), {"Authorization": f"Basic {bench.token}"}):
                response = await client.request(method, url, headers=headers)
                assert response.status_code == 401, (method, path, headers)
                assert response.headers["www-authenticate"] == "Bearer"
            for role, token in tokens.items():
                if role not in roles:
                    response = await client.request(method, url, headers=bearer(token))
                    assert response.status_code == 403, (method, path, role)
                    if method != "HEAD":
                        assert response.json()["code"] == "forbidden"
            walked += 1
    assert walked > 20, "the walk found the routes"


async def test_a_removed_token_file_revokes_the_token(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url) as bench:
        old, file = bench.token, bench.settings.home / "token"
        assert file.stat().st_mode & 0o777 == 0o600
    file.unlink()
    async with make_bench(database_url) as bench:
        assert bench.token != old
        assert (await bench.client.get("/api/v1/me", headers=bearer(old))).status_code == 401
        assert (await bench.get("/me")) == {"user": "admin", "role": "admin", "projects": {}}


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_home_s_own_token_that_was_revoked_is_made_anew(
    make_bench: MakeBench, new_postgres: Callable[[], str], replicas: int
) -> None:
    url = new_postgres() if replicas > 1 else ""
    async with make_bench(url) as bench:
        old, file = bench.token, bench.settings.home / "token"
        token_id = next(item["id"] for item in (await bench.get("/tokens"))["items"] if item["role"] == "admin")
        assert (await bench.client.delete(f"/api/v1/tokens/{token_id}")).status_code == 204
        await bench.get("/me", 401)
    async with AsyncExitStack() as stack:
        # Replicas of one home that start at once agree on the new one.
        started = await asyncio.gather(*(stack.enter_async_context(make_bench(url)) for _ in range(replicas)))
        tokens = {running.token for running in started}
        assert len(tokens) == 1
        assert tokens != {old}
        assert file.read_text().strip() in tokens
        assert file.stat().st_mode & 0o777 == 0o600
        for running in started:
            assert (await running.get("/me"))["role"] == "admin"
            assert (await running.client.get("/api/v1/me", headers=bearer(old))).status_code == 401


async def test_no_token_lies_in_the_database(bench: Bench) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    async with bench.context.database.read() as session:
        tables = {
            table.name: repr((await session.execute(select(table))).all()) for table in Base.metadata.sorted_tables
        }
    # Of SQLite also what lies in its files and is no row any more.
    files = {file.name: file.read_bytes().decode("latin-1") for file in bench.settings.home.glob("rubato.db*")}
    assert controller.job_id in tables["jobs"]
    for name, content in (tables | files).items():
        for secret in (bench.token, bench.agent.token, controller.ticket, controller.acquired.token):
            assert secret not in content, name


@pytest.fixture
async def browser(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=bench.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=str(bench.client.base_url)) as client:
        yield client


async def test_sign_in_by_token_and_out(bench: Bench, browser: httpx.AsyncClient) -> None:
    assert (await browser.post("/api/v1/session", json={"token": "rbt_wrong"})).status_code == 401
    assert (await browser.post("/api/v1/session", json={"token": bench.agent.token})).status_code == 403
    response = await browser.post("/api/v1/session", json={"token": f" {bench.token}\n"})
    assert response.status_code == 204
    cookie = response.headers["set-cookie"]
    assert "rubato_session=" in cookie
    for part in ("HttpOnly", "SameSite=strict", "Path=/"):
        assert part in cookie
    assert (await browser.get("/api/v1/me")).json()["role"] == "admin"
    assert (await browser.delete("/api/v1/session", headers=SAME_ORIGIN)).status_code == 204
    browser.cookies.set("rubato_session", cookie.split("=", 1)[1].split(";")[0])
    assert (await browser.get("/api/v1/me")).status_code == 401, "the session itself has ended, not only the cookie"


async def test_a_login_link_works_once(bench: Bench, browser: httpx.AsyncClient) -> None:
    link = await bench.post("/login-links", 201)
    assert link["url"] == f"{bench.client.base_url}/login?code={link['code']}"
    response = await browser.get(link["url"])
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert (await browser.get("/api/v1/me")).status_code == 200
    browser.cookies.clear()
    late = await bench.post("/login-links", 201)
    bench.clock.advance(16 * 60)
    for spent in (link, late):
        response = await browser.get(spent["url"])
        assert (response.status_code, response.headers["location"]) == (303, "/sign-in?link=spent")
        assert "set-cookie" not in response.headers
    assert (await browser.get("/api/v1/me")).status_code == 401


async def test_behind_a_proxy_that_speaks_tls_a_login_link_does_too(make_bench: MakeBench, database_url: str) -> None:
    """The code in it is worth as much as a token, and a Secure cookie is not kept over http."""
    async with make_bench(database_url, behind_tls_proxy=True) as bench:
        link = await bench.post("/login-links", 201)
        assert link["url"] == f"https://{bench.client.base_url.netloc.decode()}/login?code={link['code']}"
        response = await bench.client.get(link["url"])
        assert (response.status_code, response.headers["location"]) == (303, "/")
        assert "; Secure" in response.headers["set-cookie"]


async def test_in_a_container_without_a_proxy_a_login_link_leads_to_where_the_page_is(
    make_bench: MakeBench, database_url: str
) -> None:
    async with make_bench(database_url, host="0.0.0.0", published_on_loopback=True) as bench:
        link = await bench.post("/login-links", 201)
        assert link["url"] == f"http://{bench.client.base_url.netloc.decode()}/login?code={link['code']}"
        response = await bench.client.get(link["url"])
        assert (response.status_code, response.headers["location"]) == (303, "/")
        assert "Secure" not in response.headers["set-cookie"]


async def test_who_is_not_known_does_not_wait_for_the_writer(bench: Bench, browser: httpx.AsyncClient) -> None:
    """Nor keeps it: SQLite has one for all."""
    async with bench.context.database.write(), asyncio.timeout(60):
        assert (await browser.post("/api/v1/session", json={"token": "rbt_wrong"})).status_code == 401
        assert (await browser.get("/login?code=wrong")).headers["location"] == "/sign-in?link=spent"


async def test_a_foreign_page_cannot_use_the_cookie(bench: Bench, browser: httpx.AsyncClient) -> None:
    await browser.post("/api/v1/session", json={"token": bench.token})
    await bench.submit()
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://["},
        {},
    ):
        response = await browser.post("/api/v1/jobs/digits/cancel", headers=headers)
        assert response.status_code == 403, headers
    assert (await bench.job("digits"))["status"] == "queued"
    assert (await browser.post("/api/v1/jobs/digits/cancel", headers=SAME_ORIGIN)).status_code == 202


async def test_a_foreign_page_cannot_sign_the_browser_in(bench: Bench, browser: httpx.AsyncClient) -> None:
    own = str(bench.client.base_url)
    for headers, status in (
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Origin": own}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": own}, 204),
        (SAME_ORIGIN, 204),
        ({}, 204),
    ):
        response = await browser.post("/api/v1/session", json={"token": bench.token}, headers=headers)
        assert (response.status_code, "set-cookie" in response.headers) == (status, status == 204), headers


async def test_foreign_host_names_are_refused(bench: Bench) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil:8642", "[", "[::1"):
        response = await bench.client.get("/api/v1/me", headers={"Host": host})
        assert (response.status_code, response.json()["code"]) == (421, "host_not_allowed"), host
    for host in ("localhost:9999", "127.0.0.1", "[::1]:8642"):
        assert (await bench.client.get("/api/v1/me", headers={"Host": host})).status_code == 200, host


OUTSIDE = ("../token", "../../token", "/etc/passwd", "..\\token", "....//token", "file:///etc/passwd", "token\0.json")
SPELLINGS: tuple[Callable[[str], str], ...] = (
    lambda path: path.replace("\0", "%00").replace("\\", "%5c"),
    lambda path: quote(path, safe=""),
    lambda path: quote(path, safe="").replace(".", "%2e"),
    lambda path: quote(quote(path, safe="").replace(".", "%2e"), safe=""),
    lambda path: quote(path, safe="").replace("%2F", "%c0%af"),
)
"""As it is, encoded, encoded with its dots, encoded twice, and with a slash that a strict decoder does not know."""


@pytest.mark.parametrize("spell", range(len(SPELLINGS)))
async def test_no_path_leads_outside(make_bench: MakeBench, spell: int) -> None:
    """Whatever names something in an address names nothing on the disk; the page answers with itself or not at all.

    On one kind of database, which has no part in it: ten thousand requests.
    """
    async with make_bench() as bench:
        await _walk(bench, spell)


async def _walk(bench: Bench, spell: int) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    tokens = [bench.token, bench.agent.token, controller.ticket, controller.acquired.token]
    secrets = [(bench.settings.home / name).read_text().strip() for name in ("token", "cluster-token", "scraper-token")]
    walked = 0
    for _, path, route in _routes():
        if "GET" not in route.methods or "{" not in path:
            continue
        for evil in OUTSIDE:
            url = re.sub(r"\{[^}]+\}", lambda _, evil=evil: SPELLINGS[spell](evil), path)
            for token in tokens:
                # A log may be long; of other routes it is no parameter.
                parameters = {"tail": 0} if path.endswith("/logs") else {}
                response = await bench.client.get(url, headers=bearer(token), params=parameters)
                assert response.status_code in (200, 307, 400, 401, 403, 404, 405, 422), (url, response.text)
                assert not any(secret in response.text for secret in secrets), url
                assert "root:" not in response.text
                if response.status_code == 200:
                    assert "text/html" in response.headers["content-type"], url
                walked += 1
    assert walked > 500


async def test_every_reply_carries_the_security_headers(bench: Bench) -> None:
    for path in ("/", "/api/v1/jobs", "/api/v1/nothing", "/assets/nothing.js"):
        response = await bench.client.get(path)
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/api/v1/nothing", {}, 404, "not_found"),
        ("DELETE", "/api/v1/jobs", {}, 405, "method_not_allowed"),
        ("GET", "/api/v1/jobs/unknown", {}, 404, "not_found"),
        ("GET", "/api/v1/jobs/%00", {}, 404, "not_found"),
        ("GET", "/api/v1/jobs", {"params": {"limit": "many"}}, 422, "invalid_request"),
        ("GET", "/api/v1/jobs", {"params": {"status": "sleeping"}}, 422, "invalid_request"),
        ("GET", "/api/v1/jobs", {"params": {"cursor": "x"}}, 422, "invalid_request"),
        ("POST", "/api/v1/jobs", {"content": b"{"}, 422, "invalid_request"),
        ("POST", "/api/v1/jobs", {"content": b"[" * 100_000}, 422, "invalid_request"),
        (
            "POST",
            "/api/v1/jobs",
            {"json": DEEP},
            422,
            "invalid_request",
        ),
        ("POST", "/api/v1/jobs", {"content": b'{"name":"a","seed":1e999}'}, 422, "invalid_request"),
        ("POST", "/api/v1/jobs", {"json": {"name": "x\x00y"}}, 422, "invalid_request"),
        ("POST", "/api/v1/jobs", {"json": {"name": "a"}}, 422, "invalid_spec"),
        ("POST", "/api/v1/jobs", {"json": {"name": "job_a", "recipe": "r"}}, 422, "invalid_spec"),
        (
            "POST",
            "/api/v1/jobs",
            {"json": {"name": "a", "entrypoint": "t.py", "package": "0" * 64}},
            422,
            "package_unknown",
        ),
        ("POST", "/api/v1/jobs", {"content": b"x" * 300_000}, 413, "body_too_large"),
        (
            "POST",
            "/api/v1/jobs",
            {"content": b"x", "headers": PLAIN},
            415,
            "unsupported_media_type",
        ),
        ("POST", "/api/v1/jobs/digits/scale", {"json": {"workers": "4"}}, 422, "invalid_request"),
        ("POST", "/api/v1/jobs/digits/scale", {"json": {"workers": 4, "now": True}}, 422, "invalid_request"),
        ("POST", "/api/v1/jobs/digits/scale", {"json": {"workers": 9}}, 422, "out_of_bounds"),
        ("POST", "/api/v1/jobs/digits/scale", {"json": {"workers": 0}}, 422, "out_of_bounds"),
        ("POST", "/api/v1/jobs/digits/checkpoint", {}, 409, "conflict"),
        ("GET", "/api/v1/jobs/digits/logs", {"params": {"after": "../x"}}, 422, "invalid_request"),
        ("GET", "/api/v1/jobs/digits/events", {"params": {"after": 2**70}}, 422, "invalid_request"),
        ("GET", "/api/v1/checkpoints/..%2f..%2ftoken/files/token", {}, 404, "not_found"),
        ("GET", "/api/v1/packages/..%2f..%2ftoken", {}, 404, "not_found"),
        ("GET", "/api/v1/packages/token", {}, 405, "method_not_allowed"),
        ("GET", "/assets/..%2f..%2f..%2fetc%2fpasswd", {}, 404, "not_found"),
    ],
)
async def test_bad_requests_get_problem_documents(
    bench: Bench, method: str, path: str, options: dict[str, Any], status: int, code: str
) -> None:
    await bench.submit()
    headers = {"Content-Type": "application/json"} if "content" in options else {}
    options = {"headers": headers, **options}
    response = await bench.client.request(method, path, **options)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text


@pytest.mark.parametrize("path", ["/api/v1/jobs/digits/scale", "/api/v1/jobs", "/api/v1/users"])
async def test_a_body_without_a_length_is_cut_off_too(make_bench: MakeBench, path: str) -> None:
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        yield b'{"workers": "'
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    async with make_bench(max_body_bytes=100_000) as bench:
        await bench.submit()
        response = await bench.client.post(path, content=chunks(), headers={"Content-Type": "application/json"})
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large"), response.text
        assert sent <= 120_000


async def test_a_wrong_scale_names_the_bounds(bench: Bench) -> None:
    await bench.submit(workers={"initial": 2, "min": 2, "max": 5})
    problem = await bench.post("/jobs/digits/scale", 422, {"workers": 6})
    assert "2..5" in problem["detail"]
    assert problem["errors"] == [{"path": "workers", "message": "must lie in 2..5, got 6"}]


async def test_a_bad_spec_names_every_finding(bench: Bench) -> None:
    spec = {"name": "Bad Name", "entrypoint": "train.py", "workers": {"initial": 9, "max": 4}, "colour": "red"}
    response = await bench.client.post("/api/v1/jobs", json=spec)
    paths = {item["path"] for item in response.json()["errors"]}
    assert {"workers.initial", "colour"} <= paths


async def test_what_nobody_foresaw_is_an_internal_error_without_details(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explode(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is a-word-of-mine")

    monkeypatch.setattr("service.jobs.list_jobs", explode)
    response = await bench.client.get("/api/v1/jobs")
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "internal"
    assert "a-word-of-mine" not in response.text


async def test_a_silent_database_is_503_and_says_when_to_retry(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("server closed the connection"))

    monkeypatch.setattr("service.jobs.list_jobs", fail)
    response = await bench.client.get("/api/v1/jobs")
    assert (response.status_code, response.json()["code"], response.headers["retry-after"]) == (503, "not_ready", "2")
