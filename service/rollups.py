"""Extremes and sums of metrics over stretches of steps, so that a chart of a million steps reads a thousand rows.

A bucket of level 0 covers BASE steps, one of level k covers FACTOR buckets of level k - 1. A bucket is written when its
last step was ingested, so a step costs FACTOR / (FACTOR - 1) / BASE buckets on average. Steps that are trained again
after a loss write their buckets again when they pass the end; until then a bucket shows what the rows behind it show:
the older attempt. What no bucket covers (the newest steps, jobs older than this table) is read row by row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.database import insert_for
from service.models import Metric, MetricRollup

BASE = 64
FACTOR = 4
LEVELS = 10
"""The largest bucket then covers 16 million steps."""

MOST_ROWS = 5_000
"""Read row by row for one chart, where its points are fewer than its steps."""

Axis = Literal["step", "time"]
Extreme = tuple[float, int, float]
"""A value, its step, and its time in seconds since 1970."""
Total = tuple[float, int]
"""The sum of some values, and how many they are."""


@dataclass
class Stretch:
    """The least and the greatest value of each metric over some steps, and the sum of all."""

    first: int
    """The first step that it covers."""
    low: dict[str, Extreme] = field(default_factory=dict)
    high: dict[str, Extreme] = field(default_factory=dict)
    total: dict[str, Total] = field(default_factory=dict)

    def add(self, name: str, low: Extreme, high: Extreme, total: Total) -> None:
        """Take in values. Of equal ones the earlier step stays."""
        if name not in self.low or (low[0], low[1]) < (self.low[name][0], self.low[name][1]):
            self.low[name] = low
        if name not in self.high or (-high[0], high[1]) < (-self.high[name][0], self.high[name][1]):
            self.high[name] = high
        added, count = self.total.get(name, (0.0, 0))
        self.total[name] = (added + total[0], count + total[1])

    def take_in(self, other: Stretch) -> None:
        """Take in another stretch."""
        for name, low in other.low.items():
            self.add(name, low, other.high[name], other.total[name])

    def mean(self, name: str) -> float:
        """Of all values of a metric; between its extremes, also where their sum is more than a float holds."""
        added, count = self.total[name]
        return min(self.high[name][0], max(self.low[name][0], added / count))


def width(level: int) -> int:
    """Steps of a bucket."""
    return int(BASE * FACTOR**level)


Row = tuple[int, datetime, dict[str, Any]]
"""A step, its time and its values; one that was not finite is no value."""


def of_rows(rows: Iterable[Row], steps: int) -> list[Stretch]:
    """Buckets of so many steps, from rows in order. What `merge` of single rows would give, at a tenth of its price."""
    buckets: list[Stretch] = []
    end = -1
    for step, time, values in rows:
        if step >= end:
            bucket = step // steps
            end = (bucket + 1) * steps
            buckets.append(Stretch(bucket * steps))
            low, high, total = buckets[-1].low, buckets[-1].high, buckets[-1].total
        at = time.timestamp()
        for name, value in values.items():
            if value is None:
                continue
            number = float(value)
            # Rows come in order: of equal values the earlier step stays.
            if name not in low:
                low[name] = high[name] = (number, step, at)
                total[name] = (number, 1)
                continue
            added, count = total[name]
            total[name] = (added + number, count + 1)
            if number < low[name][0]:
                low[name] = (number, step, at)
            elif number > high[name][0]:
                high[name] = (number, step, at)
    return buckets


def merge(stretches: Iterable[Stretch], steps: int) -> list[Stretch]:
    """The same over buckets of so many steps, in order."""
    merged: dict[int, Stretch] = {}
    for stretch in stretches:
        bucket = stretch.first // steps
        merged.setdefault(bucket, Stretch(bucket * steps)).take_in(stretch)
    return [merged[bucket] for bucket in sorted(merged)]


def finished_buckets(steps: Sequence[int]) -> list[int]:
    """Buckets of level 0 that the rows of these steps, in order, complete: the newest step has reached their end.

    The bucket before a step counts too: where its last row is missing, the next one finishes it.
    """
    touched = {max(0, step - 1) // BASE for step in steps} | {step // BASE for step in steps}
    return sorted(bucket for bucket in touched if (bucket + 1) * BASE <= steps[-1] + 1)


async def roll_up(session: AsyncSession, job_id: str, rows: Sequence[Row]) -> None:
    """Write the buckets that these rows, just stored and in order of their steps, completed."""
    for run in _runs(finished_buckets([step for step, _, _ in rows])):
        await _roll_up_run(session, job_id, run.start * BASE, run.stop * BASE, rows)


async def _roll_up_run(session: AsyncSession, job_id: str, start: int, end: int, fresh: Sequence[Row]) -> None:
    found = of_rows(await _rows_beside(session, job_id, start, end, fresh), BASE)
    for level in range(LEVELS):
        if not found:
            return
        await _store(session, job_id, level, found)
        above = width(level + 1)
        # Only parents whose last step was reached; their older children lie in the table already.
        first, stop = start // above, end // above
        if first == stop:
            return
        start, end = first * above, stop * above
        children = await _read_level(session, job_id, level, start // width(level), end // width(level))
        whole = Counter(child.first // above for child in children)
        found = [one for one in merge(children, above) if whole[one.first // above] == FACTOR]


async def chart(
    session: AsyncSession,
    job_id: str,
    names: frozenset[str],
    *,
    max_points: int,
    axis: Axis,
    start: int,
    end: int | None,
) -> dict[str, Any]:
    """For each metric at most `max_points` points in order of steps: the least and the greatest of each stretch.

    Each point knows the mean of its stretch and its weight in a mean over several: the points of a stretch share one.

    Args:
        session: a reading one.
        job_id: of the job.
        names: only these metrics; empty: all.
        max_points: at least 4.
        axis: whether `x` is the step, or seconds since 1970.
        start: the first step.
        end: the last step; None: the newest.
    """
    steps_of = select(Metric.step).where(Metric.job_id == job_id, Metric.step >= start)
    if end is not None:
        steps_of = steps_of.where(Metric.step <= end)
    # Two looks into the index; min and max in one statement would read all of it on SQLite.
    first = await session.scalar(steps_of.order_by(Metric.step).limit(1))
    last = await session.scalar(steps_of.order_by(Metric.step.desc()).limit(1))
    if first is None or last is None:
        return {"bucket_steps": 1, "series": {}}
    span = last - first + 1
    if span <= max_points:
        stretches, steps = await _rows(session, job_id, first, last + 1), 1
    else:
        # Each bucket gives two points, and the first and last bucket may be cut.
        wanted = -(-span // max(1, max_points // 2 - 1))
        # Where there are many rows, rather fewer points than wanted than all of the rows.
        coarsest = 0 if span > MOST_ROWS else -1
        level = max((one for one in range(LEVELS) if width(one) <= wanted), default=coarsest)
        unit = width(level) if level >= 0 else 1
        steps = -(-wanted // unit) * unit
        stretches = merge(await _cover(session, job_id, level, first, last), steps)
    series: dict[str, dict[str, list[float]]] = {}
    for stretch in stretches:
        for name in stretch.low.keys() & names if names else stretch.low.keys():
            line = series.setdefault(name, {"x": [], "y": [], "steps": [], "times": [], "means": [], "weights": []})
            points = _points(stretch.low[name], stretch.high[name])
            for value, step, time in points:
                line["x"].append(step if axis == "step" else time)
                line["y"].append(value)
                line["steps"].append(step)
                line["times"].append(round(time, 3))
            line["means"] += [stretch.mean(name)] * len(points)
            line["weights"] += [1 / len(points)] * len(points)
    return {"bucket_steps": steps, "series": dict(sorted(series.items()))}


def _points(low: Extreme, high: Extreme) -> list[Extreme]:
    """Both, in order of steps; one where they are the same."""
    return sorted({low, high}, key=lambda extreme: extreme[1])


async def _cover(session: AsyncSession, job_id: str, level: int, first: int, last: int) -> list[Stretch]:
    """All steps from first to last: buckets of this level, and at both ends and where they are missing finer ones."""
    if level < 0:
        # Only jobs older than the buckets have so many rows without: some of the steps, and not all extremes, but soon.
        return await _rows(session, job_id, first, last + 1, every=-(-(last + 1 - first) // MOST_ROWS))
    steps = width(level)
    begin, stop = -(-first // steps), (last + 1) // steps
    if begin >= stop:
        return await _cover(session, job_id, level - 1, first, last)
    found = {one.first // steps: one for one in await _read_level(session, job_id, level, begin, stop)}
    covered = list(found.values())
    if first < begin * steps:
        covered += await _cover(session, job_id, level - 1, first, begin * steps - 1)
    if stop * steps <= last:
        covered += await _cover(session, job_id, level - 1, stop * steps, last)
    for missing in _gaps(begin, stop, sorted(found)):
        start, end = missing.start * steps, missing.stop * steps
        if level == 0 or await _has_rows(session, job_id, start, end):  # below it the rows themselves are read
            covered += await _cover(session, job_id, level - 1, start, end - 1)
    return covered


def _gaps(start: int, stop: int, numbers: Iterable[int]) -> Iterator[range]:
    """What of start..stop lies between these numbers, which are in order. Between two steps there may be any number."""
    for number in (*numbers, stop):
        if start < number:
            yield range(start, number)
        start = number + 1


def _runs(numbers: Iterable[int]) -> Iterator[range]:
    """Runs of consecutive numbers."""
    run: range | None = None
    for number in numbers:
        if run is not None and number == run.stop:
            run = range(run.start, number + 1)
        else:
            if run is not None:
                yield run
            run = range(number, number + 1)
    if run is not None:
        yield run


async def _has_rows(session: AsyncSession, job_id: str, start: int, stop: int) -> bool:
    there = select(Metric.step).where(Metric.job_id == job_id, Metric.step >= start, Metric.step < stop)
    return await session.scalar(there.limit(1)) is not None


async def _rows(session: AsyncSession, job_id: str, start: int, stop: int, every: int = 1) -> list[Stretch]:
    """Each row as a stretch of one step."""
    return of_rows(await _read_rows(session, job_id, start, stop, every), 1)


async def _rows_beside(session: AsyncSession, job_id: str, start: int, stop: int, fresh: Sequence[Row]) -> list[Row]:
    """All rows of these steps in order, of which those at hand are not read again."""
    first, last = fresh[0][0], fresh[-1][0]
    if last - first + 1 != len(fresh):
        return await _read_rows(session, job_id, start, stop)
    before = await _read_rows(session, job_id, start, min(first, stop)) if start < first else []
    after = await _read_rows(session, job_id, max(last + 1, start), stop) if last + 1 < stop else []
    return [*before, *(row for row in fresh if start <= row[0] < stop), *after]


async def _read_rows(session: AsyncSession, job_id: str, start: int, stop: int, every: int = 1) -> list[Row]:
    statement = select(Metric.step, Metric.time, Metric.values).where(Metric.job_id == job_id)
    statement = statement.where(Metric.step >= start, Metric.step < stop)
    if every > 1:
        statement = statement.where(Metric.step % every == 0)
    found = await session.execute(statement.order_by(Metric.step))
    return [(step, time, values) for step, time, values in found]


async def _read_level(session: AsyncSession, job_id: str, level: int, start: int, stop: int) -> list[Stretch]:
    table = MetricRollup
    columns = select(table.bucket, table.extremes).where(table.job_id == job_id, table.level == level)
    found = await session.execute(columns.where(table.bucket >= start, table.bucket < stop).order_by(table.bucket))
    return [_decode(bucket, level, extremes) for bucket, extremes in found]


async def _store(session: AsyncSession, job_id: str, level: int, stretches: list[Stretch]) -> None:
    insert = insert_for(session, MetricRollup)
    rows = [
        {"job_id": job_id, "level": level, "bucket": one.first // width(level), "extremes": _encode(one)}
        for one in stretches
    ]
    await session.execute(
        insert.on_conflict_do_update(
            index_elements=["job_id", "level", "bucket"], set_={"extremes": insert.excluded["extremes"]}
        ),
        rows,
    )


def _encode(stretch: Stretch) -> dict[str, list[list[float]]]:
    return {
        name: [list(low), list(stretch.high[name]), *_told(stretch.total[name])] for name, low in stretch.low.items()
    }


def _told(total: Total) -> list[list[float]]:
    """Nothing where it is more than a float holds, which JSON has no number for."""
    return [list(total)] if math.isfinite(total[0]) else []


def _decode(bucket: int, level: int, extremes: dict[str, Any]) -> Stretch:
    steps = width(level)
    stretch = Stretch(bucket * steps)
    for name, (low, high, *total) in extremes.items():
        # Of a bucket from before totals were kept the middle is all that is known of its mean.
        stretch.add(
            name, tuple(low), tuple(high), tuple(total[0]) if total else ((low[0] / 2 + high[0] / 2) * steps, steps)
        )
    return stretch
