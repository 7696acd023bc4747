"""Who asks for a change, and on which terms: headers that many routes take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header, Query

from api.auth import Caller
from service.requests import Asked

Wait = Annotated[float, Query(ge=0, le=60, description="Seconds to wait for it to be done.")]
IdempotencyKey = Annotated[
    str | None, Header(min_length=1, max_length=200, description="The same key and request give the same reply again.")
]
IfMatch = Annotated[
    str | None, Header(max_length=1000, description="The ETag that was read: 412 where somebody changed it since.")
]


async def _asked(caller: Caller, idempotency_key: IdempotencyKey = None, if_match: IfMatch = None) -> Asked:
    return Asked(caller, idempotency_key, if_match)


async def _asked_to_make(caller: Caller, idempotency_key: IdempotencyKey = None) -> Asked:
    return Asked(caller, idempotency_key)


async def _asked_of_edition(caller: Caller, if_match: IfMatch = None) -> Asked:
    return Asked(caller, if_match=if_match)


Asker = Annotated[Asked, Depends(_asked)]
Maker = Annotated[Asked, Depends(_asked_to_make)]
"""Of something new: there is no edition of it yet."""
Editor = Annotated[Asked, Depends(_asked_of_edition)]
"""Of a change that is the same however often it is sent."""
