"""The course of a metric in a few points, for each of many jobs at once: what a list draws beside each of them.

A page of 200 jobs costs one statement for each length of jobs that is among them, of at most POINTS rows a job, and
only the numbers leave the database. Exact charts are made by `service.rollups`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.models import Job, Metric, MetricRollup
from service.rollups import BASE, LEVELS, width
from service.views import job_json

POINTS = 32
"""Of a job, at most, and the newest: more than a line as small as a word can show."""
MOST_ROWS = 8 * BASE
"""A job with fewer steps has too few buckets to make a line of."""

Course = list[tuple[int, float]]
"""Steps, rising, and the value there."""


def level_of(step: int) -> int:
    """The finest level that covers so many steps with POINTS buckets."""
    return next((level for level in range(LEVELS) if step // width(level) <= POINTS), LEVELS - 1)


async def courses(session: AsyncSession, jobs: Sequence[Job], name: str = "loss") -> dict[str, Course]:
    """The course of a metric by job, up to the newest step; empty where it was never measured.

    A bucket counts with its mean, one from before totals were kept with the middle of its least and its greatest value.
    """
    found: dict[str, Course] = {job.id: [] for job in jobs}
    steps = {job.id: job.step for job in jobs if job.step > 0}
    short: dict[int, list[str]] = defaultdict(list)
    long: dict[int, list[str]] = defaultdict(list)
    for job_id, step in steps.items():
        if step < MOST_ROWS:
            short[-(-step // POINTS)].append(job_id)
        else:
            long[level_of(step)].append(job_id)
    for every, ids in short.items():
        last = max(steps[job_id] for job_id in ids)
        for job_id, step, value in await _read_rows(session, ids, name, every, last):
            if step < steps[job_id]:
                found[job_id].append((step, value))
    for level, ids in long.items():
        last = max(steps[job_id] for job_id in ids) // width(level)
        for job_id, bucket, value in await _read_buckets(session, ids, name, level, last):
            # Later buckets are of steps that are being trained again.
            if (bucket + 1) * width(level) <= steps[job_id]:
                found[job_id].append((bucket * width(level) + width(level) // 2, value))
    for job in jobs:
        newest = job.latest_metrics.get(name)
        if job.step > 0 and newest is not None:
            found[job.id].append((job.step, float(newest)))
    return found


async def list_json(session: AsyncSession, jobs: Sequence[Job], *, with_history: bool) -> list[dict[str, Any]]:
    """The jobs as a list shows them; with the course of their loss where that is asked for."""
    if not with_history:
        return [job_json(job) for job in jobs]
    found = await courses(session, jobs)
    return [{**job_json(job), "loss_history": found[job.id]} for job in jobs]


async def _read_rows(
    session: AsyncSession, ids: list[str], name: str, every: int, last: int
) -> list[tuple[str, int, float]]:
    """Up to the last step of them all: rows of later ones are left over where training went back."""
    value = Metric.values[name].as_float()
    statement = select(Metric.job_id, Metric.step, value).where(
        Metric.job_id.in_(ids), Metric.step <= last, Metric.step % every == 0
    )
    found = await session.execute(statement.order_by(Metric.job_id, Metric.step))
    return [(job_id, step, value) for job_id, step, value in found if value is not None]


async def _read_buckets(
    session: AsyncSession, ids: list[str], name: str, level: int, last: int
) -> list[tuple[str, int, float]]:
    table = MetricRollup
    places = ((0, 0), (1, 0), (2, 0), (2, 1))
    numbers = [table.extremes[(name, *place)].as_float() for place in places]
    statement = select(table.job_id, table.bucket, *numbers).where(
        table.job_id.in_(ids), table.level == level, table.bucket <= last
    )
    found = await session.execute(statement.order_by(table.job_id, table.bucket))
    return [
        (job_id, bucket, total / count if count else (least + most) / 2)
        for job_id, bucket, least, most, total, count in found
        if least is not None
    ]
