"""What the client says to the service, written once and spoken in two ways: blocking, and with `await`.

A conversation is a generator. It yields what it wants done (`Request`, `Sleep`, `Open` and so on), is sent what came of
it, and returns its result; one that lists or follows yields each `Item` besides. It does no input or output itself:
`rubato.client.blocking` and `rubato.client.awaiting` do, and nothing else. A connection that fails is raised inside the
conversation, which decides what that means.

    @call
    def job(self, job: str) -> Call[Job]:
        return decode(Job, (yield from get(path_of("jobs", job))))

So `client.job("digits")` is a Job with a `Client`, and something to await for one with an `AsyncClient`; type checkers
know it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType, TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeAlias, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Request:
    """Send this; the answer is an httpx.Response, read to its end."""

    method: str
    path: str
    params: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    file: Path | None = None
    """Sent as the content, a piece at a time."""
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 30.0


@dataclass(frozen=True)
class Sleep:
    """Wait."""

    seconds: float


@dataclass(frozen=True)
class Open:
    """Send this and read the answer by and by; one of 300 and more is read to its end."""

    request: Request


@dataclass(frozen=True)
class NextLine:
    """The next line of what is open; None: that was all."""


@dataclass(frozen=True)
class NextPiece:
    """The next bytes of what is open; None: that was all."""


@dataclass(frozen=True)
class Close:
    """Close what is open."""


@dataclass(frozen=True)
class Work:
    """Do this here, beside whatever else goes on; its result is the answer."""

    do: Callable[[], Any]


@dataclass(frozen=True)
class Item(Generic[T]):
    """Something for who listens."""

    value: T


Wish: TypeAlias = Request | Sleep | Open | NextLine | NextPiece | Close | Work
Call: TypeAlias = Generator[Wish, Any, T]
Flow: TypeAlias = Generator[Wish | Item[T], Any, None]


class Blocking(Protocol):
    """Does what conversations wish, and returns when it is done."""

    def run(self, steps: Call[T]) -> T:
        """The result of a conversation."""

    def iterate(self, steps: Flow[T]) -> Iterator[T]:
        """Its items."""


class Awaiting(Protocol):
    """The same for coroutines."""

    async def run(self, steps: Call[T]) -> T:
        """The result of a conversation."""

    def iterate(self, steps: Flow[T]) -> AsyncIterator[T]:
        """Its items."""


class Sync:
    """Its calls block."""

    _hands: Blocking


class Async:
    """Its calls are awaited."""

    _hands: Awaiting


class call(Generic[P, T]):  # noqa: N801  a decorator
    """Makes a method of a conversation: it returns the result, or something to await for it."""

    def __init__(self, talk: Callable[Concatenate[Any, P], Call[T]]) -> None:
        def method(me: Any, *args: P.args, **options: P.kwargs) -> Any:
            return me._hands.run(talk(me, *args, **options))

        async def coroutine(me: Any, *args: P.args, **options: P.kwargs) -> Any:
            return await me._hands.run(talk(me, *args, **options))

        self._method, self._coroutine = _like(talk, method), _like(talk, coroutine)

    @overload
    def __get__(self, who: Sync, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, who: Async, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, who: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, who: Any, owner: type) -> Any:
        function = self._coroutine if issubclass(owner, Async) else self._method
        return function if who is None else MethodType(function, who)


class flow(Generic[P, T]):  # noqa: N801  a decorator
    """Makes a method of a conversation that has items: it returns an iterator, or an asynchronous one."""

    def __init__(self, talk: Callable[Concatenate[Any, P], Flow[T]]) -> None:
        def method(me: Any, *args: P.args, **options: P.kwargs) -> Any:
            return me._hands.iterate(talk(me, *args, **options))

        self._method = _like(talk, method)

    @overload
    def __get__(self, who: Sync, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, who: Async, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, who: None, owner: type) -> Callable[..., Any]: ...
    def __get__(self, who: Any, owner: type) -> Any:
        return self._method if who is None else MethodType(self._method, who)


def _like(talk: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """With name, documentation and signature of the conversation, whose return type is left out: it is not this one."""
    functools.update_wrapper(function, talk)
    signature = inspect.signature(talk)
    function.__signature__ = signature.replace(return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]
    return function


class Talk(Generic[T]):
    """A conversation on its way: what it wishes now, and when that is None its result."""

    def __init__(self, steps: Generator[Any, Any, T]) -> None:
        self._steps = steps
        self.wish: Any = None
        self.result: Any = None

    def __enter__(self) -> Self:
        self.answer()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._steps.close()

    def answer(self, reply: Any = None, error: BaseException | None = None) -> None:
        """Tell what came of its wish: a reply, or an error that is raised where it wished."""
        try:
            self.wish = self._steps.send(reply) if error is None else self._steps.throw(error)
        except StopIteration as ended:
            self.wish, self.result = None, ended.value


def each(steps: Flow[T], to: Callable[[T], Iterable[U]]) -> Flow[U]:
    """A conversation with other items, none or several, in place of each of its own."""
    with Talk(steps) as talk:
        while talk.wish is not None:
            if isinstance(talk.wish, Item):
                for value in to(talk.wish.value):
                    yield Item(value)
                talk.answer()
                continue
            try:
                reply = yield talk.wish
            except Exception as error:
                talk.answer(error=error)
            else:
                talk.answer(reply)
