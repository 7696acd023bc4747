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

from rubato.engine.coordinator.state import JobState
from rubato.engine.tree import Tree
from rubato.wire import worker as wire
from rubato.wire.events import EventKind

WINDOW_STEPS = 20
MAX_WINDOW_STEPS = 640
WINDOW_S = 3.0
"""With fast steps the window is longer: a busy moment of the machine is no slow worker."""
SKIPPED_STEPS = 3
"""At the start of a generation: caches, and the steps that joiners do not compute in yet."""
MIN_GAIN = 0.15
"""Of the time that the slowest worker computes."""
MIN_Z = 3.0
NOISE = 0.02
"""A spread below this is not believed."""
SLACK = 1.05
"""How much longer than at best a step may take if that keeps the runs of microbatches aligned."""
MAX_ALIGNED = 128
"""Microbatches up to which aligned runs are looked for: the search grows with the square."""

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
    present, best = _shares(owners, world), shares_for(usual, len(owners))
    gains = [1.0 - _longest(step, best) / _longest(step, present) for step in times]
    gain = statistics.median(gains)
    spread = 1.4826 * statistics.median(abs(one - gain) for one in gains)
    z = gain / max(spread, NOISE)
    if gain < MIN_GAIN or z < MIN_Z:
        return None
    return Rebalance(tuple(rank for rank, count in enumerate(best) for _ in range(count)), gain, z)


def shares_for(times: Sequence[float], num_microbatches: int) -> tuple[int, ...]:
    """How many microbatches each rank gets, in contiguous runs, at least one each.

    Of all shares with which a step takes at most `SLACK` times the shortest possible, those that need the fewest tree
    nodes: what a rank sends in an exchange grows with the nodes that it holds.
    """
    shares = [1] * len(times)
    for _ in range(num_microbatches - len(times)):
        shares[min(range(len(times)), key=lambda rank: (shares[rank] + 1) * times[rank])] += 1
    if num_microbatches > MAX_ALIGNED:
        return tuple(shares)
    allowed = SLACK * _longest(times, shares)
    # Best (nodes, longest time, shares) by microbatches given away, rank after rank.
    found: dict[int, tuple[int, float, tuple[int, ...]]] = {0: (0, 0.0, ())}
    tree = Tree.of(num_microbatches)
    nodes: dict[tuple[int, int], int] = {}
    for rank, time in enumerate(times):
        after = len(times) - rank - 1
        most = int(allowed / time + 1e-9)
        following: dict[int, tuple[int, float, tuple[int, ...]]] = {}
        for begin, (sent, longest, given) in found.items():
            for count in range(1, min(most, num_microbatches - begin - after) + 1):
                run = (begin, begin + count)
                if run not in nodes:
                    nodes[run] = len(tree.frontier(range(*run), range(num_microbatches)))
                option = (sent + nodes[run], max(longest, count * time), (*given, count))
                following[run[1]] = min(following.get(run[1], option), option)
        found = following
    return found[num_microbatches][2] if num_microbatches in found else tuple(shares)


def _shares(owners: Sequence[int], world: int) -> tuple[int, ...]:
    return tuple(owners.count(rank) for rank in range(world))


def _longest(times: Sequence[float], shares: Sequence[int]) -> float:
    """How long the slowest rank computes."""
    return max(time * count for time, count in zip(times, shares, strict=True))


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
        before, after = _shares(record.owners, record.world), _shares(found.owners, record.world)
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
        told, self._told = self._told, None
        if told is not None and told[0] == record.number:
            self._job.emit(EventKind.REBALANCED, told[1], step=step, **told[2])
