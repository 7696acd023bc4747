"""Shapes of requests and replies about projects, people, tokens and the audit log."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from api.schemas import JsonObject, Request
from service.access import ProjectRole


class Project(BaseModel):
    """What jobs belong to; `role` is the caller's."""

    name: str
    description: str
    created_at: str
    role: ProjectRole | None


class ProjectPage(BaseModel):
    """Projects by name."""

    items: list[Project]
    next_cursor: str | None


class Member(BaseModel):
    """A user with a role in a project."""

    user: str
    role: ProjectRole


class Quota(BaseModel):
    """What a project may use; null: as much as there is."""

    max_slots: int | None
    """That its jobs hold at the same time."""
    max_queued: int | None
    """Jobs that may wait when another one is submitted."""
    max_priority: int | None


class Use(BaseModel):
    """What a project's jobs hold now."""

    slots: int
    queued: int


class ProjectDetail(Project):
    """A project, who has a role in it, and what it may use."""

    members: list[Member]
    quota: Quota
    use: Use


class ProjectRequest(Request):
    """A new project."""

    name: str = Field(max_length=63)
    description: str = Field(default="", max_length=2000)


class QuotaRequest(Request):
    """Limits to change; null takes one away, what is left out stays."""

    max_slots: int | None = Field(default=None, strict=True, ge=0, le=2**31)
    max_queued: int | None = Field(default=None, strict=True, ge=0, le=2**31)
    max_priority: int | None = Field(default=None, strict=True, ge=0, le=100)


class ProjectUpdate(Request):
    """What may be changed of a project; null and what is left out stay."""

    description: str | None = Field(default=None, max_length=2000)
    quota: QuotaRequest | None = None


class MemberRequest(Request):
    """A role in a project."""

    role: ProjectRole


class User(BaseModel):
    """A person, or a program that acts as one."""

    name: str
    etag: str
    """Of what an admin may change; with If-Match it is changed as it was seen."""
    is_admin: bool
    created_at: str
    disabled_at: str | None


class UserPage(BaseModel):
    """Users by name."""

    items: list[User]
    next_cursor: str | None


class UserRequest(Request):
    """A new user."""

    name: str = Field(max_length=63)
    is_admin: bool = Field(default=False, strict=True)


class UserUpdate(Request):
    """What may be changed of a user; null leaves it."""

    is_admin: bool | None = Field(default=None, strict=True)
    is_disabled: bool | None = Field(default=None, strict=True)


class Token(BaseModel):
    """A token, without its secret."""

    id: str
    name: str
    role: str
    user: str | None
    cluster: str | None
    """That it speaks for alone, of the role `cluster`; null: for any."""
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class TokenPage(BaseModel):
    """Tokens, newest first."""

    items: list[Token]
    next_cursor: str | None


class NewToken(Token):
    """A token with its secret, which is never shown again."""

    token: str


class TokenRequest(Request):
    """A new token."""

    name: str = Field(min_length=1, max_length=63, description="What it is for.")
    user: str | None = Field(default=None, max_length=63, description="Whose it is; default: the caller's.")
    role: Literal["user", "cluster", "scraper"] = "user"
    cluster: str | None = Field(
        default=None, max_length=63, description="Of the role cluster: the only one it speaks for; null: any."
    )
    expires_in: float | None = Field(default=None, gt=0, le=10 * 366 * 86400, description="Seconds; null: never.")


class AuditEntry(BaseModel):
    """What a person changed."""

    id: int
    time: str
    actor: str
    action: str
    job_id: str | None
    detail: JsonObject


class AuditPage(BaseModel):
    """Entries, newest first."""

    items: list[AuditEntry]
    next_cursor: str | None
