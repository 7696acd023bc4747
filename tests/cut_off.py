"""A request that ends at one of its awaits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Cut:
    """Ends a request at one of its awaits, as a killed process does: what follows is only what unwinds."""

    def __init__(self, request: Coroutine[Any, Any, Any], after: int | Callable[[], bool]) -> None:
        """Args: after: so many awaits, or at the first one at which this holds."""
        self._request = request
        self._after = after

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._request.__await__()
        after, is_cut, error = self._after, False, None
        awaits = itertools.count()
        try:
            while True:
                future = steps.send(None) if error is None else steps.throw(error)
                error = None
                index = next(awaits)
                if not is_cut and (after() if callable(after) else index == after):
                    is_cut = True
                    error = asyncio.CancelledError()
                else:
                    try:
                        yield future
                    except BaseException as raised:
                        error = raised
        except StopIteration as done:
            return done.value
