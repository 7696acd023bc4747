from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from service.webhooks.lookups import MAX_LEFT, Lookups, resolve_by_system

MANY = 20


def test_a_name_is_found_however_many_lookups_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    hanging = threading.Semaphore(0)

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> Any:
        if host != "well.example":
            hanging.release()
            may_end.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]

    async def look_up() -> list[str]:
        lookups = [asyncio.ensure_future(resolve_by_system(f"dead-{number}.example", 443)) for number in range(MANY)]
        try:
            await asyncio.sleep(0)
            for _ in range(MANY):
                assert await asyncio.to_thread(hanging.acquire, timeout=60)
            lookups[0].cancel()
            async with asyncio.timeout(60):
                return await resolve_by_system("well.example", 443)
        finally:
            may_end.set()
            outcomes = await asyncio.gather(*lookups, return_exceptions=True)
            kinds = [asyncio.CancelledError, *[socket.gaierror] * (MANY - 1)]
            assert [type(outcome) for outcome in outcomes] == kinds

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert asyncio.run(look_up()) == ["192.0.2.1"]


def test_a_project_that_has_left_many_lookups_behind_waits_until_one_has_ended() -> None:
    async def run() -> None:
        ends: list[asyncio.Event] = []

        async def resolve(host: str, port: int) -> list[str]:
            if len(ends) < MAX_LEFT:
                ends.append(asyncio.Event())
                await ends[-1].wait()
            raise OSError("no address")

        lookups = Lookups(resolve)
        for number in range(MAX_LEFT):
            assert lookups.has_room("vision"), number
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(lookups.find("vision", "dead.example", 443), 0.01)
        assert not lookups.has_room("vision")
        assert lookups.has_room("default")
        ends[0].set()
        for _ in range(5):  # turns of the loop: the lookup ends, and then is forgotten
            await asyncio.sleep(0)
        assert lookups.has_room("vision")
        for end in ends:
            end.set()
        with pytest.raises(OSError, match="no address"):
            await lookups.find("vision", "dead.example", 443)

    asyncio.run(run())
