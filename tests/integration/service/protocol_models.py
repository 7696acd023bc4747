"""Whom the state machine of the cluster protocol plays: a service of its own, a clock, and controllers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import event

from rubato.wire.cluster import ActionAnswer, ProcessIdentity, Report
from service.errors import ErrorKind, ServiceError
from service.startup import Running

T = TypeVar("T")


def expect(error: ServiceError, *kinds: ErrorKind) -> None:
    """Only these refusals are right here."""
    if error.kind not in kinds:
        raise error


class ManualClock:
    """Moves when the machine moves it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@dataclass
class Bench:
    """One service for all examples; each has a job of its own."""

    runner: asyncio.Runner
    running: Running
    clock: ManualClock
    names: Iterator[int] = field(default_factory=itertools.count)
    is_committing: bool = False
    """A transaction of this moment has come to its commit."""

    def watch_commits(self) -> None:
        """Take note of commits, just before they are sent."""

        @event.listens_for(self.running.context.database._writer.sync_engine, "commit")
        def on_commit(_connection: Any) -> None:
            self.is_committing = True

    def run(self, request: Awaitable[T]) -> T:
        async def wait() -> T:
            return await request

        return self.runner.run(wait())


@dataclass
class Controller:
    """One process that wants to lead, or leads."""

    process: ProcessIdentity
    is_alive: bool = True
    attempt: int = 0
    version: int = 0
    batch: int = 0
    unsent: Report | None = None
    """Sent maybe, acknowledged not."""
    sent: list[Report] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    """By their numbers, from 1."""
    acknowledged: int = 0
    taken: set[int] = field(default_factory=set)
    answers: list[ActionAnswer] = field(default_factory=list)
    is_over: bool = False
