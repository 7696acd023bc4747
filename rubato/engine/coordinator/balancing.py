"""Move microbatches away from slow workers. Owners have no influence on the bits: it costs one switch and no result.

Every step's headers tell what each worker spent on how many microbatches. Over a window of steps, each step is asked
what it would have taken with other shares; where the gain is large and its robust z-score says that it is no noise, a
generation of the same members with other owners is minted. After each the window doubles, so that nothing flaps.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rubato.engine.coordinator.owners import MIN_GAIN, owners_of, shares_for, shares_of, step_time
from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire
from rubato.wire.events import EventKind

WINDOW_STEPS = 20
MAX_WINDOW_STEPS = 640
WINDOW_S = 3.0
"""With fast steps the window is longer: a busy moment of the machine is no slow worker."""
SKIPPED_STEPS = 3
"""At the start of a generation: caches, and the steps that joiners do not compute in yet."""
MIN_Z = 3.0
NOISE = 0.02
"""A spread below this is not believed."""

Pace = tuple[tuple[int, int], ...]
"""By rank: nanoseconds spent, on so many microbatches."""


@dataclass(frozen=True)
class Rebalance:
    """Other owners for the same members, and why."""

    owners: tuple[int, ...]
    gain: float
    """Of the time that the slowest worker computes in a step."""
    z: float


def decide_owners(window: Sequence[Pace], owners: Sequence[int]) -> Rebalance | None:
    """Other owners, if they are worth it.

    Args:    window: of the last steps, each with at least one microbatch on every rank.  owners: as they are.
    Returns: None: all is well, or nobody can tell.
    """
    world = len(window[0]) if window else 0
    if world < 2:
        return None
    times = [[spent / count for spent, count in step] for step in window]
    usual = [statistics.median(step[rank] for step in times) for rank in range(world)]
    if min(usual) <= 0:
        return None
    present, best = shares_of(owners, world), shares_for(usual, len(owners))
    gains = [1.0 - step_time(step, best) / step_time(step, present) for step in times]
    gain = statistics.median(gains)
    spread = 1.4826 * statistics.median(abs(one - gain) for one in gains)
    z = gain / max(spread, NOISE)
    if gain < MIN_GAIN or z < MIN_Z:
        return None
    return Rebalance(owners_of(best), gain, z)


def describe_moves(
    names: Sequence[str], times: Sequence[float], before: Sequence[int], after: Sequence[int]
) -> tuple[str, int]:
    """Who gives microbatches to whom and why, and the rank it is about."""
    ranks = range(len(names))
    giver = max((rank for rank in ranks if after[rank] < before[rank]), key=lambda rank: times[rank])
    takers = [rank for rank in ranks if after[rank] > before[rank]]
    to = " and ".join(names[rank] for rank in takers[:2]) if len(takers) <= 2 else f"{len(takers)} others"
    ratio = times[giver] / statistics.median(times[rank] for rank in ranks if rank != giver)
    moved = f"{before[giver] - after[giver]} of its {before[giver]} microbatches go to {to}"
    if ratio >= 1.0 + MIN_GAIN:
        return f"{names[giver]} takes {ratio:.1f}x as long per microbatch; {moved}", giver
    return f"{to} caught up with {names[giver]}; {moved}", giver


class Balancing:
    """Watches the pace of the members of one generation after the other."""

    def __init__(self, job: JobState) -> None:
        self._job = job
        self._generation = 0
        self._skipped = 0
        self._begun_at = 0.0
        self._window: deque[Pace] = deque(maxlen=MAX_WINDOW_STEPS)
        self._needed = WINDOW_STEPS
        self._told: tuple[int, str, dict[str, object]] | None = None
        """The generation that was minted, and what is to be said of it."""

    def see(self, generation: int, pace: Pace, now: float) -> None:
        """A step was committed."""
        if generation != self._generation:
            self._generation, self._skipped, self._begun_at = generation, 0, now
            self._window.clear()
        if not pace or any(count == 0 for _, count in pace):
            return  # a step that somebody had no part in says nothing
        if self._skipped < SKIPPED_STEPS:
            self._skipped, self._begun_at = self._skipped + 1, now
            return
        self._window.append(pace)

    def advance(self, now: float) -> None:
        """One look; mints a generation with other owners where it is worth it."""
        job, record = self._job, self._job.current
        if record is None or record.number != self._generation or self._is_resizing(record):
            return
        if len(self._window) < self._needed or now - self._begun_at < WINDOW_S:
            return
        window = list(self._window)[-self._needed :]
        self._window.clear()  # the next look is at other steps
        self._begun_at = now
        found = decide_owners(window, record.owners)
        members = job.roster.of(record)
        if found is None or len(members) < record.world:
            return
        self._needed = min(MAX_WINDOW_STEPS, 2 * self._needed)
        times = [statistics.median(step[rank][0] / step[rank][1] for step in window) for rank in range(record.world)]
        before, after = shares_of(record.owners, record.world), shares_of(found.owners, record.world)
        names = [member.worker_id for member in record.members]
        message, giver = describe_moves(names, times, before, after)
        job.mint(members, wire.Origin("members"), "rebalance", follows=record.number, owners=found.owners)
        facts: dict[str, object] = {
            "worker_id": names[giver],
            "rank": giver,
            "microbatches": dict(zip(names, after, strict=True)),
            "milliseconds": {name: round(time / 1e6, 3) for name, time in zip(names, times, strict=True)},
            "gain": round(found.gain, 3),
        }
        self._told = (job.highest, message, facts)

    def _is_resizing(self, record: wire.GenerationRecord) -> bool:
        """Whether other members are about to be: not where the missing ones cannot be had, which may last."""
        job = self._job
        if record.world >= job.wish.workers:
            return record.world > job.wish.workers
        return not job.changes.has_given_up_joins and any(one.is_placed for one in job.roster.joinable(record))

    def on_switched(self, record: wire.GenerationRecord, step: int) -> None:
        """The members train in a new generation."""
        if record.cause != "rebalance":
            self._needed = WINDOW_STEPS  # what flapped were other members
        told, self._told = self._told, None
        if told is not None and told[0] == record.number:
            self._job.emit(EventKind.REBALANCED, told[1], step=step, **told[2])
