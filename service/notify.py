"""Wakes waiting requests of this process. A notification is only a hint: every waiter also looks again by itself.

Another replica's writes come through `service.listen`, while that stands. Waits are cut to the poll interval, which is
short where it does not; correctness never rests on the hub.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession

T = TypeVar("T")

LOOKS_PER_S = 20
"""How often all waiters together look again by themselves. A look costs milliseconds: a thousand controllers that look
twice a second would leave no time for what they report, nor for the listener that would end it."""

ALL_JOBS = "jobs"
"""Any job changed in a way that watchers see."""
SCHEDULER = "scheduler"
"""Something the scheduler decides from changed."""
ACCESS = "access"
"""A token was revoked, or what a user may do changed: open streams look again whether they may go on."""
WEBHOOKS = "webhooks"
"""A message to a webhook was written, or what became of one."""
SWEEP = "sweep"
"""A job was deleted: what it left is to be removed."""
RUN_LIST = "run-list"
"""A job entered or left the list of those that should have a controller."""


def job_topic(job_id: str) -> str:
    """Anything of one job changed."""
    return f"job:{job_id}"


def desired_topic(job_id: str) -> str:
    """What is wanted of one job changed, or its controller was superseded."""
    return f"desired:{job_id}"


def notify(session: AsyncSession, *topics: str) -> None:
    """Tell these topics when the transaction has committed."""
    session.info.setdefault("topics", set()).update(topics)


def after_commit(session: AsyncSession, tell: Callable[[], object]) -> None:
    """Count something once the transaction has committed: what was rolled back did not happen."""
    session.info.setdefault("after_commit", []).append(tell)


class Subscription:
    """A wake-up flag for some topics. Subscribe before looking, so that nothing written in between is missed."""

    def __init__(self, hub: Hub, topics: Iterable[str]) -> None:
        self._hub = hub
        self._topics = tuple(topics)
        self._flag = asyncio.Event()

    def __enter__(self) -> Self:
        for topic in self._topics:
            self._hub.subscribers.setdefault(topic, set()).add(self)
        self._hub.waiting.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.waiting.discard(self)
        for topic in self._topics:
            waiting = self._hub.subscribers.get(topic, set())
            waiting.discard(self)
            if not waiting:
                self._hub.subscribers.pop(topic, None)

    def wake(self) -> None:
        """Let the wait return."""
        self._flag.set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether a notification came within the time; also returns when the hub closes."""
        if self._hub.is_closed:
            return False
        if not self._flag.is_set():
            try:
                async with asyncio.timeout(max(0.0, timeout_s)):
                    await self._flag.wait()
            except TimeoutError:
                self._hub.polls += 1
                return False
        self._flag.clear()
        return True


class Hub:
    """The subscribers of this process by topic."""

    def __init__(self, poll_interval_s: float, fed_interval_s: float | None = None) -> None:
        """Nobody waits yet.

        Args:
            poll_interval_s: longest wait without another look, where other replicas' writes are not told here.
            fed_interval_s: where they are; the same if None.
        """
        self.subscribers: dict[str, set[Subscription]] = {}
        self.waiting: set[Subscription] = set()
        self._poll_interval_s = poll_interval_s
        self._fed_interval_s = poll_interval_s if fed_interval_s is None else fed_interval_s
        self.is_fed = False
        """Whether the notifications of other replicas come in."""
        self.polls = 0
        """Waits that ended without a notification."""
        self.is_closed = False
        self._publishes = 0
        self.access_changes = 0
        """Grows with every notification of ACCESS."""
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

    @property
    def poll_interval_s(self) -> float:
        """Longest wait without another look; the longer, the more there are who wait."""
        usual_s = self._fed_interval_s if self.is_fed else self._poll_interval_s
        return max(usual_s, len(self.waiting) / LOOKS_PER_S)

    def set_fed(self, is_fed: bool) -> None:
        """Other replicas' notifications come in from now on, or no more. Everybody looks, as some may be lost.

        Not all at once, though: the time that takes would cost the listener its place again.
        """
        if is_fed == self.is_fed:
            return
        self.is_fed = is_fed
        self._publishes += 1
        self.access_changes += 1
        for number, subscription in enumerate(tuple(self.waiting)):
            if number < LOOKS_PER_S:
                subscription.wake()
            else:
                asyncio.get_running_loop().call_later(number / LOOKS_PER_S, subscription.wake)

    def subscribe(self, *topics: str) -> Subscription:
        """A context manager within which notifications are not lost."""
        return Subscription(self, topics)

    def publish(self, topics: Iterable[str]) -> None:
        """Wake everyone who waits for one of the topics."""
        self._publishes += 1
        for topic in topics:
            self.access_changes += topic == ACCESS
            for subscription in tuple(self.subscribers.get(topic, ())):
                subscription.wake()

    async def read_once(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        """One read for all that want the same at the same time: hundreds of watchers wake from one notification.

        A read that runs is joined only if nothing was published since it began: whoever wakes from a notification gets
        what was written before it.
        """
        full_key = (self._publishes, key)
        task: asyncio.Task[T] | None = self._reads.get(full_key)
        if task is None:
            task = asyncio.ensure_future(_awaited(read))
            self._reads[full_key] = task
            task.add_done_callback(lambda done: self._forget(full_key, done))
        # One watcher that leaves must not end the read of the others.
        return await asyncio.shield(task)

    def _forget(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        self._reads.pop(key, None)
        if not done.cancelled():
            # Looked at here, so that a failure for which nobody waits any more is not reported as forgotten.
            done.exception()

    def close(self) -> None:
        """The service goes down: all waits end now, so that requests finish and clients reconnect."""
        self.is_closed = True
        for subscription in tuple(self.waiting):
            subscription.wake()

    async def wait_until(
        self,
        topics: Iterable[str],
        look: Callable[[], Awaitable[T]],
        is_enough: Callable[[T], bool],
        timeout_s: float,
        *,
        looks_at_end: bool = True,
    ) -> T:
        """Look again and again until it is enough or the time is over; gives the last look.

        Args:
            topics: of notifications that are worth a look.
            look: reads what is waited for.
            is_enough: whether it has come.
            timeout_s: seconds to wait at most.
            looks_at_end: whether to look when the time is over and nothing was notified. Who asks again at once, and
                hears then what was missed, needs no such look.
        """
        deadline = time.monotonic() + timeout_s
        with self.subscribe(*topics) as subscription:
            while True:
                seen = await look()
                left_s = deadline - time.monotonic()
                if is_enough(seen) or left_s <= 0 or self.is_closed:
                    return seen
                is_told = await subscription.wait(min(left_s, self.poll_interval_s))
                if not (is_told or looks_at_end) and time.monotonic() >= deadline:
                    return seen


async def _awaited(read: Callable[[], Awaitable[T]]) -> T:
    return await read()
