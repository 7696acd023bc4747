"""Streams that the client reads: cut, gone on with, refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rubato.client import ApiNotFound, Client, ServiceUnreachable
from rubato.home import Home

JOB = {"id": "job_1", "name": "digits", "status": "running", "desired_workers": 2, "workers": 2, "step": 7}


def client_of(handler: Callable[[httpx.Request], httpx.Response], tmp_path: Path) -> Client:
    return Client(home=Home(tmp_path), environment={}, transport=httpx.MockTransport(handler))


def stream_of(*parts: str) -> httpx.Response:
    return httpx.Response(200, text="".join(parts), headers={"content-type": "text/event-stream"})


def event_message(position: int) -> str:
    data = {"position": position, "time": "t", "kind": "worker.ready", "message": f"m{position}"}
    return f"id: {position}\nevent: event\ndata: {json.dumps(data)}\n\n"


def test_a_stream_goes_on_where_it_was_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.client.transport.RETRY_INITIAL_S", 0.0)
    heard: list[str | None] = []
    gaps: list[ServiceUnreachable] = []
    half = event_message(3)[:-20]
    replies: list[Any] = [
        stream_of(": hello\n\n", event_message(1), event_message(2), half),
        httpx.ConnectError("refused"),
        httpx.Response(503, json={"detail": "starting"}),
        stream_of(event_message(3), f"event: job\ndata: {json.dumps(JOB)}\n\n", "event: end\ndata: {}\n\n"),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers.get("Last-Event-ID"))
        reply = replies[len(heard) - 1]
        if isinstance(reply, Exception):
            raise reply
        assert isinstance(reply, httpx.Response)
        return reply

    with client_of(handler, tmp_path) as client:
        updates = list(client.follow("job_1", on_gap=gaps.append))
    assert [update.event.position for update in updates if update.event] == [1, 2, 3]
    assert [update.job.id for update in updates if update.job] == ["job_1"]
    assert heard == ["0", "2", "2", "2"]
    assert len(gaps) == 2


def test_a_log_goes_on_behind_its_beginning_where_no_line_came_before_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.client.transport.RETRY_INITIAL_S", 0.0)
    heard: list[str | None] = []
    line = {"id": "0:9", "time": "t", "stream": "stdout", "line": "meanwhile", "rank": 0}
    replies = [
        stream_of(": connected\n\n", "id: 0:4\n\n", "id: 0:6\n\n"),
        stream_of(f"id: 0:9\nevent: log\ndata: {json.dumps({'items': [line]})}\n\n", "event: end\ndata: null\n\n"),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        heard.append(request.headers.get("Last-Event-ID"))
        return replies[len(heard) - 1]

    with client_of(handler, tmp_path) as client:
        assert [one.line for one in client.follow_logs("j", tail=0, text="m")] == ["meanwhile"]
    assert heard == [None, "0:6"]


def test_a_log_is_followed_from_its_first_line_where_that_is_asked_for(tmp_path: Path) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {"after": "0:0"}
        return stream_of("event: end\ndata: null\n\n")

    with client_of(handler, tmp_path) as client:
        assert list(client.follow_logs("j", whole=True)) == []


def test_lines_are_looked_for_as_far_back_as_it_takes(tmp_path: Path) -> None:
    """A look gives fewer than asked for where it looked at much; the next one is asked for the rest only."""
    pages = {None: ([7, 8], "2:50"), "2:50": ([], "1:3"), "1:3": ([5], "0:9"), "0:9": ([1], None)}
    asked: list[tuple[str | None, str]] = []
    told: list[float] = []

    def handler(request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        asked.append((query.get("before"), query["tail"]))
        numbers, earlier = pages[query.get("before")]
        items = [{"id": f"0:{n}", "time": "t", "stream": "stdout", "line": str(n), "rank": 0} for n in numbers]
        return httpx.Response(200, json={"items": items, "next": "3:1", "has_more": True, "earlier": earlier})

    with client_of(handler, tmp_path) as client:
        found = client.logs("j", text="x", tail=5, on_search=told.append)
        assert [line.line for line in found] == ["1", "5", "7", "8"]
        assert told == [0.25, 0.5, 0.75]
        asked.clear()
        assert [line.line for line in client.logs("j", text="x", tail=3)] == ["5", "7", "8"], "and no further"
    assert asked == [(None, "3"), ("2:50", "1"), ("1:3", "1")]


def test_rows_go_on_where_they_were_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.client.transport.RETRY_INITIAL_S", 0.0)
    heard: list[tuple[str | None, dict[str, str]]] = []

    def rows(*positions: int) -> str:
        items = [{"step": one, "position": one, "time": "t", "values": {"loss": 1.0 / one}} for one in positions]
        return f"id: {positions[-1]}\nevent: metrics\ndata: {json.dumps({'items': items})}\n\n"

    replies = [
        stream_of(": connected\n\n", rows(3, 4), rows(5)[:-10]),
        stream_of(rows(5, 6), "event: end\ndata: null\n\n"),
    ]

    def handler(request: httpx.Request) -> httpx.Response:
        heard.append((request.headers.get("Last-Event-ID"), dict(request.url.params)))
        return replies[len(heard) - 1]

    with client_of(handler, tmp_path) as client:
        assert [one.step for one in client.follow_metrics("j", after=2, names=("loss",))] == [3, 4, 5, 6]
    assert heard == [("2", {"names": "loss", "after": "2"}), ("4", {"names": "loss", "after": "2"})]


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
def test_a_sign_that_ends_a_line_elsewhere_is_text_in_a_stream(tmp_path: Path, sign: str) -> None:
    line = {"id": "0:1", "time": "t", "stream": "stdout", "line": f"one{sign}two", "rank": 0}
    sent = stream_of(
        f"event: log\ndata: {json.dumps({'items': [line]}, ensure_ascii=False)}\n\n", "event: end\ndata: null\n\n"
    )
    with client_of(lambda _: sent, tmp_path) as client:
        assert [one.line for one in client.follow_logs("j")] == [f"one{sign}two"]


def test_a_stream_that_is_refused_is_not_tried_again(tmp_path: Path) -> None:
    calls = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(404, json={"detail": "no job x"})

    with client_of(handler, tmp_path) as client, pytest.raises(ApiNotFound, match="no job x"):
        list(client.follow("x"))
    assert len(calls) == 1


def test_log_lines_arrive_in_order_and_by_rank(tmp_path: Path) -> None:
    lines = [{"id": f"0:{n}", "time": "t", "stream": "stdout", "line": f"line {n}", "rank": 0} for n in range(3)]

    def handler(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {"rank": "0,2", "tail": "10"}
        if request.headers["Accept"] == "application/json":
            return httpx.Response(200, json={"items": lines, "next": "0:3"})
        return stream_of(f"id: 0:3\nevent: log\ndata: {json.dumps({'items': lines})}\n\nevent: end\ndata: null\n\n")

    with client_of(handler, tmp_path) as client:
        assert [line.line for line in client.logs("j", ranks=(0, 2), tail=10)] == ["line 0", "line 1", "line 2"]
        assert [line.id for line in client.follow_logs("j", ranks=(0, 2), tail=10)] == ["0:0", "0:1", "0:2"]
