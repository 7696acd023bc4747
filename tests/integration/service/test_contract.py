"""Requests made from the API's own description: no internal error, and no reply that it does not describe.

A few for each route and role here; `make contract EXAMPLES=200` makes many, and new ones each time.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import re
import typing
import zipfile
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
from tests.simulated_controller import SimulatedController, bearer, log_line, metric, worker

DESCRIPTION = json.loads(Path("docs/reference/openapi.json").read_text())
EXAMPLES = int(os.environ.get("RUBATO_CONTRACT_EXAMPLES", "3"))
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
ENDLESS = {("GET", "/api/v1/events")}
MEMBERS = {"stranger": None, "viewer": "viewer", "editor": "editor", "owner": "admin"}
"""Users, and their role in the project."""
ROLES = ("nobody", *MEMBERS, "admin", "cluster", "scraper", "ticket", "attempt")
WIRE = {
    "/cluster/v1/clusters/{cluster_id}/sync": SyncRequest,
    "/cluster/v1/attempts/acquire": AcquireRequest,
    "/cluster/v1/jobs/{job_id}/report": Report,
}
"""Bodies that are read as the wire has them, and are no part of the description."""


def ends_something(operation: tuple[str, str]) -> bool:
    """Whether little would be left to ask for after it."""
    method, path = operation
    return method == "DELETE" or path.endswith(("/cancel", "/pause"))


OPERATIONS = sorted(
    (
        (method.upper(), path)
        for path, methods in sorted(DESCRIPTION["paths"].items())
        for method in sorted(methods)
        if (method.upper(), path) not in ENDLESS
    ),
    key=ends_something,
)


@dataclass
class Running:
    """A service with something in it."""

    url: str
    headers: dict[str, dict[str, str]]
    known: dict[str, str]
    """Names that exist, by path parameter; of a `{name}` by what stands before it, such as `secrets/{name}`."""

    def fill(self, path: str, parameters: dict[str, Any]) -> None:
        """Put names that exist into the path, where they are known."""
        for name in parameters:
            kind = name if name != "name" else f"{path.split('/{name}')[0].rpartition('/')[2]}/{{name}}"
            parameters[name] = self.known.get(kind, parameters[name])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[ServiceProcess]:
    process = ServiceProcess(
        tmp_path_factory.mktemp("contract") / "home",
        RUBATO_DATABASE_URL=shared_database_url,
        RUBATO_WEBHOOKS="true",
        RUBATO_WEBHOOK_NETWORKS='["127.0.0.1/32"]',
    )
    yield process
    process.end()


@pytest.fixture(scope="module")
def running(process: ServiceProcess) -> Running:
    process.start()
    home = process.home
    token = (home / "token").read_text().strip()
    with httpx.Client(base_url=process.url, headers=bearer(token)) as client:
        known = fill_project(client)
        headers = {"nobody": {}, "admin": bearer(token)}
        client.post("/api/v1/users", json={"name": "somebody"})
        for user, role in MEMBERS.items():
            client.post("/api/v1/users", json={"name": user}).raise_for_status()
            if role is not None:
                client.put(f"/api/v1/projects/default/members/{user}", json={"role": role}).raise_for_status()
            made = client.post("/api/v1/tokens", json={"name": "t", "user": user}).raise_for_status().json()
            headers[user] = bearer(made["token"])
        for role in ("cluster", "scraper"):
            headers[role] = bearer((home / f"{role}-token").read_text().strip())
        led = asyncio.run(lead(process, known["job_id"]))
        assert led.acquired is not None
        headers |= {"ticket": bearer(led.ticket), "attempt": bearer(led.acquired.token)}
        # The newest of the two: as long as the job goes on, nobody may delete it.
        checkpoint, _ = client.get("/api/v1/jobs/digits/checkpoints").raise_for_status().json()["items"]
    known["checkpoint_id"] = checkpoint["id"]
    for step in (10, 20):
        folder = home / "checkpoints" / known["job_id"] / f"1-{step}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        (folder / FILE["name"]).write_bytes(b"weights")
    return Running(process.url, headers, known)


FILE = {"name": "stripe-0.safetensors", "bytes": 7, "sha256": "0" * 64}


def fill_project(client: httpx.Client) -> dict[str, str]:
    """A job with its package and secret, a webhook with a delivery, a token; gives their names."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.py", "def train(context): ...")
    package = hashlib.sha256(packed.getvalue()).hexdigest()
    project = "/api/v1/projects/default"
    # Nobody listens there; what is delivered or not is no matter here.
    webhook = {"name": "team", "url": "https://127.0.0.1:9/hook", "events": ["status"]}
    spec = {"name": "digits", "entrypoint": "train.py:train", "package": package, "secrets": ["TOKEN"]}
    client.put(f"/api/v1/packages/{package}", content=packed.getvalue()).raise_for_status()
    client.put(f"{project}/secrets/TOKEN", json={"value": "a long canary"}).raise_for_status()
    client.post(f"{project}/webhooks", json=webhook).raise_for_status()
    client.post(f"{project}/webhooks/team/test").raise_for_status()
    token = client.post("/api/v1/tokens", json={"name": "spare", "role": "scraper"}).raise_for_status().json()
    job = client.post("/api/v1/jobs", json=spec).raise_for_status().json()
    return {
        "reference": job["id"],
        "job_id": job["id"],
        "worker_id": "w1",
        "node_id": "node-1",
        "cluster_id": "default",
        "project": "default",
        "user": "somebody",
        "token_id": token["id"],
        "sha256": package,
        "secrets/{name}": "TOKEN",
        "webhooks/{name}": "team",
        "files/{name}": FILE["name"],
    }


async def lead(process: ServiceProcess, job_id: str) -> SimulatedController:
    """The job runs and has told of everything, so that tickets and attempts have something to say."""
    async with process.client() as client:
        controller = await controller_of(client, process.agent(client), job_id)
        committed = tuple(
            controller.event("checkpoint.committed", step=step, checkpoint_id=f"1-{step}", bytes=7, files=[FILE])
            for step in (10, 20)
        )
        formed = controller.event("generation.formed", generation=1)
        await controller.report(
            events=(formed, *committed),
            metrics=(metric(10), metric(20)),
            logs=(log_line("a line"),),
            worker_reports=(worker(),),
        )
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


def do_not_wait(case: Any) -> None:
    """Ask for what there is now, also where the usual is to wait for it."""
    described = case.operation.definition.raw.get("parameters", ())
    if any(parameter["name"] == "wait" for parameter in described):
        case.query = {**(case.query or {}), "wait": 0}


NEEDED = {"/api/v1/jobs/{reference}/code/text": {"path": "train.py"}}
LOGIN = ("GET", "/login")
"""Its code can be used once, and was not."""
CHANGES: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/api/v1/nodes/{node_id}/cordon", None),
    ("POST", "/api/v1/nodes/{node_id}/uncordon", None),
    ("POST", "/api/v1/jobs/{reference}/workers/{worker_id}/drain", None),
    ("POST", "/api/v1/jobs/{reference}/workers/{worker_id}/drain", None),
    ("PATCH", "/api/v1/checkpoints/{checkpoint_id}", {"pinned": True}),
    ("PATCH", "/api/v1/checkpoints/{checkpoint_id}", {"pinned": False}),
    ("PUT", "/api/v1/projects/{project}/secrets/{name}", {"value": "a long canary"}),
    ("POST", "/api/v1/projects/{project}/webhooks", {"name": "other", "url": "https://127.0.0.1:9/", "events": []}),
    ("POST", "/api/v1/projects/{project}/webhooks/{name}/test", None),
    ("POST", "/api/v1/tokens", {"name": "other", "role": "scraper"}),
    ("POST", "/api/v1/jobs/{reference}/clone", {"from_checkpoint": "latest"}),
    ("HEAD", "/api/v1/packages/{sha256}", None),
)
LOOKS = tuple((method, path, None) for method, path in OPERATIONS if method == "GET" and (method, path) != LOGIN)


def test_what_is_there_is_told_as_described(running: Running, described: Any) -> None:
    """Of random requests few find something, and of some routes none."""
    refused = []
    for method, path, body in (*LOOKS, *CHANGES):
        operation = described[path][method]
        parameters = dict.fromkeys(re.findall(r"{(\w+)}", path), "")
        running.fill(path, parameters)
        # Nobody may do everything: attempts ask for their secrets, tickets for a package.
        for role in ("admin", "attempt", "ticket", "scraper"):
            sent = {} if body is None else {"body": body, "media_type": body_kind(operation)}
            case = operation.Case(path_parameters=parameters, query=dict(NEEDED.get(path, {})), **sent)
            do_not_wait(case)
            response = case.call(headers=running.headers[role], timeout=30)
            case.validate_response(response, checks=CHECKS)
            if response.status_code < 300:
                break
        else:
            refused.append((method, path, response.status_code, response.text))
    assert refused == []


def body_kind(operation: Any) -> str:
    """The first media type that is described."""
    return next(iter(operation.definition.raw["requestBody"]["content"]))


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
            running.fill(path, case.path_parameters or {})
        do_not_wait(case)
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
