from __future__ import annotations

import asyncio

import pytest

from service.notify import Hub

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_what_is_published_between_look_and_wait_is_not_lost() -> None:
    hub = Hub(poll_interval_s=60)
    looks = 0

    async def look() -> int:
        nonlocal looks
        looks += 1
        hub.publish(["topic"])
        return looks

    async with asyncio.timeout(5):
        assert await hub.wait_until(["topic"], look, lambda seen: seen == 3, 60) == 3


async def test_waits_look_again_by_themselves() -> None:
    hub = Hub(poll_interval_s=0.01)
    looks = iter(range(100))

    async def look() -> int:
        return next(looks)

    async with asyncio.timeout(5):
        assert await hub.wait_until(["topic"], look, lambda seen: seen == 5, 60) == 5


async def test_a_wait_gives_the_last_look_when_the_time_is_over() -> None:
    hub = Hub(poll_interval_s=60)

    async def look() -> str:
        return "not yet"

    assert await hub.wait_until(["topic"], look, lambda _: False, 0) == "not yet"


async def test_closing_ends_all_waits_and_leaves_no_subscriber() -> None:
    hub = Hub(poll_interval_s=60)

    looks = 0
    all_wait = asyncio.Event()

    async def look() -> str:
        nonlocal looks
        looks += 1
        if looks == 3:
            all_wait.set()
        return "not yet"

    waits = [asyncio.create_task(hub.wait_until(["topic"], look, lambda _: False, 60)) for _ in range(3)]
    async with asyncio.timeout(5):
        await all_wait.wait()
        hub.close()
        assert await asyncio.gather(*waits) == ["not yet"] * 3
    assert hub.subscribers == {}


async def test_readers_who_wake_together_share_one_read_and_never_an_older_one() -> None:
    hub = Hub(poll_interval_s=60)
    may_end = asyncio.Event()
    begun = asyncio.Semaphore(0)
    reads = 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        number = reads
        begun.release()
        await may_end.wait()
        return number

    early = [asyncio.create_task(hub.read_once("key", read)) for _ in range(3)]
    other = asyncio.create_task(hub.read_once("other key", read))
    async with asyncio.timeout(5):
        await begun.acquire()
        await begun.acquire()
    hub.publish(["topic"])
    late = asyncio.create_task(hub.read_once("key", read))
    early[0].cancel()
    async with asyncio.timeout(5):
        await begun.acquire()
        may_end.set()
        assert await asyncio.gather(early[1], early[2], other, late) == [1, 1, 2, 3]
        assert await hub.read_once("key", read_at_once) == 0


async def read_at_once() -> int:
    return 0
