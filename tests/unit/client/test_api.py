from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from rubato.client import ApiError, ApiForbidden, ApiNotFound, ApiUnauthenticated, Client, ServiceUnreachable
from rubato.client.transport import describe_problem
from rubato.errors import CheckpointCorrupt, PackageError, UserError
from rubato.home import Home
from rubato.packaging import pack_folder

Handler = Callable[[httpx.Request], httpx.Response]
JOB = {"id": "job_1", "name": "digits", "status": "running", "desired_workers": 2, "workers": 2, "step": 7}


def client_of(handler: Handler, tmp_path: Path, **environment: str) -> Client:
    return Client(home=Home(tmp_path), environment=environment, transport=httpx.MockTransport(handler))


def test_the_example_of_a_request_names_a_route() -> None:
    paths = json.loads(Path("docs/reference/openapi.json").read_text())["paths"]
    example = re.search(r'request\("(\w+)", "/jobs/\w+(/[^"]+)"\)', Client.request.__doc__ or "")
    assert example is not None
    assert example[1].lower() in paths[f"/api/v1/jobs/{{reference}}{example[2]}"]


def test_submit_sends_the_spec_once_under_a_key(tmp_path: Path) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(201, json=JOB)

    with client_of(handler, tmp_path, RUBATO_TOKEN="rbt_x") as client:
        job = client.submit({"name": "digits"})
        client.submit({"name": "digits"})
    assert (job.id, job.workers, job.raw) == ("job_1", 2, JOB)
    assert [request.url.path for request in seen] == ["/api/v1/jobs"] * 2
    assert json.loads(seen[0].content) == {"name": "digits"}
    assert seen[0].headers["Authorization"] == "Bearer rbt_x"
    assert seen[0].headers["Idempotency-Key"] != seen[1].headers["Idempotency-Key"]


def test_a_newer_service_may_send_more_and_leave_out_what_has_a_default(tmp_path: Path) -> None:
    reply = {"id": "job_1", "name": "n", "status": "hibernating", "colour": "blue", "metrics": {"loss": None}}
    with client_of(lambda _: httpx.Response(200, json=reply), tmp_path) as client:
        job = client.job("job_1")
    assert job.status == "hibernating"
    assert not job.is_final
    assert job.raw["colour"] == "blue"


@pytest.mark.parametrize("name", ["digits#2", "digits?wait=1", "digits/scale", "digits%23", "../jobs", "日 本"])
def test_no_sign_in_a_name_makes_it_mean_another_job(tmp_path: Path, name: str) -> None:
    asked: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(200, json=JOB)

    with client_of(handler, tmp_path) as client:
        client.job(name)
        client.operations.drain_worker(name, name)
    assert [unquote(part) for part in asked[0].decode().split("/")] == ["", "api", "v1", "jobs", name]
    assert [unquote(part) for part in asked[1].decode().split("/")][4:] == [name, "workers", name, "drain"]


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_what_names_nothing_is_refused_before_it_is_sent(tmp_path: Path, name: str) -> None:
    with client_of(lambda _: pytest.fail("sent"), tmp_path) as client, pytest.raises(UserError, match="name or an id"):
        client.cancel(name)


def test_a_reply_of_another_shape_is_told_as_such(tmp_path: Path) -> None:
    with (
        client_of(lambda _: httpx.Response(200, json={"id": 3}), tmp_path) as client,
        pytest.raises(ApiError, match="different releases"),
    ):
        client.job("job_1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, ApiUnauthenticated), (403, ApiForbidden), (404, ApiNotFound), (409, ApiError), (500, ApiError)],
)
def test_refusals_by_status(tmp_path: Path, status: int, kind: type[ApiError]) -> None:
    problem = {"title": "T", "detail": "what happened", "code": "some_code", "status": status}
    with client_of(lambda _: httpx.Response(status, json=problem), tmp_path) as client, pytest.raises(kind) as caught:
        client.job("x")
    who = "http://127.0.0.1:8642 does not let you in: " if kind is ApiUnauthenticated else ""
    assert str(caught.value) == f"{who}what happened"
    assert (caught.value.status, caught.value.code) == (status, "some_code")


def test_every_finding_of_an_invalid_spec_is_in_the_message(tmp_path: Path) -> None:
    problem = {
        "detail": "the spec is not valid",
        "code": "invalid_spec",
        "errors": [{"path": "workers.max", "message": "too small"}, {"path": "", "message": "no name"}],
    }
    with (
        client_of(lambda _: httpx.Response(422, json=problem), tmp_path) as client,
        pytest.raises(ApiError) as caught,
    ):
        client.submit({})
    assert str(caught.value) == "the spec is not valid\n  workers.max: too small\n  no name"
    assert [finding.path for finding in caught.value.findings] == ["workers.max", ""]


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ({"detail": "D.", "title": "T"}, "D."),
        ({"title": "T"}, "T"),
        (
            {"detail": "workers must be 1..4.", "errors": [{"path": "workers", "message": "must be 1..4"}]},
            "workers must be 1..4.",
        ),
        (
            {
                "title": "T",
                "detail": "a: x; b: y",
                "errors": [{"path": "a", "message": "x"}, {"path": "b", "message": "y"}],
            },
            "T\n  a: x\n  b: y",
        ),
        ({"detail": "D", "errors": [{"path": "", "message": "no name"}, "odd"]}, "D\n  no name"),
        ({}, ""),
    ],
)
def test_a_problem_in_words_tells_nothing_twice(problem: dict[str, Any], text: str) -> None:
    assert describe_problem(problem) == text


def test_a_page_instead_of_json_asks_whether_this_is_rubato(tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="<html>", headers={"content-type": "text/html"})

    with client_of(handler, tmp_path) as client, pytest.raises(ApiError, match="is this address a Rubato service"):
        client.job("x")


def test_a_redirect_is_no_success_and_names_the_address_to_use(tmp_path: Path) -> None:
    there = "https://rubato.example/api/v1/jobs/x"
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.cancel("x"),
        lambda client: client.delete("job_1"),
        lambda client: list(client.follow("x")),
        lambda client: client.download("ckpt_1", "a.safetensors", tmp_path),
    ]
    for ask in calls:
        with (
            client_of(lambda _: httpx.Response(308, headers={"Location": there}), tmp_path) as client,
            pytest.raises(ApiError, match=f"redirects to {there}; use that address"),
        ):
            ask(client)
    with client_of(lambda _: httpx.Response(302, headers={"Location": there}), tmp_path) as client:
        assert not client.is_ready()
    with client_of(lambda _: httpx.Response(302), tmp_path) as client, pytest.raises(ApiError, match=r"Found \(302\)"):
        client.cancel("x")


def test_a_download_is_whole_or_not_there(tmp_path: Path) -> None:
    content = b"weights" * 1000
    digest = hashlib.sha256(content).hexdigest()

    class Cut(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield content[:700]
            raise httpx.RemoteProtocolError("peer closed connection")

    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=Cut()) if "cut" in request.url.path else httpx.Response(200, content=content)

    with client_of(handler, tmp_path) as client:
        (tmp_path / "cut").write_bytes(b"of before")
        with pytest.raises(ServiceUnreachable):
            client.download("ckpt_1", "cut", tmp_path, sha256=digest)
        assert (tmp_path / "cut").read_bytes() == b"of before"
        with pytest.raises(CheckpointCorrupt, match=f"other bytes than its checkpoint names.*{digest}.*again"):
            client.download("ckpt_1", "damaged", tmp_path, sha256="0" * 64)
        assert [one.name for one in tmp_path.iterdir()] == ["cut"]
        for known in (digest, None):
            assert client.download("ckpt_1", "a.safetensors", tmp_path, sha256=known).read_bytes() == content
        with pytest.raises(UserError, match=r"cannot write .*No such file"):
            client.download("ckpt_1", "a.safetensors", tmp_path / "nowhere")
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match=r"cannot write .*Not a directory"):
            client.download("ckpt_1", "a.safetensors", tmp_path / "file")


def test_nothing_there_says_how_to_start_it(tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with client_of(handler, tmp_path) as client, pytest.raises(ServiceUnreachable, match="rubato up"):
        client.job("x")


def test_an_impossible_address_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no address"):
        Client("http://a:port", home=Home(tmp_path), environment={})


def test_jobs_are_read_page_by_page(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(dict(request.url.params))
        number = int(request.url.params.get("cursor", "0"))
        following = str(number + 1) if number < 2 else None
        items = [{"id": f"job_{number}", "name": "n", "status": "running"}]
        return httpx.Response(200, json={"items": items, "next_cursor": following})

    with client_of(handler, tmp_path) as client:
        assert [job.id for job in client.jobs(status=("running", "queued"))] == ["job_0", "job_1", "job_2"]
        assert seen[0] == {"status": "running,queued", "limit": "200"}
        assert [job.id for job in client.jobs(limit=2)] == ["job_0", "job_1"]
        assert seen[-1] == {"cursor": "1", "limit": "1"}


def test_a_plan_is_asked_for_with_what_was_given(tmp_path: Path) -> None:
    sent: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json={"rows": []})

    with client_of(handler, tmp_path) as client:
        client.plan({"name": "n"}, {"layers": []}, bytes_per_s=1e9)
        client.plan({}, {}, links_of="links", noise_scale=800)
    assert sent == [
        {"spec": {"name": "n"}, "profile": {"layers": []}, "link": {"latency_s": 1e-4, "bytes_per_s": 1e9}},
        {"spec": {}, "profile": {}, "links_of": "links", "noise_scale": 800},
    ]


def test_wait_asks_again_until_the_status_is_there(tmp_path: Path) -> None:
    statuses = ["queued", "starting", "paused"]
    asked: list[dict[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        return httpx.Response(200, json={**JOB, "status": statuses[min(len(asked), len(statuses)) - 1]})

    with client_of(handler, tmp_path) as client:
        assert client.wait("job_1", statuses=("paused",)).status == "paused"
    assert len(asked) == 3
    assert asked[0] == {"wait": "25.0", "for": "cancelled,failed,paused,succeeded"}


def test_wait_goes_on_where_a_reply_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.client.absence.AWAY_POLL_S", 0.0)
    replies: list[Any] = [httpx.ReadTimeout(""), httpx.ConnectError("refused"), 502, 503, 504, 200]

    def handler(request: httpx.Request) -> httpx.Response:
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply, json={**JOB, "status": "succeeded"})

    with client_of(handler, tmp_path) as client:
        assert client.wait("job_1").status == "succeeded"
        replies[:] = [500]
        with pytest.raises(ApiError):
            client.wait("job_1")
        monkeypatch.setattr("rubato.client.absence.AWAY_S", -1.0)
        replies[:] = [httpx.ConnectError("refused")]
        with pytest.raises(ServiceUnreachable, match="nothing answers"):
            client.wait("job_1")


def test_a_lost_reply_makes_no_second_job(tmp_path: Path) -> None:
    keys: list[str] = []
    replies: list[Any] = [httpx.ReadTimeout(""), 201]

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        reply = replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return httpx.Response(reply, json=JOB)

    with client_of(handler, tmp_path) as client:
        assert client.submit({"name": "digits"}).id == "job_1"
        assert keys[0] == keys[1]
        replies[:] = [httpx.ReadTimeout(""), httpx.ReadTimeout("")]
        with pytest.raises(ServiceUnreachable, match=r"did not answer in time .*look before"):
            client.submit({"name": "digits"})
        replies[:] = [httpx.ConnectError("refused")]
        with pytest.raises(ServiceUnreachable, match="nothing answers"):
            client.submit({"name": "digits"})


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.scale("job_1", 2),
        lambda client: client.pause("job_1"),
        lambda client: client.resume("job_1"),
        lambda client: client.cancel("job_1"),
        lambda client: client.checkpoint("job_1"),
    ],
    ids=["scale", "pause", "resume", "cancel", "checkpoint"],
)
def test_nor_is_anything_asked_twice(tmp_path: Path, act: Callable[[Client], Any]) -> None:
    """A second checkpoint, or a cancel of the job that has the name by then."""
    asked: list[tuple[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, request.headers["Idempotency-Key"]))
        if len(asked) == 1:
            raise httpx.ReadTimeout("")
        return httpx.Response(202, json=JOB)

    with client_of(handler, tmp_path) as client:
        assert act(client).id == "job_1"
        assert len(asked) == 2
        assert asked[0] == asked[1]


def test_wait_for_what_is_no_status_asks_nothing(tmp_path: Path) -> None:
    asked: list[httpx.Request] = []
    with (
        client_of(lambda request: asked.append(request) or httpx.Response(200, json=JOB), tmp_path) as client,
        pytest.raises(UserError, match="statuses: 'runing' is no status; one of queued, starting, running, "),
    ):
        client.wait("job_1", statuses=("runing",))
    assert not asked


def test_a_job_is_shown_without_its_spec_and_the_reply(tmp_path: Path) -> None:
    reply = {**JOB, "spec": {"secret_plan": "x" * 6000}}
    with client_of(lambda _: httpx.Response(200, json=reply), tmp_path) as client:
        job = client.job("job_1")
    assert "secret_plan" not in repr(job)
    assert job.spec == reply["spec"]


def test_wait_ends_at_its_deadline_with_the_job_as_it_is(tmp_path: Path) -> None:
    with client_of(lambda _: httpx.Response(200, json=JOB), tmp_path) as client:
        assert client.wait("job_1", timeout_s=0.01).status == "running"


def test_delete_says_what_stays_and_which_edition_was_read(tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, str], str | None]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, dict(request.url.params), request.headers.get("If-Match")))
        return httpx.Response(204)

    with client_of(handler, tmp_path) as client:
        client.delete("job_1")
        client.delete("job_1", keep_checkpoints=True, if_match='"a"')
    assert asked == [("DELETE", {}, None), ("DELETE", {"keep_checkpoints": "true"}, '"a"')]


def test_delete_means_one_job_however_often_it_is_sent(tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.path))
        if request.method == "DELETE":
            raise httpx.ReadTimeout("no answer", request=request)
        return httpx.Response(200, json=JOB)

    with client_of(handler, tmp_path) as client, pytest.raises(ServiceUnreachable, match="job_1 may be deleted"):
        client.delete("digits")
    assert asked == [("GET", "/api/v1/jobs/digits"), ("DELETE", "/api/v1/jobs/job_1")]


def test_too_many_requests_are_sent_again_when_the_service_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("rubato.client.transport.time.sleep", waited.append)
    statuses = iter([429, 429, 200])

    def handler(request: httpx.Request) -> httpx.Response:
        status = next(statuses, 429)
        return httpx.Response(
            status, json=JOB if status == 200 else {"detail": "slow down"}, headers={"Retry-After": "3"}
        )

    with client_of(handler, tmp_path) as client:
        assert client.pause("job_1").id == JOB["id"]
        assert waited == [3, 3]
        with pytest.raises(ApiError, match="slow down"):
            client.job("job_1")
    assert len(waited) == 5, "not for ever"


def test_events_are_read_to_their_end(tmp_path: Path) -> None:
    log = [{"position": n, "time": "t", "kind": "worker.ready", "message": f"m{n}"} for n in range(1, 6)]

    def handler(request: httpx.Request) -> httpx.Response:
        after = int(request.url.params["after"])
        return httpx.Response(200, json={"items": [item for item in log if item["position"] > after][:2]})

    with client_of(handler, tmp_path) as client:
        assert [event.position for event in client.events("j")] == [1, 2, 3, 4, 5]
        assert [event.message for event in client.events("j", after=3)] == ["m4", "m5"]


def test_a_package_is_uploaded_only_where_it_is_missing(tmp_path: Path) -> None:
    stored: dict[str, bytes] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        sha256 = request.url.path.rsplit("/", 1)[1]
        if request.method == "HEAD":
            return httpx.Response(200 if sha256 in stored else 404)
        stored[sha256] = request.read()
        assert request.headers["Content-Type"] == "application/zip"
        assert int(request.headers["Content-Length"]) == len(stored[sha256])
        return httpx.Response(201)

    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text("x = 1\n")
    package = pack_folder(tmp_path / "work", tmp_path / "package.zip")
    with client_of(handler, tmp_path) as client:
        assert client.upload(package)
        assert not client.upload(package)
    assert stored == {package.sha256: package.path.read_bytes()}


def test_a_folder_is_packed_and_uploaded_in_one_call(tmp_path: Path) -> None:
    stored: dict[str, bytes] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            stored[request.url.path.rsplit("/", 1)[1]] = request.read()
        return httpx.Response(404 if request.method == "HEAD" else 201)

    work = tmp_path / "work"
    work.mkdir()
    (work / "train.py").write_text("x = 1\n")
    (work / "large.bin").write_bytes(b"0")
    (work / ".rubatoignore").write_text("*.bin\n")
    with client_of(handler, tmp_path) as client:
        sha256 = client.upload_folder(str(work))
        with pytest.raises(PackageError, match="is no folder"):
            client.upload_folder(tmp_path / "none")
    assert stored == {sha256: pack_folder(work, tmp_path / "package.zip").path.read_bytes()}
    with zipfile.ZipFile(tmp_path / "package.zip") as archive:
        assert archive.namelist() == [".rubatoignore", "train.py"]


def test_log_lines_of_a_time_are_read_to_their_end(tmp_path: Path) -> None:
    since = datetime(2026, 1, 31, 12, tzinfo=UTC)
    asked: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        assert query.pop("since") == "2026-01-31T12:00:00+00:00"
        asked.append(query.pop("after", None))
        assert not query
        number = len(asked)
        items = [{"id": f"0:{number}", "time": "t", "stream": "stdout", "line": f"line {number}", "rank": 0}]
        # Nothing of the second page is wanted, and there is more behind it.
        return httpx.Response(
            200, json={"items": [] if number == 2 else items, "next": f"0:{number}", "has_more": number < 3}
        )

    with client_of(handler, tmp_path) as client:
        assert [line.line for line in client.logs("j", since=since)] == ["line 1", "line 3"]
    assert asked == [None, "0:1", "0:2"]


def test_is_ready_is_false_where_nothing_answers(tmp_path: Path) -> None:
    replies = iter([httpx.Response(200, json={}), httpx.Response(503, json={})])

    def handler(request: httpx.Request) -> httpx.Response:
        reply = next(replies, None)
        if reply is None:
            raise httpx.ConnectError("refused")
        return reply

    with client_of(handler, tmp_path) as client:
        assert [client.is_ready(), client.is_ready(), client.is_ready()] == [True, False, False]
