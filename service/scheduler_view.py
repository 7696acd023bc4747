"""What the scheduler decides from, read from the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from service.clusters import is_on_node, is_online
from service.context import Context
from service.models import Attempt, Cluster, Job
from service.scheduler import ClusterView, Holding, NodeView, Shape, View, Waiting
from service.states import WITH_CONTROLLER


async def observe_view(session: AsyncSession, queued: Sequence[Job], context: Context, now: datetime) -> View:
    """Read what the scheduler decides from."""
    clusters = (await session.scalars(select(Cluster).order_by(Cluster.id))).all()
    online = [cluster for cluster in clusters if is_online(cluster, context.settings, now)]
    statement = (
        select(Job, Attempt.workers)
        .outerjoin(Attempt, (Attempt.job_id == Job.id) & (Attempt.number == Job.attempt))
        .where(Job.status.in_(WITH_CONTROLLER))
    )
    active = (await session.execute(statement)).all()
    nodes_of = {cluster.id: cluster.nodes for cluster in online}
    return View(
        clusters=tuple(cluster_view(cluster) for cluster in online),
        holdings=tuple(_holding(job, workers or [], nodes_of.get(job.cluster_id or "", [])) for job, workers in active),
        waiting=tuple(_waiting(job) for job in queued),
    )


def cluster_view(cluster: Cluster) -> ClusterView:
    """The nodes of a cluster that take work."""
    nodes = (node for node in cluster.nodes if not node.get("draining", False))
    return ClusterView(cluster.id, tuple(NodeView(node["node_id"], node["cpu"], node.get("gpu", 0)) for node in nodes))


def _holding(job: Job, workers: list[dict[str, Any]], nodes: list[dict[str, Any]]) -> Holding:
    alive = [worker for worker in workers if worker.get("state") != "gone"]
    placed = tuple(
        (node["node_id"], count) for node in nodes if (count := sum(is_on_node(worker, node) for worker in alive))
    )
    # Granted slots that the job does not use yet are still its own: its workers are on their way.
    held = max(job.workers + job.joining, len(alive), min(job.granted_workers, job.desired_workers + _spares(job)))
    return Holding(job.cluster_id or "", job.name, shape_of(job), held, placed)


def _waiting(job: Job) -> Waiting:
    timeout = job.spec.get("limits", {}).get("queue_timeout")
    return Waiting(
        job_id=job.id,
        name=job.name,
        shape=shape_of(job),
        min_workers=job.min_workers,
        desired_workers=job.desired_workers,
        spare_workers=_spares(job),
        priority=job.priority,
        queued_at=job.queued_at,
        queue_timeout=None if timeout is None else timedelta(seconds=timeout),
    )


def _spares(job: Job) -> int:
    """Workers that the job keeps warm besides those that train."""
    return int(job.spec.get("workers", {}).get("standby", 0))


def shape_of(job: Job) -> Shape:
    """What one worker of the job takes."""
    resources = job.spec.get("resources_per_worker", {})
    return Shape(cpu=float(resources.get("cpu", 1)), gpu=float(resources.get("gpu", 0)))
