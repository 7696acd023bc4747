"""Metric rows: one a step, the newest attempt's; tailed by the order of ingest."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from sqlalchemy import Insert, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.cluster import MetricRow
from service.clock import parse_or, to_rfc3339
from service.database import insert_of
from service.models import Base, Job, Metric
from service.rollups import roll_up

MOST_VALUES = 100_000
"""Of a page or a chart: a job may log a thousand names in each step."""


async def store_metrics(
    session: AsyncSession, job: Job, attempt: int, rows: Sequence[MetricRow], *, now: datetime
) -> None:
    """Insert or replace the rows of a batch; a step that stands twice in it counts with its last.

    The job is locked: its positions are given out here.
    """
    newest = {row.step: row for row in rows}
    if not newest:
        return
    first = job.metric_pos + 1
    job.metric_pos += len(newest)
    values: list[dict[str, Any]] = [
        {
            "job_id": job.id,
            "step": row.step,
            "position": first + index,
            "time": parse_or(row.time, now),
            "generation": row.generation,
            "workers": row.workers,
            "attempt": attempt,
            "values": finite(row.values),
        }
        for index, row in enumerate(sorted(newest.values(), key=lambda row: row.step))
    ]
    await _upsert(session, values)
    await roll_up(session, job.id, [(row["step"], row["time"], row["values"]) for row in values])
    job.latest_metrics = finite(newest[max(newest)].values)


def most_rows(job: Job, names: Collection[str] = ()) -> int:
    """How many rows of a job are read at once: fewer where they are wide."""
    return max(1, MOST_VALUES // max(1, len(names) or len(job.latest_metrics or ())))


async def list_metrics(session: AsyncSession, job_id: str, after: int, limit: int) -> list[Metric]:
    """The rows behind an ingest position, in its order."""
    statement = select(Metric).where(Metric.job_id == job_id, Metric.position > after)
    return list((await session.scalars(statement.order_by(Metric.position).limit(limit))).all())


async def newest_metrics(session: AsyncSession, job_id: str, limit: int) -> list[Metric]:
    """The rows with the highest ingest positions, in its order."""
    statement = select(Metric).where(Metric.job_id == job_id).order_by(Metric.position.desc()).limit(limit)
    return list((await session.scalars(statement)).all())[::-1]


async def last_metric_step(session: AsyncSession, job_id: str) -> int:
    """The highest step with a row; 0 where there is none."""
    return (await session.scalar(select(func.max(Metric.step)).where(Metric.job_id == job_id))) or 0


def metric_json(row: Metric, names: Collection[str] = ()) -> dict[str, Any]:
    """The row as the API shows it, with the named values only."""
    values = {name: value for name, value in row.values.items() if not names or name in names}
    return {
        "position": row.position,
        "step": row.step,
        "time": to_rfc3339(row.time),
        "generation": row.generation,
        "workers": row.workers,
        "attempt": row.attempt,
        "values": values,
    }


def finite(values: dict[str, float]) -> dict[str, float | None]:
    """JSON knows no infinity: what is not finite becomes null, a gap in a chart."""
    if all(map(math.isfinite, values.values())):
        return {**values}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


async def _upsert(session: AsyncSession, values: list[dict[str, Any]]) -> None:
    # Past the session, which would look at every row once more. One statement with parameters, not one with all values
    # in it: the latter would be compiled anew every time.
    connection = await session.connection()
    await connection.execute(_upsert_into(connection.dialect.name), values)


@cache
def _upsert_into(dialect: str) -> Insert:
    """Made once: to put it together takes as long as to run it."""
    table = Base.metadata.tables[Metric.__tablename__]
    statement = insert_of(dialect, table)
    columns = ("position", "time", "generation", "workers", "attempt", "values")
    return statement.on_conflict_do_update(
        index_elements=["job_id", "step"],
        set_={name: statement.excluded[name] for name in columns},
        where=table.c.attempt <= statement.excluded["attempt"],
    )
