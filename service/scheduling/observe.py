"""Reads what the scheduler decides from: a cluster's nodes, the jobs that hold slots, and the head of the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import Row, Select, select, tuple_
from sqlalchemy.ext.asyncio import AsyncSession

from service.attempts import is_newest_attempt
from service.clusters import is_on_node, is_online
from service.context import Context
from service.models import IS_QUEUED, Attempt, Cluster, Job, Project
from service.scheduling.capacity import ClusterView, NodeView, Shape
from service.scheduling.guard import Passed, pass_over
from service.scheduling.measure import measured_rates
from service.scheduling.view import Placed, View, Waiting
from service.states import WITH_CONTROLLER

T = TypeVar("T")

LEAVING = ("pausing", "stopping")
FINE = 2**25
"""So many pieces that each worker more has fewer of them, whatever the count."""

# Only what is decided from: a spec is some kilobytes of JSON, and the queue may be long.
_COMMON = (
    Job.id,
    Job.name,
    Job.project,
    Job.priority,
    Job.min_workers,
    Job.max_workers,
    Job.desired_workers,
    Job.ranked_at,
    Job.scheduling,
    Job.spec[("resources_per_worker", "cpu")].as_float().label("cpu"),
    Job.spec[("resources_per_worker", "gpu")].as_float().label("gpu"),
    Job.spec[("resources_per_worker", "memory")].as_float().label("memory"),
    Job.spec[("resources_per_worker", "accelerator_type")].as_string().label("accelerator"),
    # As texts: of a number that is out of a column's range PostgreSQL would refuse the whole query, not its job.
    Job.spec[("workers", "standby")].as_string().label("standby"),
    Job.spec[("workers", "autoscale")].as_string().label("autoscale"),
    Job.spec[("scheduling", "preemptible")].as_boolean().label("is_preemptible"),
    Job.spec[("batch", "num_microbatches")].as_string().label("num_microbatches"),
)
_QUEUED = (
    *_COMMON,
    Job.queued_at,
    Job.queue_position,
    Job.spec[("limits", "queue_timeout")].as_float().label("queue_timeout"),
)
_PLACED = (
    *_COMMON,
    Job.status,
    Job.cluster_id,
    Job.workers,
    Job.joining,
    Job.granted_workers,
    Job.granted_standby,
    Job.granted_at,
    Job.placed_at,
    Job.wished_at,
    Job.preempted_at,
    Job.is_backfilled,
    Job.pause_seconds,
    Job.rates,
    Attempt.workers.label("reported"),
)


@dataclass(frozen=True)
class Seen:
    """A view, and what the jobs in it were told before."""

    view: View
    told: Mapping[str, tuple[int | None, str]]
    """Position in the queue (None: none) and sentence, by job."""
    fallen: tuple[str, ...] = ()
    """Queued jobs that have a position but are not in the view: others came before them."""
    has_more: bool = False
    """The queue goes on behind the view."""
    passed: Passed = field(default_factory=list)
    """Jobs that are not in the view, because their rows cannot be read."""


async def observe(
    session: AsyncSession, context: Context, now: datetime, limit: int, passed_over: frozenset[str] = frozenset()
) -> Seen:
    """Read the clusters, who holds slots, and at most `limit` queued jobs, besides those whose time is over.

    With projects to pass over, at most `limit` more behind these, of other projects.
    """
    clusters = (await session.scalars(select(Cluster).order_by(Cluster.id))).all()
    online = {cluster.id: cluster for cluster in clusters if is_online(cluster, context.settings, now)}
    placed = (await session.execute(_placed_rows())).all()
    held = {row.id for row in placed}
    head = (await session.execute(_queued_rows().order_by(Job.ranked_at, Job.id).limit(limit + 1))).all()
    overdue: list[Row[Any]] = []
    fallen: list[str] = []
    in_line = {row.id for row in head[:limit]}
    if has_more := len(head) > limit:
        head = head[:limit]
        if passed_over:
            behind = tuple_(Job.ranked_at, Job.id) > tuple_(head[-1].ranked_at, head[-1].id)
            others = _queued_rows().where(behind, Job.project.not_in(passed_over)).order_by(Job.ranked_at, Job.id)
            rest = (await session.execute(others.limit(limit + 1))).all()
            has_more = len(rest) > limit
            head = [*head, *rest[:limit]]
        seen = {row.id for row in head}
        # Each is ordered by what its own index holds: the few are found without a walk along the queue.
        late = _queued_rows().where(Job.deadline_at <= now).order_by(Job.deadline_at)
        overdue = [row for row in await session.execute(late) if row.id not in seen]
        positioned = select(Job.id).where(Job.queue_position.is_not(None), IS_QUEUED)
        fallen = [job_id for job_id in await session.scalars(positioned) if job_id not in seen]
    # Whoever went back to the queue since `placed` was read, is looked at in the next round: it must not start beside
    # what is decided about the slots that it held.
    queued = [row for row in (*head, *overdue) if row.id not in held]
    told = {row.id: (None, row.scheduling) for row in placed}
    told |= {row.id: (row.queue_position, row.scheduling) for row in queued}
    passed: Passed = []
    view = View(
        clusters=tuple(cluster_view(cluster) for cluster in online.values()),
        placed=tuple(_readable(placed, lambda row: _placed(row, online.get(row.cluster_id or ""), now), True, passed)),
        waiting=tuple(_readable(queued, lambda row: _waiting(row, has_place=row.id in in_line), False, passed)),
        max_slots=await _quotas(session),
        is_settled=context.heartbeat.why_unsettled(now) is None,
    )
    return Seen(view, told, tuple(fallen), has_more, passed)


async def observe_placed(session: AsyncSession, cluster: Cluster, now: datetime) -> tuple[Placed, ...]:
    """The jobs that hold slots of a cluster, but for those that cannot be read."""
    rows = (await session.execute(_placed_rows().where(Job.cluster_id == cluster.id))).all()
    return tuple(_readable(rows, lambda row: _placed(row, cluster, now), True, []))


def _readable(rows: Sequence[Row[Any]], read: Callable[[Row[Any]], T], is_placed: bool, passed: Passed) -> Iterator[T]:
    """The jobs of the rows; those that cannot be read are passed over."""
    for row in rows:
        try:
            yield read(row)
        except (ArithmeticError, LookupError, TypeError, ValueError) as fault:
            passed.append(pass_over(row.id, is_placed, fault))


def cluster_view(cluster: Cluster) -> ClusterView:
    """The nodes of a cluster that take work, and the names of the others."""
    shut = [node for node in cluster.nodes if node.get("draining", False) or node["node_id"] in cluster.node_marks]
    nodes = (node for node in cluster.nodes if node not in shut)
    return ClusterView(
        cluster.id,
        tuple(_node_view(node) for node in nodes),
        tuple(sorted(node.get("hostname") or node["address"] for node in shut)),
    )


def _node_view(node: Mapping[str, Any]) -> NodeView:
    types = node.get("accelerators")
    known = None if types is None else frozenset(types)
    return NodeView(node["node_id"], node["cpu"], node.get("gpu", 0), node.get("memory"), known)


def shape_of(job: Job) -> Shape:
    """What one worker of the job takes."""
    resources = job.spec.get("resources_per_worker", {})
    return Shape(
        cpu=float(resources.get("cpu", 1)),
        gpu=float(resources.get("gpu", 0)),
        memory=float(resources.get("memory") or 0),
        accelerator=resources.get("accelerator_type"),
    )


def _placed_rows() -> Select[Any]:
    return (
        select(*_PLACED)
        .outerjoin(Attempt, is_newest_attempt())
        .where(Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER))
    )


async def _quotas(session: AsyncSession) -> dict[str, int]:
    limited = select(Project.name, Project.max_slots).where(Project.max_slots.is_not(None))
    return {row.name: row.max_slots for row in await session.execute(limited)}


def _queued_rows() -> Select[Any]:
    return select(*_QUEUED).where(IS_QUEUED)


def _common(row: Row[Any]) -> dict[str, Any]:
    return {
        "job_id": row.id,
        "name": row.name,
        "shape": Shape(1.0 if row.cpu is None else row.cpu, row.gpu or 0.0, row.memory or 0.0, row.accelerator),
        "min_workers": row.min_workers,
        "max_workers": row.max_workers,
        "wish": min(max(row.desired_workers, row.min_workers), row.max_workers),
        "standby": int(row.standby or 0),
        "priority": row.priority,
        "is_preemptible": row.is_preemptible is not False,
        "autoscale": row.autoscale or "off",
        "num_microbatches": _pieces(row.num_microbatches, row.max_workers),
        "project": row.project,
    }


def _pieces(resolved: str | None, max_workers: int) -> int:
    """In how many pieces a step is shared out. Only jobs whose program cuts its own batch have it not resolved: there
    every worker more makes a step shorter.
    """
    return FINE if resolved == "auto" else int(resolved or max_workers)


def _waiting(row: Row[Any], *, has_place: bool) -> Waiting:
    timeout = None if row.queue_timeout is None else timedelta(seconds=row.queue_timeout)
    more = {"queued_at": row.queued_at, "queue_timeout": timeout, "kept_rank": row.ranked_at, "has_place": has_place}
    return Waiting(**_common(row), **more)


def _placed(row: Row[Any], cluster: Cluster | None, now: datetime) -> Placed:
    alive = [worker for worker in row.reported or [] if worker.get("state") != "gone"]
    # By rank; spares and joiners, which have none, are the last, and the first to leave.
    alive.sort(key=lambda worker: (worker.get("rank") is None, worker.get("rank") or 0))
    places = [_node_of(worker, cluster) for worker in alive]
    return Placed(
        **_common(row),
        cluster_id=row.cluster_id or "",
        granted=row.granted_workers,
        granted_standby=row.granted_standby,
        held=max(row.workers + row.joining, len(alive)),
        nodes=tuple(place for place in places if place is not None),
        is_leaving=row.status in LEAVING or row.preempted_at is not None,
        placed_at=row.placed_at or now,
        granted_at=row.granted_at or row.placed_at or now,
        wished_at=row.wished_at,
        pause_s=row.pause_seconds,
        rates=measured_rates(row.rates),
        is_backfilled=row.is_backfilled,
        ranked_at=row.ranked_at,
    )


def _node_of(worker: dict[str, Any], cluster: Cluster | None) -> str | None:
    nodes = cluster.nodes if cluster is not None else []
    return next((node["node_id"] for node in nodes if is_on_node(worker, node)), None)
