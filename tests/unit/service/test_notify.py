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
