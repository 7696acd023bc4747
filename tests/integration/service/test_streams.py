"""Live data through a real server: replay, keep-alive, ends, waits."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from rubato.wire.cluster import NodeReport, Outcome, Result
from tests.integration.service.processes import ServiceProcess, controller_of, open_stream, submit
from tests.simulated_controller import SimulatedAgent, SimulatedController, log_line, metric

pytestmark = pytest.mark.anyio

CUT_REPORTS = 100


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, shared_database_url: str) -> Iterator[ServiceProcess]:
    process = ServiceProcess(
        tmp_path_factory.mktemp("streams") / "home",
        RUBATO_KEEP_ALIVE="PT0.3S",
        RUBATO_DATABASE_URL=shared_database_url,
    )
    process.start()
    yield process
    process.end()


@pytest.fixture
async def client(service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with service.client() as client:
        yield client


@pytest.fixture
async def controller(
    service: ServiceProcess, client: httpx.AsyncClient, request: pytest.FixtureRequest
) -> AsyncIterator[SimulatedController]:
    """A running job of the test's own."""
    name = re.sub(r"[^a-zA-Z]+", "-", request.node.name).lower()[:60].strip("-")
    submitted = await client.post("/api/v1/jobs", json={"name": name, "recipe": "image-classifier"})
    job_id = submitted.json()["id"]
    agent = SimulatedAgent(client, (service.home / "cluster-token").read_text().strip())
    while not (found := [item for item in (await agent.sync(wait=5)).run if item.job_id == job_id]):
        pass
    running = SimulatedController(client, job_id, found[0].ticket)
    await running.acquire()
    await running.report()
    yield running
    if (await client.post(f"/api/v1/jobs/{job_id}/cancel")).json()["status"] == "stopping":
        await running.report(outcome=Outcome(state="cancelled"))


@asynccontextmanager
async def cutting(target: int) -> AsyncIterator[int]:
    """A port that hands on to a port of this machine; each connection is reset after so many bytes of the answer."""
    chosen, ends, served = random.Random(7), [], []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        ends.extend((writer, far_writer))
        with suppress(ConnectionError, asyncio.IncompleteReadError):  # the other end went first
            far_writer.write(await reader.readuntil(b"\r\n\r\n"))
            left = chosen.randrange(500, 6000)
            while left > 0 and (piece := await far_reader.read(left)):
                writer.write(piece)
                await writer.drain()
                left -= len(piece)
        writer.transport.abort()
        far_writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for end in ends:
            end.transport.abort()
        await asyncio.gather(*served)


async def _succeed(controller: SimulatedController) -> None:
    await controller.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest="d" * 64)))


async def _take(messages: AsyncIterator[Any], until: str) -> list[Any]:
    taken = []
    async with asyncio.timeout(20):
        async for message in messages:
            if message.event:
                taken.append(message)
            if message.event == until:
                break
    return taken


async def test_events_replay_without_gap_or_double(client: httpx.AsyncClient, controller: SimulatedController) -> None:
    path = f"/api/v1/jobs/{controller.job_id}/events"
    await controller.report(events=tuple(controller.event("worker.ready", f"number {index}") for index in range(5)))
    seen = []
    async with open_stream(client, path) as messages:
        async for message in messages:
            if message.event == "event":
                seen.append(message)
            if len(seen) == 4:
                break
    # Written while nobody watches.
    await controller.report(events=(controller.event("worker.ready", "meanwhile"),))
    await _succeed(controller)
    async with open_stream(client, path, last_event_id=seen[-1].id) as messages:
        rest = await _take(messages, "end")
    told = [int(message.id) for message in (*seen, *rest) if message.event == "event"]
    everything = (await client.get(path)).json()["items"]
    assert told == [item["position"] for item in everything] == list(range(1, len(told) + 1))
    assert [message.data for message in rest if message.event == "event"] == everything[4:]
    jobs = [message for message in rest if message.event == "job"]
    assert jobs[-1].data["status"] == "succeeded"
    assert jobs[-1].id is None
    assert rest[-1].data == {"status": "succeeded"}


@pytest.mark.parametrize("stream", [pytest.param("metrics", marks=pytest.mark.long), "logs", "events"])
async def test_a_stream_that_is_cut_amid_its_messages_misses_nothing_and_doubles_nothing(
    service: ServiceProcess, client: httpx.AsyncClient, controller: SimulatedController, stream: str
) -> None:
    async def write() -> None:
        for number in range(1, CUT_REPORTS + 1):
            await controller.report(
                metrics=(metric(number),),
                logs=(log_line(f"line {number}"),),
                events=(controller.event("worker.ready", f"number {number}"),),
            )
        await _succeed(controller)

    begin = {"tail": CUT_REPORTS} if stream == "logs" else {}
    told: list[Any] = []
    cuts, last_id, ended = 0, None, False
    async with cutting(int(service.url.rpartition(":")[2])) as port, asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(write())
        path = f"http://127.0.0.1:{port}/api/v1/jobs/{controller.job_id}/{stream}"
        while not ended:
            try:
                async with open_stream(client, path, last_event_id=last_id, **begin) as messages:
                    async for message in messages:
                        last_id = message.id or last_id
                        ended = ended or message.event == "end"
                        if message.event == "event":
                            told.append(message.data["message"])
                        elif message.event in ("metrics", "log"):
                            told += [item.get("step") or item["line"] for item in message.data["items"]]
            except httpx.TransportError:
                cuts += 1
    assert cuts >= 5
    wanted = {"metrics": "{}", "logs": "line {}", "events": "number {}"}[stream]
    ours = [str(one) for one in told if stream != "events" or one.startswith("number")]
    assert ours == [wanted.format(number) for number in range(1, CUT_REPORTS + 1)]


async def test_an_event_comes_at_once(client: httpx.AsyncClient, controller: SimulatedController) -> None:
    async with open_stream(client, f"/api/v1/jobs/{controller.job_id}/events") as messages:
        async for message in messages:
            if message.event == "job":
                break
        async with asyncio.timeout(2):
            await controller.report(events=(controller.event("worker.ready", "now"),))
            async for message in messages:
                if message.event == "event":
                    break
        assert message.data["message"] == "now"


async def test_silence_is_kept_alive(client: httpx.AsyncClient, controller: SimulatedController) -> None:
    async with open_stream(client, f"/api/v1/jobs/{controller.job_id}/metrics") as messages:
        comments = []
        async with asyncio.timeout(10):
            async for message in messages:
                comments.append(message.comment)
                if len(comments) == 3:
                    break
    assert comments == ["connected", "keep-alive", "keep-alive"]


async def test_metrics_and_logs_stream_and_end(client: httpx.AsyncClient, controller: SimulatedController) -> None:
    await controller.report(metrics=(metric(1), metric(2)), logs=(log_line("one"), log_line("two")))

    async def later() -> None:
        await controller.report(metrics=(metric(2, 0.1), metric(3)), logs=(log_line("three"),))
        await _succeed(controller)

    async with (
        open_stream(client, f"/api/v1/jobs/{controller.job_id}/metrics", after=1) as metrics,
        open_stream(client, f"/api/v1/jobs/{controller.job_id}/logs", tail=1) as logs,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(later())
        rows = await _take(metrics, "end")
        lines = await _take(logs, "end")
    found = [(row["step"], row["position"]) for message in rows[:-1] for row in message.data["items"]]
    # Step 2 was trained again: where the watcher came early enough, it hears both rows.
    assert [item for item in found if item != (2, 2)] == [(2, 3), (3, 4)]
    assert rows[-2].id == "4"
    assert [item["line"] for message in lines[:-1] for item in message.data["items"]] == ["two", "three"]
    assert lines[-2].id == lines[-2].data["items"][-1]["id"]


async def test_replies_stay_small_however_long_the_lines_are_and_none_is_missing(
    client: httpx.AsyncClient, controller: SimulatedController
) -> None:
    count = 1_000
    for first in range(0, count, 200):
        await controller.report(logs=tuple(log_line(f"{n}:{'x' * 6_000}") for n in range(first, first + 200)))
    await _succeed(controller)
    path = f"/api/v1/jobs/{controller.job_id}/logs"
    whole = [str(number) for number in range(count)]

    def numbers(items: list[dict[str, Any]]) -> list[str]:
        return [item["line"].split(":")[0] for item in items]

    async def page(**parameters: Any) -> dict[str, Any]:
        reply = await client.get(path, params=parameters)
        assert len(reply.content) < 3_000_000
        return dict(reply.json())

    backward = await page(tail=count)
    found = numbers(backward["items"])
    while backward["earlier"] is not None:
        backward = await page(tail=count, before=backward["earlier"])
        found = numbers(backward["items"]) + found
    assert found == whole
    forward = await page(after="0:0", limit=10_000)
    found = numbers(forward["items"])
    while forward["has_more"]:
        forward = await page(after=forward["next"], limit=10_000)
        found += numbers(forward["items"])
    assert found == whole
    async with open_stream(client, path, tail=count - 1) as messages:
        told = await _take(messages, "end")
    assert numbers([item for message in told[:-1] for item in message.data["items"]]) == whole[1:]
    assert max(len(message.data["items"]) for message in told[:-1]) < count / 2


async def test_a_stream_of_logs_tells_where_it_stands_while_no_line_is_wanted(
    client: httpx.AsyncClient, controller: SimulatedController
) -> None:
    path = f"/api/v1/jobs/{controller.job_id}/logs"
    async with open_stream(client, path, q="loss") as messages, asyncio.timeout(20):
        ids: list[str] = []
        async for message in messages:
            if message.id is None:
                continue
            assert (message.event, message.data) == ("", None)
            ids.append(message.id)
            if len(ids) == 1:
                await controller.report(logs=(log_line("hello"),))
            else:
                break
    hello = (await client.get(path)).json()["next"]
    assert ids == ["0:0", hello], "the beginning, then behind what was left out"
    # Written while nobody watches: more than the stream begins with by itself.
    await controller.report(logs=tuple(log_line(f"loss {number}") for number in range(150)))
    await _succeed(controller)
    async with open_stream(client, path, last_event_id=ids[-1], q="loss") as messages:
        rest = await _take(messages, "end")
    told = [item["line"] for message in rest[:-1] for item in message.data["items"]]
    assert told == [f"loss {number}" for number in range(150)]


async def test_a_whole_log_comes_as_one_text_file(
    client: httpx.AsyncClient, controller: SimulatedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.logs.MAX_SCAN_BYTES", 1_000)
    path = f"/api/v1/jobs/{controller.job_id}/logs/file"
    nothing = await client.get(path)
    assert (nothing.status_code, nothing.text) == (200, "")
    numbers = range(2_500)
    lines = [log_line(f"\x1b]0;title\x07\x1b[1mstep\x1b[0m {number}\r", rank=number % 2) for number in numbers]
    for first in range(0, len(lines), 500):
        await controller.report(logs=tuple(lines[first : first + 500]))
    whole = await client.get(path)
    name = (await client.get(f"/api/v1/jobs/{controller.job_id}")).json()["name"]
    assert whole.headers["content-disposition"] == f'attachment; filename="{name}.log"'
    assert whole.headers["content-type"].startswith("text/plain")
    expected = [f"{one.time} [rank {number % 2}] step {number}" for number, one in zip(numbers, lines, strict=True)]
    assert whole.text.splitlines() == expected
    some = (await client.get(path, params={"q": "STEP 24", "rank": "1"})).text.splitlines()
    assert some == [
        line for number, line in zip(numbers, expected, strict=True) if str(number)[:2] == "24" and number % 2
    ]
    assert (await client.get(path, params={"rank": "x"})).status_code == 422
    assert (await client.get(path, params={"since": "2999-01-01T00:00:00Z"})).text == ""


async def test_the_stream_of_all_jobs_begins_with_a_snapshot(
    client: httpx.AsyncClient, controller: SimulatedController
) -> None:
    async with open_stream(client, "/api/v1/events") as messages:
        first = (await _take(messages, "snapshot"))[-1]
        assert controller.job_id in [job["id"] for job in first.data["items"]]
        assert first.data["next_cursor"] is None, "these are all"
        assert "spec" not in first.data["items"][0]
        await controller.report(step=7)
        async with asyncio.timeout(10):
            async for message in messages:
                if message.event == "job" and message.data["id"] == controller.job_id and message.data["step"] == 7:
                    break


async def test_waits_answer_as_soon_as_it_is_done(client: httpx.AsyncClient, controller: SimulatedController) -> None:
    path = f"/api/v1/jobs/{controller.job_id}"
    version = (await controller.desired()).version

    async with asyncio.timeout(15), asyncio.TaskGroup() as group:
        scaling = group.create_task(client.post(f"{path}/scale", params={"wait": 20}, json={"workers": 2}))
        wishes = await controller.desired(after=version, wait=20)
        assert wishes.workers == 2
        await controller.report(step=6, workers=2)
    assert (scaling.result().status_code, scaling.result().json()["workers"]) == (200, 2)

    async with asyncio.timeout(15), asyncio.TaskGroup() as group:
        waiting = group.create_task(client.get(path, params={"wait": 20, "for": "paused"}))
        checkpoint = group.create_task(client.post(f"{path}/checkpoint", params={"wait": 20}))
        assert (await controller.desired(after=wishes.version, wait=20)).checkpoint_request == 1
        committed = controller.event("checkpoint.committed", step=6, checkpoint_id="1-6", bytes=1, files=[])
        await controller.report(events=(committed,))
        await checkpoint
        await client.post(f"{path}/pause")
        await controller.report(outcome=Outcome(state="paused"))
    assert checkpoint.result().status_code == 200
    assert waiting.result().json()["status"] == "paused"
    assert (await client.post(f"{path}/scale", params={"wait": 0.1}, json={"workers": 1})).status_code == 202


async def test_the_agents_long_poll_wakes_for_a_new_job(service: ServiceProcess, client: httpx.AsyncClient) -> None:
    agent = SimulatedAgent(client, (service.home / "cluster-token").read_text().strip(), cluster_id="second")
    await agent.sync()
    async with asyncio.timeout(8), asyncio.TaskGroup() as group:
        poll = group.create_task(agent.sync(wait=10))
        # Slots only the new cluster has.
        agent.nodes = (NodeReport(node_id="gpu-node", address="127.0.0.2", cpu=2, gpu=2),)
        await SimulatedAgent(client, agent.token, "second", agent.agent_id, agent.nodes).sync()
        job = (
            await client.post(
                "/api/v1/jobs",
                json={"name": "on-gpu", "recipe": "image-classifier", "resources_per_worker": {"cpu": 1, "gpu": 1}},
            )
        ).json()
    assert [item.job_id for item in poll.result().run] == [job["id"]]


async def test_who_takes_nothing_is_cut_off_and_goes_on_later(tmp_path: Path) -> None:
    process = ServiceProcess(tmp_path / "home", RUBATO_STALLED_AFTER="PT1S", RUBATO_STREAMS_PER_USER="1")
    process.start()
    try:
        async with process.client() as client, asyncio.timeout(60):
            controller = await controller_of(client, process.agent(client), await submit(client, "digits"))
            for first in range(0, 4_000, 200):  # 16 MB: more than all buffers between the two take
                await controller.report(logs=tuple(log_line(f"{n}:{'x' * 4_000}") for n in range(first, first + 200)))
            path = f"/api/v1/jobs/{controller.job_id}/logs"
            with socket.create_connection((httpx.URL(process.url).host, httpx.URL(process.url).port)) as stalled:
                authorization = client.headers["authorization"]
                stalled.sendall(
                    f"GET {path}?after=0:0 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {authorization}\r\n"
                    "Accept: text/event-stream\r\n\r\n".encode()
                )
                taken_bytes = b""
                while b"connected" not in taken_bytes:
                    taken_bytes += await asyncio.to_thread(stalled.recv, 64)
                headers = {"Accept": "text/event-stream"}
                refused = 0
                while True:
                    async with client.stream("GET", path, headers=headers, params={"after": "0:0"}) as response:
                        if response.status_code == 200:
                            break
                        assert response.status_code == 429
                        refused += 1
                    await asyncio.sleep(0.05)
                assert refused, "it was never read slowly"
            await controller.report(outcome=Outcome(state="cancelled"))
            async with open_stream(client, path, after="0:0") as messages:
                taken = await _take(messages, "end")
            lines = [item["line"] for message in taken if message.event == "log" for item in message.data["items"]]
            assert [line.split(":")[0] for line in lines] == [str(number) for number in range(4_000)]
    finally:
        process.end()


async def test_streams_end_when_the_service_stops(tmp_path: Path, database_url: str) -> None:
    process = ServiceProcess(tmp_path / "home", RUBATO_DATABASE_URL=database_url)
    process.start()
    try:
        async with process.client() as client:
            await client.post("/api/v1/jobs", json={"name": "digits", "recipe": "image-classifier"})
            async with (
                open_stream(client, "/api/v1/jobs/digits/events") as messages,
                open_stream(client, "/api/v1/events") as everything,
            ):
                assert (await anext(messages)).comment == "connected"
                assert (await anext(everything)).comment == "connected"
                waiting = asyncio.create_task(client.get("/api/v1/jobs/digits", params={"wait": 60}))
                # It came later, and is answered: the one that waits has been read.
                assert (await client.get("/healthz")).status_code == 200
                async with asyncio.timeout(15):
                    assert await asyncio.to_thread(process.stop) == 0
                    assert [message async for message in messages][-1].event in ("event", "job")
                    assert (await waiting).status_code == 200
    finally:
        process.end()
