"""The asynchronous client: the same conversations, awaited."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from rubato.client import ApiNotFound, AsyncClient, Client, ServiceUnreachable
from rubato.client.conversation import call, flow
from rubato.home import Home
from rubato.packaging import pack_folder

JOB = {"id": "job_1", "name": "digits", "status": "running", "desired_workers": 2, "workers": 2, "step": 7}
Handler = Callable[[httpx.Request], httpx.Response]


def client_of(handler: Handler, tmp_path: Path) -> AsyncClient:
    environment = {"RUBATO_TOKEN": "rbt_x"}
    return AsyncClient(home=Home(tmp_path), environment=environment, transport=httpx.MockTransport(handler))


def test_both_clients_have_the_same_methods_with_their_words(tmp_path: Path) -> None:
    sync = Client(home=Home(tmp_path))
    twin = AsyncClient(home=Home(tmp_path))
    for blocking, awaited in [(sync, twin), *((getattr(sync, part), getattr(twin, part)) for part in PARTS)]:
        methods = conversations(type(blocking))
        assert methods
        assert methods == conversations(type(awaited))
        for name in methods:
            one, other = getattr(blocking, name), getattr(awaited, name)
            assert inspect.signature(one) == inspect.signature(other)
            assert one.__doc__ == other.__doc__ != None  # noqa: E711
            is_flow = isinstance(find(type(blocking), name), flow)
            assert inspect.iscoroutinefunction(other) is not is_flow
    sync.close()
    asyncio.run(twin.close())


PARTS = ("access", "secrets", "webhooks", "operations")


def conversations(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name, one in vars(base).items() if isinstance(one, call | flow)}


def find(kind: type, name: str) -> object:
    return next(vars(base)[name] for base in kind.__mro__ if name in vars(base))


def test_a_job_is_submitted_listed_and_waited_for(tmp_path: Path) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        if request.method == "POST":
            return httpx.Response(201, json=JOB)
        if request.url.path.endswith("/jobs"):
            return httpx.Response(
                200, json={"items": [JOB], "next_cursor": None if "cursor" in request.url.params else "c"}
            )
        return httpx.Response(200, json={**JOB, "status": "succeeded"})

    async def story() -> None:
        async with client_of(handler, tmp_path) as client:
            job = await client.submit({"name": "digits"}, idempotency_key="k")
            assert (job.id, job.workers) == ("job_1", 2)
            assert [one.name async for one in client.jobs()] == ["digits", "digits"]
            assert (await client.wait(job.id)).status == "succeeded"

    asyncio.run(story())
    assert seen[0].headers["Idempotency-Key"] == "k"
    assert seen[0].headers["Authorization"] == "Bearer rbt_x"
    assert json.loads(seen[0].content) == {"name": "digits"}


def test_too_many_requests_are_asked_again_and_refusals_raised(tmp_path: Path) -> None:
    replies = iter([httpx.Response(429, headers={"Retry-After": "0"}), httpx.Response(200, json=JOB)])

    async def story() -> None:
        async with client_of(lambda _: next(replies), tmp_path) as client:
            assert (await client.job("digits")).step == 7
        async with client_of(lambda _: httpx.Response(404, json={"detail": "none"}), tmp_path) as client:
            with pytest.raises(ApiNotFound, match="none"):
                await client.access.project("x")

        def gone(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused")

        async with client_of(gone, tmp_path) as client:
            with pytest.raises(ServiceUnreachable, match="rubato up"):
                await client.job("digits")
            assert not await client.is_ready()

    asyncio.run(story())


def test_a_stream_that_is_cut_goes_on_behind_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.client.transport.RETRY_INITIAL_S", 0.0)
    asked: list[str | None] = []

    def event(position: int) -> str:
        data = {"position": position, "time": "t", "kind": "k", "message": f"number\u2028{position}"}
        return f"id: {position}\nevent: event\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    class Cut(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield event(1).encode()
            raise httpx.ReadError("cut")

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("Last-Event-ID"))
        if len(asked) == 1:
            return httpx.Response(200, stream=Cut())
        return httpx.Response(200, text=event(2) + "event: end\ndata: {}\n\n")

    gaps: list[ServiceUnreachable] = []

    async def story() -> list[str]:
        async with client_of(handler, tmp_path) as client:
            return [one.message async for one in client.follow_events("job_1", on_gap=gaps.append)]

    assert asyncio.run(story()) == ["number\u20281", "number\u20282"]
    assert asked == ["0", "1"]
    assert len(gaps) == 1


def test_files_go_up_and_come_down_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def train(run): pass\n")
    package = pack_folder(tmp_path / "code", tmp_path / "package.zip")
    sent: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "PUT":
            sent.append(request.content)
        return httpx.Response(404 if request.method == "HEAD" else 200, content=b"weights" * 1000)

    async def story() -> Path:
        transport = httpx.MockTransport(handler)
        async with AsyncClient(home=Home(tmp_path), transport=transport) as client:
            assert await client.upload(package)
            assert await client.upload_folder(tmp_path / "code") == package.sha256
            return await client.download("ckpt_1", "a.safetensors", tmp_path)

    assert asyncio.run(story()).read_bytes() == b"weights" * 1000
    assert sent == [Path(package.path).read_bytes()] * 2
