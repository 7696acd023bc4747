"""A person's request for a change: who asks, of which edition, and answered once however often it is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from service.access import Principal
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.models import Job, StoredReply
from service.views import edition

REPLY_LIFETIME = timedelta(hours=24)
ROWS = 1_000
"""Deleted in one transaction: replies may be large, and others wait for the writer's turn."""


@dataclass(frozen=True)
class Asked:
    """Who asks for a change, and on which terms."""

    caller: Principal
    key: str | None = None
    """An Idempotency-Key: the same key and request give the stored reply again."""
    if_match: str | None = None
    """Entity tags, one of which must be the present one, as If-Match has them; None: whatever stands there."""

    @property
    def actor(self) -> str:
        """The caller's name, for events and the audit trail."""
        return self.caller.name


def check_edition(job: Job, if_match: str | None) -> None:
    """Refuse to change a job as the caller has not seen it.

    Raises:
        ServiceError: precondition_failed, with the present tag.
    """
    check_tag(job.name, edition(job), if_match)


def check_tag(name: str, present: str | None, if_match: str | None) -> None:
    """Refuse to change what the caller has not seen: none of the tags is the present one; None: there is nothing.

    Raises:
        ServiceError: precondition_failed, with the present tag.
    """
    if if_match is None:
        return
    if present is None:
        raise ServiceError(
            ErrorKind.PRECONDITION_FAILED, f"{name} is not there (any more), to be changed as you read it."
        )
    if if_match.strip() == "*":
        return
    # Weak tags (W/"...") never match: RFC 9110 compares strongly here.
    if present not in (tag.strip() for tag in if_match.split(",")):
        raise ServiceError(
            ErrorKind.PRECONDITION_FAILED,
            f"{name} was changed by somebody else since you read it (its tag is {present} now); "
            "read it again, and decide again.",
            extra={"etag": present},
        )


async def answer_once(
    context: Context, asked: Asked, request: Any, change: Callable[[AsyncSession], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """The reply of `change`, run in a transaction that also stores it under the key; or the stored one.

    Args:
        context: the service's parts.
        asked: who asks; without a key nothing is stored.
        request: what is asked, as JSON: the same key with another request is refused.
        change: makes the change; its reply must hold no secret.

    Raises:
        ServiceError: idempotency_mismatch, and whatever `change` raises.
    """
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    try:
        return await _answer(context, asked, digest, change)
    except IntegrityError:
        # Another replica took a name or the key between look and insert, and a unique index decided. The second look
        # finds its row, and says which it was.
        return await _answer(context, asked, digest, change)
    except ServiceError:
        if asked.key is None:
            raise
        # What stands in the way may be this very request, sent to another replica a moment before.
        async with context.database.read() as session:
            stored = await _stored_reply(session, asked, digest)
        if stored is None:
            raise
        return stored


async def forget_old_replies(session: AsyncSession, now: datetime) -> bool:
    """Remove some of the replies that nobody asks for any more, the oldest first; gives whether more may be left."""
    is_old = StoredReply.created_at < now - REPLY_LIFETIME
    end = await session.scalar(
        select(StoredReply.created_at).where(is_old).order_by(StoredReply.created_at).limit(1).offset(ROWS - 1)
    )
    gone = delete(StoredReply).where(is_old if end is None else StoredReply.created_at <= end)
    await session.execute(gone.execution_options(synchronize_session=False))
    return end is not None


async def _answer(
    context: Context, asked: Asked, digest: str, change: Callable[[AsyncSession], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    async with context.database.write() as session:
        stored = await _stored_reply(session, asked, digest)
        if stored is not None:
            return stored
        reply = await change(session)
        if asked.key is not None:
            session.add(
                StoredReply(
                    actor=asked.actor, key=asked.key, body_sha256=digest, reply=reply, created_at=context.clock()
                )
            )
        return reply


async def _stored_reply(session: AsyncSession, asked: Asked, digest: str) -> dict[str, Any] | None:
    if asked.key is None:
        return None
    stored = await session.get(StoredReply, (asked.actor, asked.key))
    if stored is None:
        return None
    if stored.body_sha256 != digest:
        raise ServiceError(
            ErrorKind.IDEMPOTENCY_MISMATCH,
            "This Idempotency-Key was used with another request; use a fresh key for a new one.",
        )
    return stored.reply
