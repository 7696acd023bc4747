from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.service_link import Fenced, LeaseHeld, NotWanted, Refused, ServiceLink, Unreachable
from rubato.wire.cluster import Desired, MetricRow, Observed, ProcessIdentity, Report
from tests.https_server import https_server

PROCESS = ProcessIdentity("node", "boot", 12, 345)
OBSERVED = Observed("running", "training", 1, 1, 0, 5, 10, 0, 0)


def link(handler: Callable[[httpx.Request], httpx.Response]) -> ServiceLink:
    return ServiceLink("http://service/", "secret", transport=httpx.MockTransport(handler))


def answering(status: int, body: Any) -> ServiceLink:
    return link(lambda request: httpx.Response(status, json=body))


def test_a_report_goes_out_as_the_wire_says_with_what_is_not_finite() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"ack": 3, "time": "now"})

    row = MetricRow(5, "now", 1, 1, {"loss": float("nan")})
    reply = link(handler).report("job_1", Report(2, 3, 1, OBSERVED, metrics=(row,)))
    assert reply.ack == 3
    assert str(seen[0].url) == "http://service/cluster/v1/jobs/job_1/report"
    assert seen[0].headers["Authorization"] == "Bearer secret"
    assert json.loads(seen[0].content)["observed"]["step"] == 5
    assert b"NaN" in seen[0].content


def test_an_authority_of_ones_own_is_trusted_where_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(url: str) -> None:
        with ServiceLink(url, "secret") as service:
            service.report("job_1", Report(2, 3, 1, OBSERVED))

    with https_server(tmp_path / "tls") as server:
        server.answers += [401]
        url = server.url("", "127.0.0.1")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            ask(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(server.ca_file))
        with pytest.raises(Unreachable, match="HTTP 401"):
            ask(url)


def test_the_wishes() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {"after": "4", "wait": "25.0"}
        return httpx.Response(200, json={"version": 5, "run": "run", "workers": 3, "newer_field": 1})

    assert link(handler).desired("job_1", 4, 25.0) == Desired(5, "run", 3)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (409, {"code": "fenced", "detail": "Attempt 1 no longer counts."}, Fenced),
        (409, {"code": "conflict", "detail": "It is paused."}, NotWanted),
        (404, {"code": "not_found"}, NotWanted),
        (422, {"code": "invalid_request"}, Refused),
        (401, {"code": "unauthenticated"}, Refused),
        (500, {"code": "internal"}, Unreachable),
        (503, {"code": "not_ready"}, Unreachable),
        (429, {"code": "slow_down"}, Unreachable),
        (404, "some proxy's page", Unreachable),
        (404, {"message": "no route"}, Unreachable),
        (403, {"message": "blocked"}, Unreachable),
        (409, {"code": "lease_held"}, Unreachable),
    ],
)
def test_every_refusal_has_its_meaning(status: int, body: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        answering(status, body).report("job_1", Report(1, 1, 1, OBSERVED))


def test_a_held_lease_names_the_predecessor() -> None:
    seen = {"attempt": 2, "node_id": "node", "boot_id": "boot", "pid": 12, "start_time": 345}
    body = {"code": "lease_held", "predecessor": seen, "retry_after": 7.5}
    with pytest.raises(LeaseHeld) as raised:
        answering(409, body).acquire("job_1", PROCESS, 0)
    assert (raised.value.attempt, raised.value.process, raised.value.retry_after_s) == (2, PROCESS, 7.5)


def test_silence_is_unreachable(tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Unreachable):
        link(handler).desired("job_1", 0, 1)
    with pytest.raises(Unreachable):
        link(handler).fetch_package("a" * 64, tmp_path / "p.zip")


def test_a_package_comes_as_bytes(tmp_path: Path) -> None:
    service = link(lambda request: httpx.Response(200, content=b"zip" * 1000))
    service.fetch_package("a" * 64, tmp_path / "p.zip")
    assert (tmp_path / "p.zip").read_bytes() == b"zip" * 1000
    with pytest.raises(NotWanted):
        answering(404, {"code": "not_found", "detail": "gone"}).fetch_package("a" * 64, tmp_path / "q.zip")


def test_what_a_proxy_garbles_is_unreachable(tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=iter([b"no gzip"]))

    with pytest.raises(Unreachable):
        link(handler).desired("job_1", 0, 0.0)
    with pytest.raises(Unreachable):
        link(handler).fetch_package("a" * 64, tmp_path / "package.zip")


@pytest.mark.parametrize("body", [{}, [], {"secrets": None}])
def test_secrets_from_somebody_else_are_none(body: Any) -> None:
    with pytest.raises(Unreachable, match="tells no secrets"):
        answering(200, body).secrets("job_1")
