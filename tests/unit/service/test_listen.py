from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from service.listen import MAX_PAYLOAD_BYTES, Replicas, payloads
from service.notify import Hub, job_topic


def test_one_payload_holds_the_sender_and_its_topics() -> None:
    assert payloads("me", {"jobs", "job:1"}) == ["me job:1 jobs"]
    assert payloads("me", set()) == []


def test_many_topics_take_several_payloads_and_none_is_lost() -> None:
    topics = {job_topic(f"job_{index:026d}") for index in range(1000)}
    found = payloads("me", topics)
    assert len(found) > 1
    assert all(len(text.encode()) <= MAX_PAYLOAD_BYTES for text in found)
    assert all(text.split()[0] == "me" for text in found)
    assert {topic for text in found for topic in text.split()[1:]} == topics


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_a_hub_that_is_fed_polls_rarely_and_all_look_when_that_changes() -> None:
    hub = Hub(0.5, fed_interval_s=5)
    assert hub.poll_interval_s == 0.5
    with hub.subscribe("topic") as subscription:
        hub.set_fed(True)
        assert hub.poll_interval_s == 5
        assert await subscription.wait(0), "what came before the listener stood is looked for"
        hub.set_fed(True)
        assert not await subscription.wait(0)
        hub.set_fed(False)
        assert await subscription.wait(0), "whoever sleeps for long must sleep for shorter now"
        assert hub.poll_interval_s == 0.5
    assert hub.polls == 1


class Silent:
    """A connection whose server answers the second statement when it is let, and says nothing else."""

    def __init__(self) -> None:
        self.statements = 0
        self.is_asked = asyncio.Event()
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def execute(self, *_: object) -> None:
        self.statements += 1
        if self.statements == 2:
            self.is_asked.set()
            await self.answer

    async def notifies(self, **_: object) -> AsyncIterator[Any]:
        for notice in ():
            yield notice
        await asyncio.sleep(60.0)


@pytest.mark.parametrize("moments", range(6))
def test_a_close_is_heard_whenever_it_comes(monkeypatch: pytest.MonkeyPatch, moments: int) -> None:
    """Also together with an answer of the server."""

    async def story() -> None:
        silent = Silent()

        async def connect(*_: object, **__: object) -> Silent:
            return silent

        monkeypatch.setattr(psycopg.AsyncConnection, "connect", connect)
        replicas = Replicas("postgresql+psycopg://server/rubato", Hub(1))
        replicas.start()
        await silent.is_asked.wait()
        silent.answer.set_result(None)
        for _ in range(moments):
            await asyncio.sleep(0)
        async with asyncio.timeout(5.0):
            await replicas.close()

    asyncio.run(story())
