"""Shapes of requests and replies about webhooks."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from api.schemas import Request
from service.webhooks.addresses import MAX_URL_CHARS
from service.webhooks.retries import DeliveryStatus
from service.webhooks.topics import Topic


class Webhook(BaseModel):
    """An address that is told what happens to a project's jobs."""

    id: str
    name: str
    project: str
    url: str
    events: list[Topic]
    created_at: str
    created_by: str


class WebhookPage(BaseModel):
    """Webhooks by name."""

    items: list[Webhook]
    next_cursor: str | None


class NewWebhook(Webhook):
    """A webhook with its signing secret, which is never shown again."""

    secret: str


class WebhookRequest(Request):
    """A new webhook."""

    name: str = Field(max_length=63)
    url: str = Field(max_length=MAX_URL_CHARS, description="https://HOST[:PORT]/PATH")
    events: list[Topic] = Field(
        default=[], max_length=len(Topic), description="What it is told of every job; empty: all."
    )


class Delivery(BaseModel):
    """A message to a webhook, and what became of it."""

    id: str = Field(description="The `webhook-id` of its requests.")
    type: str
    job_id: str | None
    status: DeliveryStatus
    tries: int
    created_at: str
    next_at: str | None
    finished_at: str | None
    last_status: int | None
    error: str


class DeliveryPage(BaseModel):
    """Deliveries, newest first."""

    items: list[Delivery]
    next_cursor: str | None


DeliveryFilter = Literal["", "pending", "delivered", "failed"]
