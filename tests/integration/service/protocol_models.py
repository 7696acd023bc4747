"""What the state machine of the cluster protocol plays with: a service, a clock, controllers, counted faults."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from sqlalchemy import event, select

from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import ActionAnswer, ControllerSeen, ProcessIdentity, Report, SyncRequest
from service.access import Principal, Role
from service.attempts import rearm_leases
from service.clusters import sync
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.models import Event, Job
from service.startup import Running
from tests.cut_off import Cut
from tests.simulated_controller import one_node

T = TypeVar("T")
LEASE_S = 45.0
"""And its margin."""
AT_COMMIT = -1
SOMEWHERE = st.just(AT_COMMIT) | st.integers(0, 24)
"""Awaits of a request before it is cut off; or while it commits, where nobody can know whether it is stored."""
EFFECTS: Counter[str] = Counter()
GUARDS = frozenset(
    {
        *("acquire cut off, granted", "acquire cut off, nothing stored", "asked again by the same process"),
        *("lease held by a living process", "granted after the lease", "granted at once: seen to be gone"),
        *("granted at once: the agent confirmed", "report cut off, stored", "report cut off, nothing stored"),
        *("report doubled", "late report of a superseded attempt refused", "late report acknowledged, nothing stored"),
        *("superseded attempt refused a poll", "clock set back", "clock set forward", "service restarted"),
        *("action cut off, stored", "action cut off, nothing stored", "action asked for again"),
        *("action done", "action of a predecessor found done", "cancel won over an outcome", "outcome told twice"),
        *("two controllers asked",),
    }
)


def expect(error: ServiceError, *kinds: ErrorKind) -> None:
    """Only these refusals are right here."""
    if error.kind not in kinds:
        raise error


async def give_whole_leases(context: Context) -> None:
    """As a service does that begins, and as a replica that nobody stood in for."""
    async with context.database.write() as session:
        await rearm_leases(session, context.clock(), context.settings.lease)


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

    def begin(self, attempt: int) -> None:
        """It was granted an attempt; of those before it nothing is told any more."""
        self.attempt, self.version, self.batch, self.acknowledged = attempt, 0, 0, 0
        self.unsent, self.is_over = None, False
        self.sent, self.events, self.taken, self.answers = [], [], set(), []


class Played(RuleBasedStateMachine):
    """What a machine asks of the service, and how it looks at what is stored."""

    bench: Bench
    job_id: str

    @property
    def context(self) -> Any:
        return self.bench.running.context

    def call(self, request: Awaitable[T]) -> T:
        return self.bench.run(request)

    def cut(self, request: Coroutine[Any, Any, T], after: int | None) -> T | None:
        """The reply; None where the request was cut off."""
        if after is None:
            return self.call(request)
        self.bench.is_committing = False
        try:
            return self.call(Cut(request, (lambda: self.bench.is_committing) if after == AT_COMMIT else after))
        except asyncio.CancelledError:
            return None

    def job(self) -> Job:
        """As it stands once whatever was cut off has been undone or stored: nobody writes beside this."""

        async def look() -> Job:
            async with self.context.database.write() as session:
                return await session.get_one(Job, self.job_id)

        return self.call(look())

    def schedule(self, *seen: ControllerSeen) -> None:
        nodes = one_node(1e6)
        request = SyncRequest("agent", WIRE_VERSION, nodes, seen, after=0, wait=0)
        self.call(sync(self.context, "default", request, Principal(Role.CLUSTER, "cluster", cluster_id="default")))
        self.call(self.bench.running.scheduling.run_once())

    def events(self) -> list[Event]:
        async def look() -> list[Event]:
            async with self.context.database.read() as session:
                rows = select(Event).where(Event.job_id == self.job_id).order_by(Event.position)
                return list(await session.scalars(rows))

        return self.call(look())
