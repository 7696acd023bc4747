"""Nodes of clusters: what is there, and which an admin takes out of service.

A marked node takes no new workers: the scheduler does not count its slots, and controllers place nothing there. One
that is drained also loses the workers it has: for each of them a drain is asked for, as a person would ask for it. A
node that Ray itself lets go (a preemption notice) is treated alike, and its jobs save a checkpoint besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.wire.events import EventKind
from service.access import Principal
from service.attempts import is_newest_attempt
from service.clock import to_rfc3339
from service.clusters import is_on_node
from service.context import Context
from service.errors import not_found
from service.events import append_event
from service.models import Attempt, AuditEntry, Cluster, Job
from service.notify import ALL_JOBS, SCHEDULER, desired_topic, notify
from service.states import WITH_CONTROLLER
from service.worker_actions import Listed, add_action, let_node_go, listed, withdraw_drains

CORDONED, DRAINING = "cordoned", "draining"
RAY = "ray"
_LEAVING = ("pausing", "stopping")
FAR_S = 1e9
REPORTS_DIFFER = timedelta(seconds=5)
"""How far two reports of one deadline lie apart: each says how many seconds are left, and travels for a while."""


@dataclass(frozen=True)
class OnNode:
    """The workers of a job, as far as nodes are concerned."""

    job_id: str
    name: str
    project: str
    status: str
    cluster_id: str
    workers: Sequence[Mapping[str, Any]]
    acted_on: Mapping[str, Listed]
    """Workers that are to leave or to be killed already, and how."""
    cpu: float = 1.0
    gpu: float = 0.0
    """What one of its workers takes."""


@dataclass(frozen=True)
class WorkerDrain:
    """A worker is to leave its node."""

    job_id: str
    worker_id: str
    node_id: str
    node_name: str
    by: str
    """`RAY`: the cluster takes the node away, whoever else drains it."""
    due_at: datetime | None

    def is_news(self, pending: Listed | None) -> bool:
        """Whether it says more than what the worker is asked for already."""
        if pending is None:
            return True
        if pending.kind != "drain" or self.by != RAY:
            return False
        if not pending.is_node_let_go or self.due_at is None:
            return not pending.is_node_let_go
        return pending.deadline is None or self.due_at < pending.deadline - REPORTS_DIFFER


# --- decisions --------------------------------------------------------------------------------------------------------


def is_draining(node: Mapping[str, Any], marks: Mapping[str, Any]) -> bool:
    """Whether its workers are to leave."""
    return bool(node.get("draining")) or marks.get(node["node_id"], {}).get("state") == DRAINING


def name_of(node: Mapping[str, Any]) -> str:
    """For people."""
    return str(node.get("hostname") or node.get("address") or node["node_id"])


def decide_drains(clusters: Iterable[Cluster], jobs: Iterable[OnNode]) -> list[WorkerDrain]:
    """The workers on draining nodes that nobody has asked to leave yet, or not to leave so soon."""
    leaving = {
        cluster.id: [(cluster, node) for node in cluster.nodes if is_draining(node, cluster.node_marks)]
        for cluster in clusters
    }
    drains = [
        (
            job.acted_on.get(worker["worker_id"]),
            worker,
            WorkerDrain(
                job.job_id,
                worker["worker_id"],
                node["node_id"],
                name_of(node),
                _drained_by(cluster, node),
                _due_at(cluster, node),
            ),
        )
        for job in jobs
        if job.status not in _LEAVING
        for cluster, node in leaving.get(job.cluster_id, [])
        for worker in job.workers
        if is_on_node(worker, node)
    ]
    return [
        drain
        for pending, worker, drain in drains
        if drain.is_news(pending) and (pending is not None or worker.get("state") != "draining")
    ]


def _drained_by(cluster: Cluster, node: Mapping[str, Any]) -> str:
    # The mark may be older, and of a person: what Ray takes away goes nevertheless.
    return RAY if node.get("draining") else str(cluster.node_marks[node["node_id"]]["by"])


def _due_at(cluster: Cluster, node: Mapping[str, Any]) -> datetime | None:
    left_s = node.get("drain_within_s") if node.get("draining") else None
    # A deadline in millions of years is how Ray says that there is none; no date holds it.
    return None if left_s is None or left_s > FAR_S else cluster.last_seen + timedelta(seconds=left_s)


def node_json(
    node: Mapping[str, Any], marks: Mapping[str, Any], jobs: Sequence[OnNode], caller: Principal
) -> dict[str, Any]:
    """A node as the API shows it; jobs of others are only counted."""
    mark = marks.get(node["node_id"], {})
    counts = [(job, sum(is_on_node(worker, node) for worker in job.workers)) for job in jobs]
    left = sum(count for _, count in counts)
    state = str(mark.get("state", "ready"))
    if is_draining(node, marks):
        state = DRAINING if left else "drained"
    visible = caller.visible_projects
    return {
        "node_id": node["node_id"],
        "address": node["address"],
        "hostname": node.get("hostname", ""),
        "cpu": node["cpu"],
        "cpu_used": node.get("cpu_used", 0),
        "gpu": node.get("gpu", 0),
        "gpu_used": node.get("gpu_used", 0),
        "memory": node.get("memory"),
        "accelerators": node.get("accelerators") or [],
        "state": state,
        "by": RAY if node.get("draining") else mark.get("by"),
        "since": mark.get("since"),
        "drain_within_s": node.get("drain_within_s"),
        "workers_left": left,
        "jobs": [
            {
                "job_id": job.job_id,
                "name": job.name,
                "workers": count,
                "cpu": count * job.cpu,
                "gpu": count * job.gpu,
            }
            for job, count in counts
            if count and (visible is None or job.project in visible)
        ],
    }


# --- use-cases --------------------------------------------------------------------------------------------------------


async def list_nodes(context: Context, cluster_id: str, caller: Principal) -> list[dict[str, Any]]:
    """The living nodes of a cluster, as its agent last reported them.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        cluster = await session.get(Cluster, cluster_id)
        if cluster is None:
            raise not_found("cluster", cluster_id[:80])
        jobs = await _jobs_on(session, [cluster.id])
    return [node_json(node, cluster.node_marks, jobs, caller) for node in cluster.nodes]


async def get_node(context: Context, node_id: str, caller: Principal) -> dict[str, Any]:
    """One node.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        cluster, node = _find((await session.scalars(select(Cluster))).all(), node_id)
        jobs = await _jobs_on(session, [cluster.id])
    return node_json(node, cluster.node_marks, jobs, caller)


async def mark_node(context: Context, node_id: str, state: str | None, caller: Principal) -> dict[str, Any]:
    """Cordon or drain a node, or (None) let it take work again, which ends its drain. The same again changes nothing.

    Raises:
        ServiceError: not_found.
    """
    now = context.clock()
    async with context.database.write() as session:
        clusters = (await session.scalars(select(Cluster).order_by(Cluster.id).with_for_update())).all()
        cluster, node = _find(clusters, node_id)
        before = cluster.node_marks.get(node_id, {}).get("state")
        if before != state:
            # Of nodes that are gone no mark is kept: Ray never gives an id again.
            present = {one["node_id"] for one in cluster.nodes}
            marks = {name: mark for name, mark in cluster.node_marks.items() if name in present and name != node_id}
            if state is not None:
                marks[node_id] = {"state": state, "by": caller.name, "since": to_rfc3339(now)}
            cluster.node_marks = marks
            withdraws = state != DRAINING and not node.get("draining")
            await _tell_jobs(session, cluster, node_id, now, withdraws=withdraws)
            detail = {"cluster": cluster.id, "node": node_id, "name": name_of(node), "from": before, "to": state}
            session.add(AuditEntry(time=now, actor=caller.name, action="node.marked", detail=detail))
            notify(session, SCHEDULER, ALL_JOBS)
    return await get_node(context, node_id, caller)


async def wait_drained(context: Context, node_id: str, caller: Principal, wait_s: float) -> dict[str, Any]:
    """The node once no worker is left on it, or as it stands after the wait.

    Raises:
        ServiceError: not_found.
    """
    return await context.hub.wait_until(
        [ALL_JOBS], lambda: get_node(context, node_id, caller), lambda node: not node["workers_left"], wait_s
    )


async def has_drains(session: AsyncSession) -> bool:
    """Whether workers sit on draining nodes that nobody has asked to leave."""
    return bool(await _find_drains(session, select(Cluster)))


async def settle_drains(session: AsyncSession, now: datetime) -> None:
    """Ask the workers on draining nodes to leave.

    Locks clusters, then jobs, as whoever marks a node does: an uncordon comes before, or finds the drains to withdraw.
    """
    drains = await _find_drains(session, select(Cluster).with_for_update(read=True))
    ids = sorted({drain.job_id for drain in drains})
    rows = select(Job).where(Job.id.in_(ids)).order_by(Job.id).with_for_update()
    for job in await session.scalars(rows.execution_options(populate_existing=True)):
        if job.status not in WITH_CONTROLLER:
            continue
        acted_on = _acted_on(job.desired_actions)
        asked = [(drain, acted_on.get(drain.worker_id)) for drain in drains if drain.job_id == job.id]
        news = [(drain, pending) for drain, pending in asked if drain.is_news(pending)]
        for drain, pending in news:
            await _ask_to_leave(session, job, drain, pending, now)
        if any(drain.by == RAY and not (pending and pending.is_node_let_go) for drain, pending in news):
            # The node goes whether its workers have left or not.
            job.checkpoint_request += 1
        if news:
            job.desired_version += 1
            job.revision += 1


async def _ask_to_leave(
    session: AsyncSession, job: Job, drain: WorkerDrain, pending: Listed | None, now: datetime
) -> None:
    is_node_let_go = drain.by == RAY
    because = "the cluster lets the node go" if is_node_let_go else f"{drain.by} drains the node"
    if pending is not None:
        number = pending.number
        let_node_go(session, job, pending, drain.due_at)
    else:
        by = f"{drain.by}, for {because}"
        row = await add_action(
            session,
            job,
            "drain",
            drain.worker_id,
            by=by,
            now=now,
            node_id=drain.node_id,
            due_at=drain.due_at,
            is_node_let_go=is_node_let_go,
        )
        number = row.number
    message = f"{drain.worker_id} is to leave {drain.node_name}: {because}."
    data = {"worker_id": drain.worker_id, "number": number, "by": drain.by, "node": drain.node_id}
    await append_event(session, job, EventKind.DRAIN_REQUESTED, message, now=now, data=data)


async def _tell_jobs(session: AsyncSession, cluster: Cluster, node_id: str, now: datetime, *, withdraws: bool) -> None:
    """Controllers hear which nodes to avoid; a drain that has ended asks nobody any more."""
    rows = select(Job).where(Job.cluster_id == cluster.id, Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER))
    for job in await session.scalars(rows.order_by(Job.id).with_for_update()):
        job.avoid_nodes = sorted(cluster.node_marks)
        if withdraws:
            await withdraw_drains(session, job, node_id, now)
        job.desired_version += 1
        notify(session, desired_topic(job.id))


async def _find_drains(session: AsyncSession, clusters: Select[Cluster]) -> list[WorkerDrain]:
    found = (await session.scalars(clusters.order_by(Cluster.id))).all()
    draining = [one for one in found if any(is_draining(node, one.node_marks) for node in one.nodes)]
    return decide_drains(draining, await _jobs_on(session, [one.id for one in draining])) if draining else []


async def _jobs_on(session: AsyncSession, clusters: Sequence[str]) -> list[OnNode]:
    # Columns, not rows: specs are large, and this is looked at in each round of the scheduler.
    rows = (
        select(
            Job.id,
            Job.name,
            Job.project,
            Job.status,
            Job.cluster_id,
            Attempt.workers,
            Job.desired_actions,
            Job.spec[("resources_per_worker", "cpu")].as_float(),
            Job.spec[("resources_per_worker", "gpu")].as_float(),
        )
        .join(Attempt, is_newest_attempt())
        .where(Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER), Job.cluster_id.in_(clusters))
        .order_by(Job.id)
    )
    return [
        OnNode(
            *(job_id, name, project, status, cluster_id or "", workers, _acted_on(actions)),
            cpu=1.0 if cpu is None else cpu,
            gpu=gpu or 0.0,
        )
        for job_id, name, project, status, cluster_id, workers, actions, cpu, gpu in await session.execute(rows)
    ]


def _acted_on(actions: Iterable[Mapping[str, Any]]) -> dict[str, Listed]:
    """A kill counts before a drain."""
    found = [action for action in listed(actions) if action.kind in ("drain", "kill")]
    return {action.worker_id: action for action in sorted(found, key=lambda action: action.kind == "kill")}


def _find(clusters: Sequence[Cluster], node_id: str) -> tuple[Cluster, Mapping[str, Any]]:
    for cluster in clusters:
        for node in cluster.nodes:
            if node["node_id"] == node_id:
                return cluster, node
    raise not_found("node", node_id[:80])
