"""Requests made from the API's own description: no internal error, and no reply that it does not describe.

A few for each route and role here; `make contract EXAMPLES=200` makes many, and new ones each time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
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

from tests.integration.service.processes import ServiceProcess
from tests.simulated_controller import bearer

DESCRIPTION = json.loads(Path("docs/reference/openapi.json").read_text())
EXAMPLES = int(os.environ.get("RUBATO_CONTRACT_EXAMPLES", "3"))
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = {("GET", "/api/v1/events")}
ROLES = ("nobody", "viewer", "editor", "admin", "cluster", "scraper")
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
    known = {"reference": job["id"], "project": "default", "user": "somebody", "cluster_id": "c1", "job_id": job["id"]}
    yield Running(process.url, headers, known)
    process.end()


@pytest.fixture(scope="module")
def described(running: Running) -> Any:
    schema = schemathesis.openapi.from_dict(DESCRIPTION)
    schema.config.update(base_url=running.url)
    return schema


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: value.strip("/"))
def test_every_reply_is_described(running: Running, described: Any, method: str, path: str) -> None:
    operation = described[path][method]

    @settings(max_examples=EXAMPLES * len(ROLES), deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(), role=st.sampled_from(ROLES), is_known=st.booleans())
    def ask(case: Any, role: str, is_known: bool) -> None:
        if is_known:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = running.known.get(name, case.path_parameters[name])
        if case.query:
            case.query.pop("wait", None)  # it would be waited for
        response = case.call(headers=running.headers[role], timeout=30)
        case.validate_response(response, checks=CHECKS)
        assert response.status_code < 500, (role, case.as_curl_command(), response.text)

    ask()


def test_all_of_them_were_still_known_at_the_end(running: Running) -> None:
    """Else the walk above would have been one of refusals only."""
    for role in ("viewer", "editor", "admin"):
        assert httpx.get(f"{running.url}/api/v1/jobs/digits", headers=running.headers[role]).status_code == 200
    assert httpx.get(f"{running.url}/metrics", headers=running.headers["scraper"]).status_code == 200
