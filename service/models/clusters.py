"""The tables of clusters, and of the turns that replicas take."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    String,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.models.base import Base


class Cluster(Base):
    """A Ray cluster, as its acting agent last described it."""

    __tablename__ = "clusters"

    id: Mapped[str] = mapped_column(String(63), primary_key=True)
    agent_id: Mapped[str]
    agent_lease_expires_at: Mapped[datetime]
    last_seen: Mapped[datetime]
    nodes: Mapped[list[Any]]
    node_marks: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """By node id: what an admin wants of it ({"state": "cordoned" | "draining", "by", "since"})."""
    run_version: Mapped[int] = mapped_column(default=0)
    """Grows whenever the list of jobs to run changes."""
    run_digest: Mapped[str] = mapped_column(String(64), default="")


class Lease(Base):
    """Who acts in a role of which there is one among all replicas."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    holder: Mapped[str] = mapped_column(String(63))
    expires_at: Mapped[datetime]
