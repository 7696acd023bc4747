"""What the coordinator knows of each worker."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rubato.engine.coordinator.starting import EARLY_S
from rubato.wire.cluster import WorkerReport
from rubato.wire.status import WorkerState
from rubato.wire.worker import Beat, Broken, Ended, GenerationRecord, Hello, Spawned, Standby

if TYPE_CHECKING:
    from rubato.engine.coordinator.hangs import Hung


PACE_STEPS = 16
"""A worker's pace is the median of so many steps: one that was slow once is not a slow worker."""


@dataclass(frozen=True)
class Drain:
    """A worker is to leave at a boundary, and another one to take its place."""

    asked_at: float
    pressing_at: float | None = None
    """From then on it leaves, whether its replacement is there or not; None: there is no hurry."""

    def due_within(self, within_s: float | None, now: float) -> Drain:
        """The same with a deadline, which only ever comes nearer: half of the time is for the replacement to come, what
        is left is for the switch.
        """
        if within_s is None:
            return self
        pressing_at = now + within_s / 2
        return replace(
            self, pressing_at=pressing_at if self.pressing_at is None else min(pressing_at, self.pressing_at)
        )

    def is_pressing(self, now: float) -> bool:
        """Whether it leaves also without a replacement."""
        return self.pressing_at is not None and now >= self.pressing_at


@dataclass
class WorkerView:
    """One worker, from its spawn to its exit."""

    worker_id: str
    incarnation: str
    number: int
    """Workers are counted as they are started; 0: by a predecessor."""
    spawned_at: float
    state: WorkerState = WorkerState.STARTING
    pid: int | None = None
    supervisor_pid: int | None = None
    node: str = ""
    node_id: str = ""
    hello: Hello | None = None
    standby: Standby | None = None
    standby_at: float = 0.0
    generation: int = 0
    """The one it trains in; 0: none."""
    entered_at: float | None = None
    """When it began to train; None: it has not, or a predecessor saw it."""
    step: int = 0
    broken: Broken | None = None
    ended: Ended | None = None
    beat: Beat | None = None
    paces: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    """Of its last steps: nanoseconds spent, on so many microbatches."""
    heard_at: float = 0.0
    formed: int = 0
    """The highest generation whose group it has formed, or may leave for."""
    hang: Hung | None = None
    """Where it hung, if that is why it is killed."""
    doom: str = ""
    """Why the coordinator has it killed; empty: it has not."""
    drain: Drain | None = None
    """Somebody wants it to leave."""
    is_killed_by_hand: bool = False
    has_left: bool = False
    """It said good-bye: its exit is no loss."""
    error: str = ""
    """What it said of its own end."""
    traceback: str = ""

    @property
    def is_placed(self) -> bool:
        """Its training process exists."""
        return self.pid is not None

    def has_lasted(self, now: float) -> bool:
        """Whether it has trained for a while."""
        return self.generation > 0 and (self.entered_at is None or now - self.entered_at > EARLY_S)

    @property
    def pace(self) -> float | None:
        """Nanoseconds that a microbatch takes: the median of its last steps; None: it has computed none."""
        each = [spent / count for spent, count in self.paces if count]
        return statistics.median(each) if each else None

    def take_place(self, spawned: Spawned) -> None:
        """Its training process exists, and where."""
        self.pid, self.supervisor_pid = spawned.pid, spawned.supervisor_pid
        self.node, self.node_id = spawned.node, spawned.node_id

    def report(self, rank: int | None, now: float | None) -> WorkerReport:
        """As the service shows it.

        Args:    now: None: no time has passed yet.
        """
        arithmetic = self.standby.arithmetic if self.standby else {}
        paces, pace = (self.paces, self.pace) if rank is not None else ((), None)
        return WorkerReport(
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            rank=rank,
            pid=self.pid,
            supervisor_pid=self.supervisor_pid,
            node=self.node,
            state=self.state.value,
            step=self.step,
            phase=self.beat.stage if self.beat else "",
            node_id=self.node_id,
            microbatches=paces[-1][1] if paces else None,
            microbatch_seconds=round(pace / 1e9, 6) if pace is not None else None,
            device=arithmetic.get("gpu") or arithmetic.get("device", ""),
            memory_bytes=self.beat.memory_bytes if self.beat else None,
            silent_seconds=None if now is None else round(max(0.0, now - self.heard_at), 3),
        )


class Roster:
    """All living workers, by incarnation, in order of their spawn."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerView] = {}

    def __iter__(self) -> Iterator[WorkerView]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, worker: WorkerView) -> None:
        """Take in a worker."""
        self._workers[worker.incarnation] = worker

    def get(self, incarnation: str) -> WorkerView | None:
        """The living worker of this incarnation."""
        return self._workers.get(incarnation)

    def remove(self, incarnation: str) -> WorkerView | None:
        """Forget a worker that is gone."""
        return self._workers.pop(incarnation, None)

    def of(self, record: GenerationRecord | None) -> list[WorkerView]:
        """The living members of a generation, by rank."""
        if record is None:
            return []
        found = (self._workers.get(member.incarnation) for member in record.members)
        return [worker for worker in found if worker is not None]

    def see_pace(self, record: GenerationRecord, pace: Sequence[tuple[int, int]]) -> None:
        """A step was committed.

        Args:    pace: by rank, nanoseconds spent on so many microbatches; empty: not told.
        """
        for member, one in zip(record.members, pace, strict=False):
            worker = self._workers.get(member.incarnation)
            if worker is not None:
                worker.paces.append(one)

    def joinable(self, record: GenerationRecord | None) -> list[WorkerView]:
        """The living workers that are no members, are not being ended, and are no leavers on their way out."""
        members = {member.incarnation for member in record.members} if record else set()
        return [
            worker
            for worker in self
            if worker.incarnation not in members and not worker.doom and worker.state is not WorkerState.DRAINING
        ]


def warm_first(workers: list[WorkerView]) -> list[WorkerView]:
    """Those that stand by come first: they are of most use."""
    return sorted(workers, key=lambda one: one.state is not WorkerState.STANDBY)


def in_state(state: WorkerState, workers: list[WorkerView]) -> list[WorkerView]:
    """The workers in one state."""
    return [worker for worker in workers if worker.state is state]
