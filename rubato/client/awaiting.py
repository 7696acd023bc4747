"""Does what conversations wish, with `await`: with httpx.AsyncClient, on asyncio or trio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import httpx

from rubato.client.conversation import Call, Close, Flow, Item, NextLine, NextPiece, Open, Request, Sleep, Talk, Work
from rubato.client.transport import LineSplitter, options_of, timeout_of

T = TypeVar("T")
PIECE_BYTES = 1 << 20


class AwaitingHands:
    """One service, for any number of tasks of one event loop."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def run(self, steps: Call[T]) -> T:
        """The result of a conversation."""
        async with _Line(self.http) as line:
            with Talk(steps) as talk:
                while talk.wish is not None:
                    talk.answer(*(await line.do(talk.wish)))
                result: T = talk.result
                return result

    async def iterate(self, steps: Flow[T]) -> AsyncIterator[T]:
        """The items of a conversation."""
        async with _Line(self.http) as line:
            with Talk(steps) as talk:
                while talk.wish is not None:
                    if isinstance(talk.wish, Item):
                        yield talk.wish.value
                        talk.answer()
                    else:
                        talk.answer(*(await line.do(talk.wish)))


class _Line:
    """What one conversation has open."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._open = contextlib.AsyncExitStack()
        self._parts: AsyncIterator[Any] | None = None
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def do(self, wish: Any) -> tuple[Any, httpx.TransportError | None]:
        """What came of a wish: a reply, or that the connection failed."""
        try:
            match wish:
                case Sleep():
                    await anyio.sleep(wish.seconds)
                    return None, None
                case Request():
                    return await self._send(wish), None
                case Open():
                    return await self._begin(wish.request), None
                case NextLine() | NextPiece():
                    return await self._next(wish), None
                case Close():
                    await self._open.aclose()
                    return None, None
                case Work():
                    return await anyio.to_thread.run_sync(wish.do), None
        except httpx.TransportError as error:
            return None, error
        raise TypeError(f"no wish: {wish!r}")

    async def _send(self, request: Request) -> httpx.Response:
        if request.file is None:
            return await self._http.request(**options_of(request))
        return await self._http.request(**options_of(request), content=_pieces_of(request.file))

    async def _begin(self, request: Request) -> httpx.Response:
        await self._open.aclose()
        options = {**options_of(request), "timeout": timeout_of(request)}
        self._response = await self._open.enter_async_context(self._http.stream(**options))
        self._parts = None
        if self._response.status_code >= 300:
            await self._response.aread()
        return self._response

    async def _next(self, wish: NextLine | NextPiece) -> Any:
        assert self._response is not None, "nothing is open"
        if self._parts is None:
            is_line = isinstance(wish, NextLine)
            self._parts = _lines_of(self._response) if is_line else self._response.aiter_bytes()
        return await anext(self._parts, None)


async def _lines_of(response: httpx.Response) -> AsyncIterator[str]:
    splitter = LineSplitter()
    async for text in response.aiter_text():
        for line in splitter.feed(text):
            yield line


async def _pieces_of(file: Path) -> AsyncIterator[bytes]:
    async with await anyio.open_file(file, "rb") as content:
        while piece := await content.read(PIECE_BYTES):
            yield piece
