"""What keeps granted workers from their places: others hold slots of the same Ray, or nodes take no new workers.

It explains, and decides nothing.

Grants do not go by what others hold: it is known some seconds late, and may be free in a moment. Ray places a worker
as soon as there is room, and until then it is one that starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncSession

from service.clusters import is_online
from service.context import Context
from service.models import Cluster, Job
from service.scheduling import sentences
from service.scheduling.capacity import Free, NodeView
from service.scheduling.observe import cluster_view, observe_placed
from service.scheduling.view import Placed
from service.states import WITH_CONTROLLER

_LEAST = 0.01
"""Of a slot: sums of tenths are not exact."""


@dataclass(frozen=True)
class NodeUse:
    """A node as its agent told: what it has, and what is taken of it, by whomever."""

    node_id: str
    cpu: float
    gpu: float
    cpu_used: float
    gpu_used: float


async def why_unplaced(session: AsyncSession, context: Context, job: Job, now: datetime) -> str | None:
    """Why workers that a job was granted have no place; None: they have, or nothing is in their way."""
    if job.placed_at is None or job.status not in WITH_CONTROLLER:
        return None
    cluster = await session.get(Cluster, job.cluster_id)
    if cluster is None or not is_online(cluster, context.settings, now):
        return None
    placed = await observe_placed(session, cluster, now)
    view = cluster_view(cluster)
    takes_work = {node.node_id for node in view.nodes}
    nodes = [
        NodeUse(one["node_id"], one["cpu"], one.get("gpu", 0), one.get("cpu_used", 0), one.get("gpu_used", 0))
        for one in cluster.nodes
        if one["node_id"] in takes_work
    ]
    own = next((one for one in placed if one.job_id == job.id), None)
    return None if own is None else decide_unplaced(own, placed, nodes, view.shut)


def decide_unplaced(
    job: Placed, placed: Sequence[Placed], nodes: Sequence[NodeUse], shut: Sequence[str] = ()
) -> str | None:
    """The sentence, where not all workers of the job have room, and others or the nodes that are shut are the reason.

    Args:
        job: whose workers.
        placed: all that hold slots of the cluster.
        nodes: those that take new workers.
        shut: the names of the others.
    """
    missing = job.granted + job.granted_standby - len(job.nodes)
    if job.is_leaving or missing <= 0:
        return None
    left = Free(NodeView(node.node_id, node.cpu - node.cpu_used, node.gpu - node.gpu_used) for node in nodes)
    fitting = left.fits(job.shape)
    if fitting >= missing:
        return None
    cpu = sum(_beyond(node.cpu_used, [_count(one, node) * one.shape.cpu for one in placed]) for node in nodes)
    gpu = sum(_beyond(node.gpu_used, [_count(one, node) * one.shape.gpu for one in placed]) for node in nodes)
    if job.shape.gpu > 0 and gpu > _LEAST:
        return sentences.held_by_others(missing - fitting, gpu, sum(node.gpu for node in nodes), "GPU")
    if job.shape.cpu > 0 and cpu > _LEAST:
        return sentences.held_by_others(missing - fitting, cpu, sum(node.cpu for node in nodes), "CPU slot")
    return sentences.no_open_place(missing - fitting, shut) if shut else None


def _count(job: Placed, node: NodeUse) -> int:
    return job.nodes.count(node.node_id)


def _beyond(used: float, ours: Sequence[float]) -> float:
    return max(0.0, used - sum(ours))
