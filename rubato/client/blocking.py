"""Does what conversations wish, blocking: with httpx.Client."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from rubato.client.conversation import Call, Close, Flow, Item, NextLine, NextPiece, Open, Request, Sleep, Talk, Work
from rubato.client.transport import LineSplitter, options_of, timeout_of

T = TypeVar("T")


class BlockingHands:
    """One service. Not safe to share between threads while a stream is read."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def run(self, steps: Call[T]) -> T:
        """The result of a conversation."""
        with _Line(self.http) as line, Talk(steps) as talk:
            while talk.wish is not None:
                talk.answer(*line.do(talk.wish))
            result: T = talk.result
            return result

    def iterate(self, steps: Flow[T]) -> Iterator[T]:
        """The items of a conversation."""
        with _Line(self.http) as line, Talk(steps) as talk:
            while talk.wish is not None:
                if isinstance(talk.wish, Item):
                    yield talk.wish.value
                    talk.answer()
                else:
                    talk.answer(*line.do(talk.wish))


class _Line:
    """What one conversation has open."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._open = contextlib.ExitStack()
        self._parts: Iterator[Any] | None = None
        self._response: httpx.Response | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def do(self, wish: Any) -> tuple[Any, httpx.TransportError | None]:
        """What came of a wish: a reply, or that the connection failed."""
        try:
            match wish:
                case Sleep():
                    time.sleep(wish.seconds)
                    return None, None
                case Request():
                    return self._send(wish), None
                case Open():
                    return self._begin(wish.request), None
                case NextLine() | NextPiece():
                    return self._next(wish), None
                case Close():
                    self._open.close()
                    return None, None
                case Work():
                    return wish.do(), None
        except httpx.TransportError as error:
            return None, error
        raise TypeError(f"no wish: {wish!r}")

    def _send(self, request: Request) -> httpx.Response:
        if request.file is None:
            return self._http.request(**options_of(request))
        with request.file.open("rb") as content:
            return self._http.request(**options_of(request), content=content)

    def _begin(self, request: Request) -> httpx.Response:
        self._open.close()
        options = {**options_of(request), "timeout": timeout_of(request)}
        self._response = self._open.enter_context(self._http.stream(**options))
        self._parts = None
        if self._response.status_code >= 300:
            self._response.read()
        return self._response

    def _next(self, wish: NextLine | NextPiece) -> Any:
        assert self._response is not None, "nothing is open"
        if self._parts is None:
            is_line = isinstance(wish, NextLine)
            self._parts = _lines_of(self._response) if is_line else self._response.iter_bytes()
        return next(self._parts, None)


def _lines_of(response: httpx.Response) -> Iterator[str]:
    splitter = LineSplitter()
    for text in response.iter_text():
        yield from splitter.feed(text)
