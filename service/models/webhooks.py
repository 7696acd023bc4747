"""The tables of webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, LargeBinary, String, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base

PENDING = "status = 'pending'"
PENDING_TEST = "status = 'pending' AND kind = 'webhook.test'"


class Webhook(Base):
    """An address that is told what happens to a project's jobs."""

    __tablename__ = "webhooks"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    project: Mapped[str] = mapped_column(ForeignKey("projects.name", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(63))
    url: Mapped[str]
    events: Mapped[list[Any]]
    """The topics that it asks for; see `service.webhooks.topics`."""
    key_id: Mapped[str] = mapped_column(String(16))
    sealed: Mapped[bytes] = mapped_column(LargeBinary)
    """Its signing secret."""
    created_at: Mapped[datetime]
    created_by: Mapped[str] = mapped_column(String(63))

    __table_args__ = (UniqueConstraint("project", "name"),)


class Delivery(Base):
    """A message to a webhook: written with its event, tried until it arrives or is given up, kept for a while."""

    __tablename__ = "deliveries"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    job_id: Mapped[str | None] = mapped_column(String(40))
    kind: Mapped[str] = mapped_column(String(64))
    body: Mapped[str]
    """What is signed, byte for byte."""
    status: Mapped[str] = mapped_column(String(16))
    tries: Mapped[int]
    next_at: Mapped[datetime | None]
    """Of a pending one: when it is tried next; while it is tried, when another replica may take it up."""
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    last_status: Mapped[int | None]
    error: Mapped[str]
    """Why the last try failed, in a sentence."""

    __table_args__ = (
        Index(
            "ix_deliveries_pending",
            "webhook_id",
            "next_at",
            "id",
            sqlite_where=text(PENDING),
            postgresql_where=text(PENDING),
        ),
        Index(
            "ix_deliveries_pending_test",
            "webhook_id",
            sqlite_where=text(PENDING_TEST),
            postgresql_where=text(PENDING_TEST),
        ),
        Index("ix_deliveries_webhook_id_id", "webhook_id", "id"),
        Index("ix_deliveries_created_at", "created_at"),
    )
