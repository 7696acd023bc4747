"""A request that ends at one of its awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class Cut:
    """Ends a request at one of its awaits, as a killed process does: what follows is only what unwinds."""

    def __init__(self, request: Coroutine[Any, Any, Any], after: int) -> None:
        self._request = request
        self._after = after

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._request.__await__()
        left, error = self._after, None
        try:
            while True:
                future = steps.send(None) if error is None else steps.throw(error)
                error = None
                if left == 0:
                    error = asyncio.CancelledError()
                else:
                    try:
                        yield future
                    except BaseException as raised:
                        error = raised
                left -= 1
        except StopIteration as done:
            return done.value
