"""From the times of committed steps to figures: pure, the same for every peer.

commits   | | | | |            | | | | |
gap               <------------>
downtime = gap - the median of the first ten gaps after it (the workers are others than before, so is the step)
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from benchmarks.programs import WARM_STEPS

SETTLING_STEPS = 10
"""Steps after an event whose median is the time of a step."""


@dataclass(frozen=True)
class Row:
    """One committed step, as told by the lowest rank."""

    step: int
    """Committed steps, this one included; it goes back where a checkpoint was loaded."""
    time: float
    """Seconds since the epoch."""
    workers: int
    """How many took part."""
    generation: str
    """Another one whenever the membership, or a process, changed."""


@dataclass(frozen=True)
class Event:
    """What was done to a run."""

    name: str
    at: float
    """Seconds since the epoch."""
    workers: int
    """How many are to train afterwards."""
    until: float = float("inf")
    """When the next event came."""


def seconds_of(text: str) -> float:
    """Since the epoch, of a time as events and rows have it."""
    return datetime.fromisoformat(text).timestamp()


def downtime_s(rows: Sequence[Row], event: Event) -> float | None:
    """How long training stood still for a change of size: all gaps until so many workers train.

    Peers whose workers join one by one, or that restart twice, have several. None: it never came to that.
    """
    changed = changes_until_joined(rows, event)
    return None if changed is None else sum(pause_s(rows, index) for index in changed)


def beyond_former_s(rows: Sequence[Row], event: Event) -> float | None:
    """The same gaps, less a step as it was *before* the request: what the change itself took of the time.

    Where the workers that there were compute one more step while others join, that step is no standstill, however much
    shorter the next ones are. None: it never came to that.
    """
    changed, former = changes_until_joined(rows, event), gaps_s(rows_before(rows, event))
    if changed is None or not former:
        return None
    usual_s = statistics.median(former)
    return sum(max(0.0, rows[index].time - rows[index - 1].time - usual_s) for index in changed)


def recovery_s(rows: Sequence[Row], event: Event) -> float | None:
    """How long training stood still after a loss: the first gap, whether all or fewer workers train after it.

    None: it never went on.
    """
    changed = changes(rows, event)
    return pause_s(rows, changed[0]) if changed else None


def requested_s(rows: Sequence[Row], event: Event) -> float | None:
    """From the request until the first step of so many workers is committed; None: never."""
    joined = joined_at(rows, event)
    return None if joined is None else rows[joined].time - event.at


def warming_ratio(rows: Sequence[Row], event: Event) -> float | None:
    """The step of those who train while joiners warm up, against the one before the request; None: too few to tell."""
    changed = changes(rows, event)
    if not changed:
        return None
    before = rows_before(rows, event)
    meanwhile = [row for row in rows[: changed[0]] if row.time >= event.at]
    if len(before) < 3 or len(meanwhile) < 2:
        return None
    return statistics.median(gaps_s(meanwhile)) / statistics.median(gaps_s(before))


def redone_steps(rows: Sequence[Row], event: Event) -> int:
    """Steps committed before the event that were committed again after it."""
    furthest = max((row.step for row in rows if row.time < event.at), default=0)
    return sum(row.step <= furthest for row in rows if event.at <= row.time < event.until)


def changes(rows: Sequence[Row], event: Event) -> list[int]:
    """The rows that are the first of a generation, in the time of this event."""
    return [
        index
        for index in range(1, len(rows))
        if rows[index].generation != rows[index - 1].generation and event.at <= rows[index].time < event.until
    ]


def changes_until_joined(rows: Sequence[Row], event: Event) -> list[int] | None:
    """The changes until as many workers train as were asked for; None: it never came to that."""
    joined = joined_at(rows, event)
    return None if joined is None else [index for index in changes(rows, event) if index <= joined]


def rows_before(rows: Sequence[Row], event: Event) -> list[Row]:
    """The last rows before the request: their gaps are the time of a step as it was."""
    return [row for row in rows if row.time < event.at][-SETTLING_STEPS - 1 :]


def joined_at(rows: Sequence[Row], event: Event) -> int | None:
    """The first row with as many workers as were asked for."""
    for index, row in enumerate(rows):
        if event.at <= row.time < event.until and row.workers == event.workers:
            return index
    return None


def pause_s(rows: Sequence[Row], first: int) -> float:
    """The gap before a row, less a usual step after it."""
    gap = rows[first].time - rows[first - 1].time
    after = gaps_s(rows[first : first + SETTLING_STEPS + 1])
    return max(0.0, gap - statistics.median(after)) if after else gap


def steady_s(rows: Sequence[Row]) -> float:
    """The median time of a step of an undisturbed run."""
    return statistics.median(gaps_s(rows[WARM_STEPS:]))


def gaps_s(rows: Sequence[Row]) -> list[float]:
    """Times between commits."""
    return [later.time - earlier.time for earlier, later in itertools.pairwise(rows)]


def uncounted(counts: Sequence[int], steps: int, batch: int) -> tuple[int, int]:
    """Samples that the weights have seen too seldom, and too often.

    Args:    counts: by sample, how often it is in the weights.  steps: of the whole run, in whole epochs.
    Returns: lost and repeated, in uses of a sample.
    Raises:  ValueError: the steps are no whole number of epochs, so that samples differ by right.
    """
    due, rest = divmod(steps * batch, len(counts))
    if rest:
        raise ValueError(f"{steps} steps of {batch} are no whole epochs of {len(counts)} samples")
    return sum(max(0, due - count) for count in counts), sum(max(0, count - due) for count in counts)
