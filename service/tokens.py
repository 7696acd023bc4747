"""Tokens: made once, shown once, revoked at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.access import Principal, Role
from service.auth import new_token
from service.clock import optional_rfc3339, to_rfc3339
from service.clusters import check_cluster_id
from service.context import Context
from service.errors import ErrorKind, ServiceError, not_found
from service.ids import is_id, new_id
from service.models import Token, User
from service.notify import ACCESS, notify
from service.pages import bad_cursor, cut
from service.people import audit, find_token, storable


async def create(
    context: Context,
    name: str,
    caller: Principal,
    *,
    user: str | None,
    role: Role,
    lifetime_s: float | None,
    cluster_id: str | None = None,
) -> dict[str, Any]:
    """A new token; the reply is the only place where its secret ever stands.

    Args:
        context: the service's parts.
        name: what it is for, for people.
        caller: everybody makes tokens for themselves, an admin for any user and for machines.
        user: whose it is; None: the caller's.
        role: `user`, or `cluster` or `scraper` for a machine.
        lifetime_s: seconds until it expires; None: never.
        cluster_id: of the role `cluster`: the only cluster that it speaks for; None: any.

    A token that expires makes none that outlives it.

    Raises:
        ServiceError: forbidden, not_found (the user), invalid_request.
    """
    if cluster_id is not None:
        if role is not Role.CLUSTER:
            raise ServiceError(ErrorKind.INVALID_REQUEST, "Only a token of the role cluster speaks for a cluster.")
        check_cluster_id(cluster_id)
    now = context.clock()
    secret = new_token()
    async with context.database.write() as session:
        owner = None
        if role is Role.USER:
            owner = await _owner_for(session, user, caller)
        elif not caller.is_admin or user is not None:
            raise ServiceError(ErrorKind.FORBIDDEN, f"Tokens of the role {role} are made by an admin, for no user.")
        expires_at = None if lifetime_s is None else now + timedelta(seconds=lifetime_s)
        token = Token(
            id=new_id("tok", now),
            name=name,
            role=str(role),
            user_id=None if owner is None else owner.id,
            cluster_id=cluster_id,
            token_hmac=context.authority.digest(secret),
            created_at=now,
            expires_at=await _bounded(session, caller, expires_at),
        )
        session.add(token)
        owner_name = None if owner is None else owner.name
        detail = {"token": token.id, "name": name, "role": str(role), "user": owner_name, "cluster": cluster_id}
        audit(session, context, caller, "token.created", detail)
        await session.flush()
        return {**_token_json(token, owner_name), "token": secret}


async def list_tokens(
    context: Context, caller: Principal, *, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the caller's tokens, newest first; an admin sees all. Never their secrets."""
    statement = select(Token, User.name).outerjoin(User, User.id == Token.user_id).order_by(Token.id.desc())
    if not caller.is_admin:
        statement = statement.where(Token.user_id == caller.user_id)
    if cursor is not None:
        if not is_id(cursor, "tok"):
            raise bad_cursor()
        statement = statement.where(Token.id < cursor)
    async with context.database.read() as session:
        rows = (await session.execute(statement.limit(limit + 1))).all()
    page, next_cursor = cut(rows, limit, lambda row: row[0].id)
    return [_token_json(token, owner) for token, owner in page], next_cursor


async def revoke(context: Context, token_id: str, caller: Principal) -> None:
    """Make a token worthless; its sessions and streams end at once. A second time changes nothing.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.write() as session:
        token = await find_token(session, token_id, caller)
        if token.revoked_at is None:
            token.revoked_at = context.clock()
            audit(session, context, caller, "token.revoked", {"token": token.id, "name": token.name})
            notify(session, ACCESS)


async def _bounded(session: AsyncSession, caller: Principal, expires_at: datetime | None) -> datetime | None:
    """When a new token expires: as wished, or where nothing was said with the one that makes it."""
    own = None if caller.token_id is None else await session.get(Token, caller.token_id)
    limit = None if own is None else own.expires_at
    if limit is None or expires_at is None:
        return limit if expires_at is None else expires_at
    if expires_at > limit:
        raise ServiceError(
            ErrorKind.FORBIDDEN,
            f"Your own token expires at {to_rfc3339(limit)}, and makes none that lives longer: ask for less "
            "(expires_in), or make it with a token that lives longer.",
        )
    return expires_at


async def _owner_for(session: AsyncSession, user: str | None, caller: Principal) -> User:
    if user is None and caller.user_id is None:
        raise ServiceError(
            ErrorKind.INVALID_REQUEST, "Say whose token it shall be (user): the home's own token belongs to no user."
        )
    own = None if caller.user_id is None else await session.get(User, caller.user_id)
    if own is not None and user in (None, own.name):
        return own
    if not caller.is_admin:
        raise ServiceError(ErrorKind.FORBIDDEN, "Only an admin makes tokens for others.")
    found = (await session.scalars(select(User).where(User.name == storable(user or "")))).one_or_none()
    if found is None:
        raise not_found("user", str(user)[:80])
    return found


def _token_json(token: Token, owner: str | None) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "user": owner,
        "cluster": token.cluster_id,
        "created_at": to_rfc3339(token.created_at),
        "expires_at": optional_rfc3339(token.expires_at),
        "revoked_at": optional_rfc3339(token.revoked_at),
    }
