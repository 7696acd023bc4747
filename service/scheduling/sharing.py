"""What another worker is worth: useful worker counts, gains, and how long a count stays once it was changed. Pure.

V microbatches are shared out among W workers, and a step lasts as long as the largest share, ceil(V/W) microbatches. So
only counts at which ceil(V/W) falls are of use: with V = 8 these are 1, 2, 3, 4 and 8; a fifth worker gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from rubato.wire import batch
from service.scheduling.view import JobView, Placed

MIN_DWELL = timedelta(seconds=30)
"""About what a worker takes to start and to join: a count that lasts less is not worth the change."""
MAX_DWELL = timedelta(minutes=10)
PAUSE_SHARE = 0.01
"""Changes that nobody asked for may stop the training for so much of the time."""
USUAL_PAUSE_S = 0.1
"""Taken for a job whose pauses were not measured yet."""
GROWS_AT = 0.5
"""`goodput`: a worker more must bring so much of what a worker brings at the least measured count."""
KEEPS_AT = 0.25
"""`goodput`: one that brought less is given back. Between the two nothing changes: noise moves no worker."""


def speedup(num_microbatches: int, workers: int) -> float:
    """Steps in the time of one step of a single worker."""
    return num_microbatches / -(-num_microbatches // workers)


def next_useful(job: JobView, workers: int) -> int | None:
    """The next larger count at which a step gets shorter, within the job's maximum."""
    return batch.next_useful(job.num_microbatches, workers, job.max_workers)


def lower_useful(job: JobView, workers: int, floor: int) -> int:
    """The next smaller count that has no idle workers, and not below `floor`."""
    last = speedup(job.num_microbatches, workers - 1)
    count = workers - 1
    while count > floor and speedup(job.num_microbatches, count - 1) == last:
        count -= 1
    return max(count, floor)


def gain(job: JobView, fewer: int, more: int) -> float:
    """What each worker between two counts brings, in workers at full use.

    From measured rates where there are some, else from how microbatches divide.
    """
    rates: Mapping[int, float] = job.rates if isinstance(job, Placed) and job.autoscale == "goodput" else {}
    unit = min(rates) if rates else 0
    one = rates[unit] / unit if rates else 1.0
    return (_rate(job, rates, more) - _rate(job, rates, fewer)) / (more - fewer) / one


def dwell(job: Placed) -> timedelta:
    """How long a count that nobody asked for stays: the more a pause costs, the longer."""
    pause = timedelta(seconds=USUAL_PAUSE_S if job.pause_s is None else job.pause_s)
    return min(MAX_DWELL, max(MIN_DWELL, pause / PAUSE_SHARE))


def may_grow_at(job: Placed) -> datetime | None:
    """When the job may be given more; None: now.

    A job whose count only its user changes is never held back, nor one whose user spoke since the last change.
    """
    has_spoken = job.wished_at is not None and job.wished_at >= job.granted_at
    if job.autoscale == "off" or has_spoken or job.granted_at <= job.placed_at:
        return None
    return job.granted_at + dwell(job)


def next_extra(job: JobView, workers: int) -> int | None:
    """The count that an autoscaled job should have next, if more is worth it.

    `goodput` goes up by one useful count at a time, once it knows what the present one brings.
    """
    if job.autoscale == "off":
        return None
    more = next_useful(job, workers)
    if more is None or job.autoscale == "capacity":
        return more
    is_measured = isinstance(job, Placed) and workers == job.granted and workers in job.rates
    return more if is_measured and gain(job, workers, more) >= GROWS_AT else None


def paying_count(job: Placed) -> int:
    """The count that a `goodput` job should keep: less than it has where the last workers brought too little."""
    if job.autoscale != "goodput" or job.granted <= job.wish or job.granted not in job.rates:
        return job.granted
    fewer = max((count for count in job.rates if job.wish <= count < job.granted), default=None)
    if fewer is None or gain(job, fewer, job.granted) >= KEEPS_AT:
        return job.granted
    return fewer


def _rate(job: JobView, rates: Mapping[int, float], workers: int) -> float:
    """Measured, or scaled from the nearest measured count, or as microbatches divide."""
    ideal = speedup(job.num_microbatches, workers)
    if not rates or workers in rates:
        return rates.get(workers, ideal)
    nearest = min(rates, key=lambda count: (abs(count - workers), count))
    return rates[nearest] * ideal / speedup(job.num_microbatches, nearest)
