"""A service that tells a scripted story over the real contract: for looking at the page without a cluster.

    python tests/e2e/fake_service.py --port 8700 --scenario busy     (busy, empty; --no-auth)

Routes below /fake steer it: cut the streams, kill a worker, move on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

sys.path.insert(0, str(Path(__file__).parent))
from scripted import ScriptedJob, World  # noqa: E402

TOKEN = "rbt_fake"
DIST = Path(__file__).resolve().parents[2] / "web" / "dist"
CSP = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"


class Steering:
    """What a test may do to the service."""

    def __init__(self, scenario: str, has_auth: bool) -> None:
        self.world = World(scenario)
        self.has_auth = has_auth
        self.cut_until = 0.0
        self.is_frozen = False

    @property
    def is_cut(self) -> bool:
        return time.monotonic() < self.cut_until


def problem(status: int, code: str, detail: str) -> JSONResponse:
    body = {"type": f"about:{code}", "title": code, "status": status, "detail": detail, "code": code, "errors": []}
    return JSONResponse(body, status, media_type="application/problem+json")


def sse(messages: list[tuple[str | None, str, Any]]) -> str:
    parts = []
    for key, event, data in messages:
        head = f"id: {key}\n" if key else ""
        parts.append(f"{head}event: {event}\ndata: {json.dumps(data)}\n\n")
    return "".join(parts)


def make_app(scenario: str = "busy", has_auth: bool = True) -> FastAPI:
    steering = Steering(scenario, has_auth)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def drive() -> None:
            while True:
                if not steering.is_frozen:
                    steering.world.tick(datetime.now(UTC))
                await asyncio.sleep(0.1)

        task = asyncio.create_task(drive())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)
    app.state.steering = steering
    add_gate(app, steering)
    add_jobs(app, steering)
    add_streams(app, steering)
    add_steering(app, steering)
    add_page(app)
    return app


def add_gate(app: FastAPI, steering: Steering) -> None:
    @app.middleware("http")
    async def gate(request: Request, call_next: Callable[..., Any]) -> Response:
        path = request.url.path
        if path.startswith("/api/") and steering.is_cut:
            return problem(503, "not_ready", "The service is being restarted.")
        is_open = not path.startswith("/api/") or path == "/api/v1/session" or not steering.has_auth
        if not is_open and request.cookies.get("rubato_session") != "yes":
            return problem(401, "unauthenticated", "Sign in with a token.")
        response: Response = await call_next(request)
        response.headers["Content-Security-Policy"] = CSP
        return response

    @app.post("/api/v1/session")
    async def sign_in(request: Request) -> Response:
        if (await request.json()).get("token") != TOKEN:
            return problem(401, "unauthenticated", "This token is not known. See ~/.rubato/token.")
        response = Response(status_code=204)
        response.set_cookie("rubato_session", "yes", httponly=True, samesite="strict")
        return response

    @app.delete("/api/v1/session")
    async def sign_out() -> Response:
        response = Response(status_code=204)
        response.delete_cookie("rubato_session")
        return response

    @app.get("/api/v1/me")
    async def me() -> dict[str, str]:
        return {"user": "admin", "role": "admin"}


def add_jobs(app: FastAPI, steering: Steering) -> None:
    def find(key: str) -> ScriptedJob:
        job = steering.world.find(key)
        if job is None:
            raise KeyError(key)
        return job

    @app.exception_handler(KeyError)
    async def not_found(_: Request, error: KeyError) -> Response:
        return problem(404, "not_found", f"There is no job {error.args[0]}. See: rubato ps -a")

    @app.get("/api/v1/jobs/{key}")
    async def read(key: str) -> Any:
        return find(key).view

    @app.get("/api/v1/jobs/{key}/workers")
    async def workers(key: str) -> Any:
        return {"items": find(key).workers()}

    @app.get("/api/v1/jobs/{key}/checkpoints")
    async def checkpoints(key: str) -> Any:
        return {"items": find(key).checkpoints}

    @app.get("/api/v1/checkpoints/{key}/files/{name}")
    async def file(key: str, name: str) -> Any:
        return PlainTextResponse(f"{key}/{name}")

    @app.post("/api/v1/jobs/{key}/{verb}")
    async def change(key: str, verb: str, request: Request) -> Any:
        job = find(key)
        body = await request.json()
        if verb == "scale":
            if not job.view["min_workers"] <= body["workers"] <= job.view["max_workers"]:
                return problem(422, "out_of_bounds", f"workers must lie in 1..8, got {body['workers']}.")
            job.ask(body["workers"])
        elif verb == "checkpoint":
            job.save()
        elif verb == "pause":
            job.set_status("pausing", "Writing a checkpoint, then pausing.")
        elif verb == "resume":
            job.set_status("running", "Training.")
        elif verb == "cancel":
            job.set_status("stopping", "Stopping the workers.", "cancelled_by_user")
        return JSONResponse(job.view, 202)

    @app.get("/api/v1/cluster")
    async def cluster() -> Any:
        used = sum(len(job.members) for job in steering.world.jobs)
        nodes = [{"node_id": name, "hostname": name, "address": "10.0.0.1", "cpu": 4, "cpu_used": used / 2, "gpu": 0,
                  "gpu_used": 0, "jobs": []} for name in ("node-a", "node-b")]  # fmt: skip
        one = {"id": "default", "status": "online", "last_seen": None, "slots_total": 8, "slots_used": used, "nodes": nodes}
        return {"clusters": [one], "queue": []}


def add_streams(app: FastAPI, steering: Steering) -> None:
    async def follow(request: Request, pull: Callable[[], str]) -> AsyncIterator[str]:
        silent = 0.0
        while not steering.is_cut and not await request.is_disconnected():
            text = pull()
            silent = 0.0 if text else silent + 0.2
            if text or silent > 10:
                yield text or ": keep-alive\n\n"
                silent = 0.0
            await asyncio.sleep(0.2)
        if steering.is_cut:
            # Not a good end: the client must see a broken connection.
            raise ConnectionResetError("cut by the test")

    def answer(request: Request, pull: Callable[[], str]) -> StreamingResponse:
        return StreamingResponse(follow(request, pull), media_type="text/event-stream")

    @app.get("/api/v1/events")
    async def all_events(request: Request) -> Any:
        seen: dict[str, int] = {}

        def pull() -> str:
            is_first = not seen
            jobs = steering.world.jobs
            fresh = [job for job in jobs if seen.get(job.view["id"]) != job.version]
            seen.update({job.view["id"]: job.version for job in jobs}, first=1)
            views = [{key: value for key, value in job.view.items() if key != "spec"} for job in fresh]
            return sse([(None, "snapshot", {"items": views})] if is_first else [(None, "job", view) for view in views])

        return answer(request, pull)

    @app.get("/api/v1/jobs/{key}/events")
    async def events(key: str, request: Request) -> Any:
        job = steering.world.find(key)
        assert job is not None
        state = {"after": int(request.headers.get("last-event-id", 0)), "version": -1}

        def pull() -> str:
            fresh = [event for event in job.events if event["position"] > state["after"]]
            messages: list[tuple[str | None, str, Any]] = [(str(one["position"]), "event", one) for one in fresh]
            if job.version != state["version"]:
                messages.append((None, "job", job.view))
            state["version"] = job.version
            state["after"] = job.positions
            return sse(messages)

        return answer(request, pull)

    @app.get("/api/v1/jobs/{key}/metrics")
    async def metrics(key: str, request: Request) -> Any:
        job = steering.world.find(key)
        assert job is not None
        state = {"after": int(request.headers.get("last-event-id", 0))}

        def pull() -> str:
            fresh = [row for row in job.rows if row["position"] > state["after"]]
            state["after"] += len(fresh)
            return sse([(str(state["after"]), "metrics", {"items": fresh})]) if fresh else ""

        return answer(request, pull)

    @app.get("/api/v1/jobs/{key}/logs")
    async def logs(key: str, request: Request, tail: int = 100) -> Any:
        job = steering.world.find(key)
        assert job is not None
        if "text/event-stream" not in request.headers.get("accept", ""):
            items = job.logs[-tail:]
            return {"items": items, "next": items[-1]["id"] if items else None}
        after = request.headers.get("last-event-id", "1:-1")
        state = {"after": int(after.split(":")[1])}

        def pull() -> str:
            fresh = [line for line in job.logs if int(line["id"].split(":")[1]) > state["after"]]
            if not fresh:
                return ""
            state["after"] = int(fresh[-1]["id"].split(":")[1])
            return sse([(fresh[-1]["id"], "log", {"items": fresh})])

        return answer(request, pull)


def add_steering(app: FastAPI, steering: Steering) -> None:
    @app.post("/fake/cut")
    async def cut(seconds: float) -> str:
        steering.cut_until = time.monotonic() + seconds
        return "cut"

    @app.post("/fake/kill")
    async def kill(rank: int = 0) -> str:
        steering.world.live.kill(rank)
        return "killed"

    @app.post("/fake/freeze")
    async def freeze(on: bool = True) -> str:
        steering.is_frozen = on
        return "frozen"

    @app.post("/fake/slots")
    async def slots(count: int) -> str:
        steering.world.live.slots = count
        return "set"

    @app.get("/fake/truth")
    async def truth() -> Any:
        job = steering.world.live
        return {"id": job.view["id"], "positions": job.positions, "step": job.view["step"]}


def add_page(app: FastAPI) -> None:
    @app.get("/{path:path}")
    async def page(path: str) -> Response:
        wanted = (DIST / path).resolve()
        if path and wanted.is_relative_to(DIST) and wanted.is_file():
            return FileResponse(wanted)
        return FileResponse(DIST / "index.html")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--scenario", default="busy", choices=["busy", "empty"])
    parser.add_argument("--no-auth", action="store_true")
    arguments = parser.parse_args()
    uvicorn.run(make_app(arguments.scenario, not arguments.no_auth), port=arguments.port, log_level="warning")
