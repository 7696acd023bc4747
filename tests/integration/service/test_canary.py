"""A canary from `rubato secret set` to a crash: real service, supervisor and process; the controller is a stand-in.

`tests/integration/jobs/test_secrets.py` does it with Ray and a training program.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from jobs import supervisor as supervisors
from jobs.supervisor import WorkerOrder, WorkerSupervisor
from rubato.launch.output import OutputLine
from rubato.wire import worker as wire
from rubato.wire.cluster import ActionAnswer, Failure, LogLine, Outcome
from tests.canary import CANARY, SAID, check_nowhere
from tests.integration.service.processes import ServiceProcess, controller_of, submit
from tests.simulated_controller import SimulatedController, worker

pytestmark = pytest.mark.anyio

PROGRAM = """
import hashlib, json, os, sys
value = os.environ["CANARY"]
print("digest", hashlib.sha256(value.encode()).hexdigest())
print("plain", value, file=sys.stderr)
print(json.dumps({"json": value}), [value])
for piece in value:
    sys.stdout.write(piece)
    sys.stdout.flush()
print(" in pieces")
print("." * (16 * 1024 - 12) + value + "." * 100)
raise ValueError(f"cannot sign in with {value}")
"""
NEVER_S = 1e6


@dataclass
class Place:
    """A service, and the folders in which it and its database keep things."""

    process: ServiceProcess
    folders: tuple[Path, ...]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    environment, folders = {}, [tmp_path]
    if request.param == "postgres":
        url = environment["RUBATO_DATABASE_URL"] = request.getfixturevalue("new_postgres")()
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            (data,) = connection.execute("SHOW data_directory").fetchone() or ("",)
        folders.append(Path(data))
    process = ServiceProcess(tmp_path / "home", **environment)
    process.start()
    yield Place(process, tuple(folders))
    process.end()


async def run_worker(url: str, controller: SimulatedController) -> list[Any]:
    """All that a real worker of the attempt says, to its end."""
    acquired = controller.acquired
    assert acquired is not None
    start = wire.Start(acquired.attempt, controller.job_id, "w1", "0a", acquired.spec, "", "")
    command = (sys.executable, "-c", PROGRAM)
    order = WorkerOrder(start, url, acquired.token, None, {}, has_secrets=True, command=command, dead_man_s=NEVER_S)
    assert CANARY not in repr(order)
    supervisor = WorkerSupervisor(order)
    events: list[Any] = []
    while not any(isinstance(event, wire.Exited) for event in events):
        reply = await asyncio.to_thread(supervisor.poll, acquired.attempt, len(events), 10.0)
        events += [one.event for one in reply.events]
    return events


async def asked_stack(client: httpx.AsyncClient, controller: SimulatedController, said: str) -> str:
    """What somebody is shown who asks where a worker stands, whose source says so much."""
    await controller.report(worker_reports=(worker(1),))
    asking = asyncio.ensure_future(client.get(f"/api/v1/jobs/{controller.job_id}/workers/w1/stack"))
    while not (actions := (await controller.desired()).actions):
        assert not asking.done(), asking.result().text
        await asyncio.sleep(0)
    answer = ActionAnswer(actions[0].number, "done", said, text=said)
    await controller.report(worker_reports=(worker(1),), answers=(answer,))
    return (await asking).raise_for_status().text


async def test_a_canary_is_found_nowhere(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "_own_place", lambda: ("127.0.0.1", "host", "node"))
    monkeypatch.setattr("jobs.package.scratch_root", lambda: tmp_path)
    async with place.process.client() as client:
        made = await client.put("/api/v1/projects/default/secrets/CANARY", json={"value": CANARY})
        assert made.status_code == 201, made.text
        job_id = await submit(client, "digits", secrets=["CANARY"])
        controller = await controller_of(client, place.process.agent(client), job_id)
        events = await run_worker(place.process.url, controller)
        exited = events[-1]
        assert exited.exit_code == 1, exited
        said = [event for event in events if isinstance(event, OutputLine)]
        assert any(CANARY in event.line for event in said), "it was given it, and told"
        await controller.report(logs=tuple(LogLine("w1", 0, one.time, one.stream, one.line) for one in said))
        stack = await asked_stack(client, controller, exited.last_output[-1])
        failure = Failure("user", "user_code_error", exited.last_output[-1], last_output=exited.last_output)
        lost = controller.event("worker.lost", f"It ended: {exited.last_output[-1]}", cause=list(exited.last_output))
        await controller.report(events=(lost,), outcome=Outcome("failed", failure=failure))

        paths = ("", "/events", "/logs?tail=100", "/attempts", "/workers", "/explain")
        replies = [made] + [await client.get(f"/api/v1/jobs/digits{path}") for path in paths]
        replies += [await client.get(f"/api/v1/{path}") for path in ("audit", "projects/default/secrets", "jobs")]
        shown = stack + "".join(json.dumps(reply.raise_for_status().json(), ensure_ascii=False) for reply in replies)
        lines = [item["line"] for item in replies[3].json()["items"]]
    assert SAID in lines
    assert "[secret CANARY]" in stack
    assert {"plain [secret CANARY]", "[secret CANARY] in pieces"} <= set(lines)
    assert any(line.startswith(".....") and "[secret CANARY] ... (" in line for line in lines), "one was cut within it"
    assert "ValueError: cannot sign in with [secret CANARY]" in shown
    assert place.process.stop() == 0
    check_nowhere(shown, *place.folders)
