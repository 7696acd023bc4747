from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    body: Any = None
    status: int = 200
    stream: str | None = None
    content: bytes | None = None
    """A file instead of JSON."""


Answer = Callable[[Request], Reply]


@dataclass
class FakeService:
    """Answers as told, over real HTTP, and remembers what it was asked."""

    url: str = ""
    answers: dict[tuple[str, str], Answer] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    def on(self, method: str, path: str, answer: Answer | Any) -> None:
        """Answer a path under /api/v1; a path that ends in `*` answers all that begin so."""
        self.answers[method, path] = (
            answer if callable(answer) else lambda _: answer if isinstance(answer, Reply) else Reply(answer)
        )

    def answer(self, request: Request) -> Reply:
        self.requests.append(request)
        path = request.path.removeprefix("/api/v1")
        for (method, pattern), answer in self.answers.items():
            if method == request.method and (
                pattern == path or (pattern.endswith("*") and path.startswith(pattern[:-1]))
            ):
                return answer(request)
        return Reply({"title": "Not found", "detail": f"nothing at {path}", "code": "not_found"}, status=404)

    def asked(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, f"/api/v1{path}")]


class Handler(BaseHTTPRequestHandler):
    service: FakeService
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def respond(self) -> None:
        split = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        reply = self.service.answer(Request(self.command, split.path, query, dict(self.headers), body))
        is_stream = reply.stream is not None and "event-stream" in self.headers.get("Accept", "")
        content = reply.stream.encode() if is_stream and reply.stream else json.dumps(reply.body).encode()
        content = content if reply.content is None else reply.content
        self.send_response(reply.status)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = respond  # noqa: N815


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Rubato = Callable[..., Outcome]


def job(**changes: Any) -> dict[str, Any]:
    """A job as the service shows it."""
    return {
        "id": "job_1",
        "name": "digits",
        "status": "running",
        "message": "",
        "reason": None,
        "phase": "training",
        "desired_workers": 2,
        "workers": 2,
        "joining": 0,
        "min_workers": 1,
        "max_workers": 4,
        "step": 120,
        "total_steps": 500,
        "metrics": {"loss": 0.25, "samples_per_second": 512.0},
        "created_at": "2026-01-02T03:04:05Z",
        "result": None,
        "failure": None,
        "queue": None,
        **changes,
    }


def event(position: int, kind: str, message: str = "it happened", **changes: Any) -> dict[str, Any]:
    """An event as the service shows it."""
    one = {"position": position, "time": "2026-01-02T03:04:05Z", "kind": kind, "message": message}
    return {**one, "step": None, "data": {}, **changes}


def formed(position: int, before: int, after: int, step: int, **changes: Any) -> dict[str, Any]:
    """A `generation.formed` event."""
    data = {"from_workers": before, "workers": after, "step": step, "cause": "scale_up", "paused_seconds": 0.041}
    return event(position, "generation.formed", "Generation 2 formed.", step=step, data=data, **changes)


def stream(*items: dict[str, Any], end: bool = True) -> str:
    """A job's live stream of events and jobs, as the service sends it."""
    text = ": connected\n\n"
    for item in items:
        if "position" in item:
            text += f"id: {item['position']}\nevent: event\ndata: {json.dumps(item)}\n\n"
        else:
            text += f"event: job\ndata: {json.dumps(item)}\n\n"
    return text + ("event: end\ndata: {}\n\n" if end else "")


def log_with(stored: list[dict[str, Any]], live: str) -> Answer:
    """The events of a job: `stored` as pages, `live` as the stream."""

    def answer(request: Request) -> Reply:
        after = int(request.query.get("after", "0"))
        return Reply({"items": [item for item in stored if item["position"] > after]}, stream=live)

    return answer
