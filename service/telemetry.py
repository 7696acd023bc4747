"""What Prometheus is told: the counters of this process, and gauges read from the database when it asks.

With replicas, counters are summed over them; gauges say the same everywhere, so take their maximum.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.status import Status
from service.clusters import is_online
from service.context import Context
from service.counters import REGISTRY
from service.models import IS_ENDED, IS_NOT_FINAL, IS_QUEUED, Cluster, Job

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def expose(context: Context) -> bytes:
    """All of it in Prometheus' text format."""
    async with context.database.read() as session:
        gauges = await _gauges(session, context)
    registry = CollectorRegistry()
    for name, help_text, labels, values in gauges:
        gauge = Gauge(name, help_text, labels, registry=registry)
        for of, value in values.items():
            (gauge.labels(*of) if labels else gauge).set(value)
    return generate_latest(registry) + generate_latest(REGISTRY)


async def _gauges(session: AsyncSession, context: Context) -> list[tuple[str, str, list[str], dict[Any, float]]]:
    now = context.clock()
    jobs = {(str(status),): 0.0 for status in Status}
    for some in (IS_ENDED, IS_NOT_FINAL):
        counted = select(Job.status, func.count()).where(Job.deleted_at.is_(None), some).group_by(Job.status)
        jobs |= {(status,): float(count) for status, count in await session.execute(counted)}
    sums = select(func.sum(Job.workers), func.sum(Job.joining), func.sum(Job.desired_workers))
    is_working = Job.placed_at.is_not(None) & Job.status.in_(("running", "recovering", "pausing"))
    working = (await session.execute(sums.where(is_working))).one()
    oldest = await session.scalar(select(func.min(Job.queued_at)).where(IS_QUEUED))
    deleted = await session.scalar(select(func.count()).where(Job.deleted_at.is_not(None)))
    clusters = (await session.scalars(select(Cluster))).all()
    online = {(cluster.id,): float(is_online(cluster, context.settings, now)) for cluster in clusters}
    slots = {(cluster.id, kind): _slots(cluster, kind) for cluster in clusters for kind in ("total", "used")}
    workers = dict(
        zip((("training",), ("joining",), ("desired",)), (float(part or 0) for part in working), strict=True)
    )
    return [
        ("rubato_jobs", "Jobs by status.", ["status"], jobs),
        ("rubato_workers", "Workers of running jobs.", ["state"], workers),
        ("rubato_queue_oldest_seconds", "How long the oldest queued job waits.", [], {(): _age(oldest, now)}),
        ("rubato_sweep_pending_jobs", "Deleted jobs that the sweep has not finished.", [], {(): float(deleted or 0)}),
        ("rubato_cluster_online", "Whether an agent of the cluster spoke lately.", ["cluster"], online),
        ("rubato_cluster_cpu_slots", "CPU slots of the cluster's nodes.", ["cluster", "kind"], slots),
    ]


def _slots(cluster: Cluster, kind: str) -> float:
    return float(sum(node["cpu"] if kind == "total" else node.get("cpu_used", 0) for node in cluster.nodes))


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())
