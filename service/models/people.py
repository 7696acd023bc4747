"""The tables of projects and people: who may do what, with which tokens and secrets, and what was done."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base


class Project(Base):
    """What jobs belong to, and people have roles in."""

    __tablename__ = "projects"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    description: Mapped[str] = mapped_column(default="")
    created_at: Mapped[datetime]
    max_slots: Mapped[int | None]
    """Slots that its jobs may hold at the same time; null: as many as there are. So also what follows."""
    max_queued: Mapped[int | None]
    """Jobs that may wait when another one is submitted."""
    max_priority: Mapped[int | None]
    """Of a job's `scheduling.priority`."""


class User(Base):
    """A person, or a program that acts as one."""

    __tablename__ = "users"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    is_admin: Mapped[bool] = mapped_column(default=False)
    """Of the whole service."""
    created_at: Mapped[datetime]
    disabled_at: Mapped[datetime | None]


class Membership(Base):
    """A user's role in a project."""

    __tablename__ = "memberships"

    user_id: Mapped[str] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"), primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.name", ondelete="CASCADE"), primary_key=True)
    role: Mapped[str] = mapped_column(String(16))


class Token(Base):
    """A bearer token of a user, an agent or a scraper; only its HMAC is kept."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(16))
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    """Whose it is; null: the home's own, or a machine's."""
    cluster_id: Mapped[str | None] = mapped_column(String(63))
    """Of the role `cluster`: the only cluster it speaks for, known or not; null: for any."""
    token_hmac: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Session(Base):
    """A signed-in browser, or (kind `login`) a one-time code that becomes one."""

    __tablename__ = "sessions"

    secret_hmac: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8))
    token_id: Mapped[str] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"))
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]


class Secret(Base):
    """What jobs of a project may be given by name; its value can be read with a key outside the database only."""

    __tablename__ = "secrets"

    project: Mapped[str] = mapped_column(ForeignKey("projects.name", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(16))
    """Of the key that it is sealed under."""
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    updated_by: Mapped[str] = mapped_column(String(63))


class AttemptSecret(Base):
    """A secret as an attempt was given it: its workers hold this value, whatever the secret was set to since.

    Kept while the job lives, for workers outlive their attempt, and what they say is searched for it.
    """

    __tablename__ = "attempt_secrets"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(128), primary_key=True)
    key_id: Mapped[str] = mapped_column(String(16))
    sealed: Mapped[bytes] = mapped_column(LargeBinary)


class StoredReply(Base):
    """The reply to a request with an Idempotency-Key, given again when the request is."""

    __tablename__ = "stored_replies"

    actor: Mapped[str] = mapped_column(String(63), primary_key=True)
    key: Mapped[str] = mapped_column(String(200), primary_key=True)
    body_sha256: Mapped[str] = mapped_column(String(64))
    reply: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]

    __table_args__ = (Index("ix_stored_replies_created_at", "created_at"),)


class AuditEntry(Base):
    """What a person changed; rows are only added, and go by their age alone, where the settings say so."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    time: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(63))
    action: Mapped[str] = mapped_column(String(64))
    job_id: Mapped[str | None] = mapped_column(String(40))
    detail: Mapped[dict[str, Any]]
