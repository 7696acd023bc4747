"""Shapes of requests and replies about secrets; no reply has a value."""

from __future__ import annotations

from pydantic import BaseModel, Field

from api.schemas import Request
from service.project_secrets import MAX_CHARS
from service.redaction import MIN_CHARS


class Secret(BaseModel):
    """A secret, without its value."""

    name: str
    etag: str
    """Of the value that it has; with If-Match it is replaced or removed as it was seen."""
    project: str
    created_at: str
    updated_at: str
    updated_by: str


class SecretPage(BaseModel):
    """Secrets by name."""

    items: list[Secret]
    next_cursor: str | None


class SecretRequest(Request):
    """A value to keep."""

    value: str = Field(
        min_length=MIN_CHARS,
        max_length=MAX_CHARS,
        description="Never shown again.",
        json_schema_extra={"format": "password", "writeOnly": True},
    )
