"""Who is asking: tokens, tickets, browser sessions. Only HMACs of secrets are kept."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from service.access import Principal as Principal
from service.access import ProjectRole
from service.access import Role as Role
from service.database import insert_for
from service.errors import ErrorKind, ServiceError
from service.ids import new_id
from service.models import Attempt, Membership, Session, Token, User

TOKEN_PREFIX = "rbt_"
TICKET_PREFIX = "rbj_"
ATTEMPT_PREFIX = "rba_"
SESSION_LIFETIME = timedelta(days=30)
LOGIN_CODE_LIFETIME = timedelta(minutes=15)
MAX_RECALLED = 10_000


def load_key(home: Path) -> bytes:
    """The HMAC key of a home, made at the first start."""
    text = read_or_make_secret(home / "hmac-key", lambda: secrets.token_hex(32))
    return bytes.fromhex(text)


def read_or_make_secret(path: Path, make: Callable[[], str]) -> str:
    """The content of a 0600 file; written completely or not at all."""
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    text = make()
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as stream:
        stream.write(text + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    try:
        # link fails where rename would overwrite: of two services that start at once, one file wins for both.
        os.link(part, path)
    except FileExistsError:
        return path.read_text(encoding="ascii").strip()
    finally:
        part.unlink()
    return text


def remove_secret(path: Path, secret: str) -> None:
    """Remove the file, if that is what it still holds."""
    if path.exists() and path.read_text(encoding="ascii").strip() == secret:
        path.unlink()


def new_token() -> str:
    """`rbt_`, 32 random bytes, and a checksum by which scanners and typing errors are told from real ones."""
    body = secrets.token_urlsafe(32)
    return f"{TOKEN_PREFIX}{body}{_checksum(body)}"


def has_token_form(token: str) -> bool:
    """Whether the checksum holds; a look into the database is spared otherwise."""
    body, checksum = token.removeprefix(TOKEN_PREFIX)[:-6], token[-6:]
    if not token.startswith(TOKEN_PREFIX) or len(token) >= 100 or not token.isascii():
        return False
    return hmac.compare_digest(_checksum(body), checksum)


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"[:6]


class Authority:
    """Makes and recognises secrets under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._attempts: dict[str, Principal] = {}
        """Those that the database knew, by their digests: what an attempt's token stands for never changes, and whether
        the attempt still counts is asked where its job is read. The last one used is the last."""

    def digest(self, secret: str) -> str:
        """What is stored instead of the secret."""
        return self._mac("secret", secret)

    def job_ticket(self, job_id: str) -> str:
        """Good only for acquiring attempts of this job, as long as the job is to run."""
        return f"{TICKET_PREFIX}{job_id}.{self._mac('ticket', job_id)}"

    def attempt_token(self, job_id: str, number: int) -> str:
        """Of one attempt. It says whose it is, so that one which the database has forgotten is known to be stale."""
        body = f"{job_id}.{number}.{secrets.token_urlsafe(32)}"
        return f"{ATTEMPT_PREFIX}{body}.{self._mac('attempt', body)}"

    def recall(self, bearer: str) -> Principal | None:
        """An attempt that was recognised before: its reports, many a second, are spared a transaction each."""
        known = self._attempts.pop(digest := self.digest(bearer), None) if bearer.startswith(ATTEMPT_PREFIX) else None
        if known is not None:
            self._attempts[digest] = known
        return known

    async def recognise(self, session: AsyncSession, bearer: str, now: datetime) -> Principal:
        """The owner of a bearer token.

        Raises:
            ServiceError: unauthenticated; fenced, for an attempt that the database, restored meanwhile, does not know.
        """
        if bearer.startswith(TICKET_PREFIX):
            job_id, _, mac = bearer.removeprefix(TICKET_PREFIX).partition(".")
            if mac.isascii() and hmac.compare_digest(mac, self._mac("ticket", job_id)):
                return Principal(Role.TICKET, f"ticket of {job_id}", job_id=job_id)
        elif bearer.startswith(ATTEMPT_PREFIX):
            body, _, mac = bearer.removeprefix(ATTEMPT_PREFIX).rpartition(".")
            if mac.isascii() and hmac.compare_digest(mac, self._mac("attempt", body)):
                if (attempt := await self._find_attempt(session, bearer)) is not None:
                    return attempt
                raise _forgotten(body)
        elif has_token_form(bearer):
            stored = self.digest(bearer)
            token = (await session.scalars(select(Token).where(Token.token_hmac == stored))).one_or_none()
            if token is not None and (owner := await _owner(session, token, now)) is not None:
                return owner
            # Granted by a release whose attempts had tokens of this form.
            if (attempt := await self._find_attempt(session, bearer)) is not None:
                return attempt
        raise ServiceError(
            ErrorKind.UNAUTHENTICATED,
            "The token is unknown, expired or revoked. The admin token lies in the file 'token' of the service's home "
            "(RUBATO_HOME, default ~/.rubato).",
        )

    async def recognise_session(self, session: AsyncSession, cookie: str, now: datetime) -> Principal:
        """The owner of a browser session.

        Raises:
            ServiceError: unauthenticated.
        """
        token = await self._find_session(session, cookie, "browser", now)
        owner = None if token is None else await _owner(session, token, now)
        if owner is None:
            raise ServiceError(ErrorKind.UNAUTHENTICATED, "The session has ended; sign in again.")
        return replace(owner, is_cookie=True)

    async def look_again(self, session: AsyncSession, principal: Principal, now: datetime) -> Principal | None:
        """The same caller with the rights of this moment; None: the token is no good any more."""
        if principal.token_id is None:
            return principal
        token = await session.get(Token, principal.token_id)
        owner = None if token is None else await _owner(session, token, now)
        return None if owner is None else replace(owner, is_cookie=principal.is_cookie)

    async def open_session(self, session: AsyncSession, token_id: str, now: datetime) -> str:
        """A new browser session; gives the cookie's value."""
        return await self._store_session(session, token_id, "browser", now, SESSION_LIFETIME)

    async def make_login_code(self, session: AsyncSession, token_id: str, now: datetime) -> str:
        """A code that `redeem_login_code` takes once."""
        return await self._store_session(session, token_id, "login", now, LOGIN_CODE_LIFETIME)

    async def check_login_code(self, session: AsyncSession, code: str, now: datetime) -> None:
        """Look whether a code would be taken: anybody may send one, and one that is no good costs no write.

        Raises:
            ServiceError: unauthenticated.
        """
        if await self._find_session(session, code, "login", now) is None:
            raise _spent_link()

    async def redeem_login_code(self, session: AsyncSession, code: str, now: datetime) -> str:
        """Turn a one-time code into a browser session; gives the cookie's value.

        Raises:
            ServiceError: unauthenticated.
        """
        stored = self.digest(code)
        statement = delete(Session).where(Session.secret_hmac == stored, Session.kind == "login")
        taken = (await session.execute(statement.returning(Session.token_id, Session.expires_at))).first()
        if taken is None or taken.expires_at < now:
            raise _spent_link()
        return await self.open_session(session, taken.token_id, now)

    async def close_session(self, session: AsyncSession, cookie: str) -> None:
        """Sign a browser out."""
        await session.execute(delete(Session).where(Session.secret_hmac == self.digest(cookie)))

    async def ensure_token(self, session: AsyncSession, path: Path, role: Role, now: datetime) -> str:
        """The token in a home's file, known to the database; made where there is none. The file is the truth.

        Whoever removes the file and restarts gets a new token, and the old one is revoked. One that was revoked through
        the API is made anew: a home without its own token could not be reached any more.
        """
        secret = await self._read_good_secret(session, path)
        stored = self.digest(secret)
        known = select(Token.id).where(Token.token_hmac == stored)
        token_id = await session.scalar(known)
        if token_id is not None:
            return token_id
        if not has_token_form(secret):
            raise ServiceError(
                ErrorKind.INTERNAL,
                f"{path} does not hold a token; remove the file, and the next start makes a new one.",
            )
        own = (Token.name == str(role)) & (Token.role == str(role)) & Token.user_id.is_(None)
        old = update(Token).where(own, Token.revoked_at.is_(None)).values(revoked_at=now)
        await session.execute(old.where(Token.token_hmac != stored))
        row = {"id": new_id("tok", now), "name": str(role), "role": str(role), "token_hmac": stored, "created_at": now}
        # Two replicas that start at once read the same file.
        insert = insert_for(session, Token).values(row).on_conflict_do_nothing(index_elements=["token_hmac"])
        await session.execute(insert)
        return (await session.execute(known)).scalar_one()

    async def _find_attempt(self, session: AsyncSession, bearer: str) -> Principal | None:
        digest = self.digest(bearer)
        query = select(Attempt.job_id, Attempt.number).where(Attempt.token_hmac == digest)
        found = (await session.execute(query)).one_or_none()
        if found is None:
            return None
        name = f"attempt {found.number} of {found.job_id}"
        self._attempts[digest] = Principal(Role.ATTEMPT, name, job_id=found.job_id, attempt=found.number)
        if len(self._attempts) > MAX_RECALLED:
            del self._attempts[next(iter(self._attempts))]
        return self._attempts[digest]

    async def _read_good_secret(self, session: AsyncSession, path: Path) -> str:
        """What the file holds, once that is no revoked token."""
        while True:
            secret = read_or_make_secret(path, new_token)
            found = select(Token.revoked_at).where(Token.token_hmac == self.digest(secret))
            # Locked: of replicas that start at once, one makes the new file, and the others then read it.
            if (await session.execute(found.with_for_update())).scalar_one_or_none() is None:
                return secret
            remove_secret(path, secret)

    async def _store_session(
        self, session: AsyncSession, token_id: str, kind: str, now: datetime, lifetime: timedelta
    ) -> str:
        secret = secrets.token_urlsafe(32)
        session.add(
            Session(
                secret_hmac=self.digest(secret), kind=kind, token_id=token_id, created_at=now, expires_at=now + lifetime
            )
        )
        await session.flush()
        return secret

    async def _find_session(self, session: AsyncSession, secret: str, kind: str, now: datetime) -> Token | None:
        statement = (
            select(Token)
            .join(Session, Session.token_id == Token.id)
            .where(Session.secret_hmac == self.digest(secret), Session.kind == kind, Session.expires_at > now)
        )
        return (await session.scalars(statement)).one_or_none()

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def _spent_link() -> ServiceError:
    return ServiceError(
        ErrorKind.UNAUTHENTICATED,
        "This login link was used before or has expired. Sign in with the admin token, "
        "or make a new link with `rubato login`.",
    )


def _forgotten(body: str) -> ServiceError:
    job_id, number, _ = body.split(".", 2)
    return ServiceError(
        ErrorKind.FENCED,
        f"Attempt {number} of {job_id} no longer counts: the database does not know it (it was restored from an older "
        "backup, or the job was deleted). Exit without touching storage.",
    )


async def _owner(session: AsyncSession, token: Token, now: datetime) -> Principal | None:
    """Whose a token is, with the rights of this moment; None: it is not good any more."""
    if token.revoked_at is not None or (token.expires_at is not None and token.expires_at <= now):
        return None
    if token.user_id is None:
        return Principal(Role(token.role), token.name, token_id=token.id, cluster_id=token.cluster_id)
    user = await session.get(User, token.user_id)
    if user is None or user.disabled_at is not None:
        return None
    if user.is_admin:
        return Principal(Role.ADMIN, user.name, token_id=token.id, user_id=user.id)
    rows = await session.execute(select(Membership.project, Membership.role).where(Membership.user_id == user.id))
    projects = {project: ProjectRole(role) for project, role in rows}
    return Principal(Role.USER, user.name, token_id=token.id, user_id=user.id, projects=projects)
