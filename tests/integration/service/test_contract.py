"""Requests made from the API's own description: no internal error, and no reply that it does not describe.

A few for each route and role here; `make contract EXAMPLES=200` makes many, and new ones each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import typing
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from rubato.wire import WIRE_VERSION, cluster
from rubato.wire.cluster import AcquireRequest, Report, SyncRequest
from rubato.wire.codec import to_json
from tests.integration.service.processes import ServiceProcess, controller_of
from tests.simulated_controller import SimulatedController, bearer

DESCRIPTION = json.loads(Path("docs/reference/openapi.json").read_text())
EXAMPLES = int(os.environ.get("RUBATO_CONTRACT_EXAMPLES", "3"))
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = {("GET", "/api/v1/events")}
ROLES = ("nobody", "viewer", "editor", "admin", "cluster", "scraper", "ticket", "attempt")
WIRE = {
    "/cluster/v1/clusters/{cluster_id}/sync": SyncRequest,
    "/cluster/v1/attempts/acquire": AcquireRequest,
    "/cluster/v1/jobs/{job_id}/report": Report,
}
"""Bodies that are read as the wire has them, and are no part of the description."""
OPERATIONS = [
    (method.upper(), path)
    for path, methods in sorted(DESCRIPTION["paths"].items())
    for method in sorted(methods)
    if (method.upper(), path) not in ENDLESS
]


@dataclass
class Running:
    """A service with something in it."""

    url: str
    headers: dict[str, dict[str, str]]
    known: dict[str, str]
    """Names that exist, by path parameter."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[Running]:
    process = ServiceProcess(tmp_path_factory.mktemp("contract") / "home", RUBATO_DATABASE_URL=shared_database_url)
    process.start()
    home = process.home
    token = (home / "token").read_text().strip()
    with httpx.Client(base_url=process.url, headers=bearer(token)) as client:
        job = client.post("/api/v1/jobs", json={"name": "digits", "recipe": "image-classifier"}).json()
        headers = {"nobody": {}, "admin": bearer(token)}
        client.post("/api/v1/users", json={"name": "somebody"})
        for role in ("viewer", "editor"):
            client.post("/api/v1/users", json={"name": role})
            client.put(f"/api/v1/projects/default/members/{role}", json={"role": role})
            made = client.post("/api/v1/tokens", json={"name": "t", "user": role}).json()
            headers[role] = bearer(made["token"])
        for role in ("cluster", "scraper"):
            headers[role] = bearer((home / f"{role}-token").read_text().strip())
    led = asyncio.run(_lead(process, job["id"]))
    assert led.acquired is not None
    headers |= {"ticket": bearer(led.ticket), "attempt": bearer(led.acquired.token)}
    known = {"reference": job["id"], "project": "default", "user": "somebody", "cluster_id": "c1", "job_id": job["id"]}
    yield Running(process.url, headers, known)
    process.end()


async def _lead(process: ServiceProcess, job_id: str) -> SimulatedController:
    """The job runs, so that tickets and attempts have something to say."""
    async with process.client() as client:
        controller = await controller_of(client, process.agent(client), job_id)
        await controller.report()
        return controller


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)


def wire_values(kind: type) -> st.SearchStrategy[Any]:
    """Messages of a wire class; what may be anything is any JSON."""
    hints = typing.get_type_hints(kind)
    free = {field.name: JSON_OF[hints[field.name]] for field in fields(kind) if hints[field.name] in JSON_OF}
    return st.builds(kind, **free)


JSON_OF: dict[Any, st.SearchStrategy[Any]] = {
    dict[str, Any]: st.dictionaries(st.text(), JSON, max_size=3),
    tuple[dict[str, Any], ...]: st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=2).map(tuple),
}
for _kind in vars(cluster).values():
    if isinstance(_kind, type) and is_dataclass(_kind):
        st.register_type_strategy(_kind, wire_values)


def wire_bodies(path: str, job_id: str) -> st.SearchStrategy[Any]:
    """What a cluster may send, mostly of a release that is understood and of a job that there is; or anything."""

    def known(message: Any) -> Any:
        names = {"wire_version": WIRE_VERSION, "job_id": job_id, "attempt": 1, "wait": 0.0}
        return to_json(replace(message, **{name: value for name, value in names.items() if hasattr(message, name)}))

    kind = WIRE.get(path)
    if kind is None:
        return st.none()
    return st.from_type(kind).map(known) | st.from_type(kind).map(to_json) | JSON


@pytest.fixture(scope="module")
def described(running: Running) -> Any:
    schema = schemathesis.openapi.from_dict(DESCRIPTION)
    schema.config.update(base_url=running.url)
    return schema


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: value.strip("/"))
def test_every_reply_is_described(running: Running, described: Any, method: str, path: str) -> None:
    operation = described[path][method]

    @settings(max_examples=EXAMPLES * len(ROLES), deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        case=operation.as_strategy(),
        role=st.sampled_from(ROLES),
        is_known=st.booleans(),
        body=wire_bodies(path, running.known["job_id"]),
    )
    def ask(case: Any, role: str, is_known: bool, body: Any) -> None:
        if is_known:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = running.known.get(name, case.path_parameters[name])
        if case.query:
            case.query.pop("wait", None)  # it would be waited for
        headers, content = running.headers[role], {}
        if path in WIRE:
            # With NaN, too, which other languages' libraries would refuse to write.
            headers, content = {**headers, "Content-Type": "application/json"}, {"data": json.dumps(body)}
        response = case.call(headers=headers, timeout=30, **content)
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 500, (role, case.as_curl_command(), response.text)

    ask()


def test_all_of_them_were_still_known_at_the_end(running: Running) -> None:
    """Else the walk above would have been one of refusals only."""
    for role in ("viewer", "editor", "admin"):
        assert httpx.get(f"{running.url}/api/v1/jobs/digits", headers=running.headers[role]).status_code == 200
    assert httpx.get(f"{running.url}/metrics", headers=running.headers["scraper"]).status_code == 200
