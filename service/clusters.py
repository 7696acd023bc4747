"""Clusters as their agents describe them, and the list of jobs that should have a controller there."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding
from rubato.wire.cluster import JobToRun, SyncReply, SyncRequest
from rubato.wire.codec import to_json
from service.access import Principal
from service.attempts import LARGEST, confirm_gone, is_newest_attempt
from service.clock import to_rfc3339
from service.context import Context
from service.database import insert_for
from service.errors import ErrorKind, ServiceError
from service.leases import is_held
from service.models import IS_QUEUED, Attempt, Cluster, Job, unindexed
from service.notify import RUN_LIST, SCHEDULER, notify
from service.settings import Settings
from service.states import WITH_CONTROLLER

_CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_SYNC_WAIT_S = 10.0
"""Below the agent's lease of 15 s, which each sync renews at its start."""
SHOWN_OF_QUEUE = 200
"""Pages look at it every few seconds."""


def check_cluster_id(cluster_id: str) -> None:
    """Refuse what no configuration would name a cluster.

    Raises:
        ServiceError: invalid_request.
    """
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise ServiceError(ErrorKind.INVALID_REQUEST, "A cluster id has 1 to 63 letters, digits, '.', '_' or '-'.")


async def sync(context: Context, cluster_id: str, request: SyncRequest, caller: Principal) -> SyncReply:
    """Take the agent's view; answer when the list is newer than the one it acted on, or the wait is over.

    Raises:
        ServiceError: forbidden (the token is another cluster's), invalid_request (numbers that are not finite).
    """
    if caller.cluster_id not in (None, cluster_id):
        raise ServiceError(
            ErrorKind.FORBIDDEN,
            f"This token speaks for the cluster {caller.cluster_id} only: start the agent with --cluster "
            f"{caller.cluster_id}, or make one by `rubato token create NAME --role cluster --cluster {cluster_id}`.",
        )
    _check_numbers(request)
    reply = await _take_view(context, cluster_id, request, of_its_own=caller.cluster_id is not None)
    if reply.acting and reply.version != request.after:
        return reply

    async def look() -> SyncReply:
        async with context.database.read() as session:
            cluster = await session.get_one(Cluster, cluster_id)
            jobs = await _jobs_to_run(session, cluster_id)
            if cluster.run_digest == _digest(jobs):
                return _reply(context, cluster, request.agent_id, jobs)
        async with context.database.write() as session:
            cluster = await session.get_one(Cluster, cluster_id, with_for_update=True)
            return await _refresh_list(context, session, cluster, request.agent_id)

    return await context.hub.wait_until(
        [RUN_LIST],
        look,
        lambda seen: seen.acting and seen.version != request.after,
        min(request.wait, MAX_SYNC_WAIT_S),
    )


async def list_clusters(context: Context, caller: Principal) -> dict[str, Any]:
    """All clusters with their nodes and what of the caller's projects runs there, and the head of these' queue."""
    now = context.clock()
    async with context.database.read() as session:
        clusters = (await session.scalars(select(Cluster).order_by(Cluster.id))).all()
        placed = select(Job.id, Job.name, Job.cluster_id, Attempt.workers).join(Attempt, is_newest_attempt())
        placed = placed.where(Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER))
        queued = select(Job.id, Job.name, Job.queue_position, Job.message).where(IS_QUEUED)
        if caller.visible_projects is not None:
            visible = unindexed(Job.project).in_(sorted(caller.visible_projects))
            placed, queued = placed.where(visible), queued.where(visible)
        jobs = (await session.execute(placed)).all()
        in_order = queued.order_by(Job.queue_position.nulls_last(), Job.id).limit(SHOWN_OF_QUEUE)
        queue = (await session.execute(in_order)).all()
    return {
        "clusters": [
            cluster_json(cluster, [tuple(job) for job in jobs if job.cluster_id == cluster.id], context.settings, now)
            for cluster in clusters
        ],
        "queue": [
            {"job_id": row.id, "name": row.name, "position": row.queue_position, "reason": row.message} for row in queue
        ],
    }


def cluster_json(cluster: Cluster, jobs: list[Any], settings: Settings, now: datetime) -> dict[str, Any]:
    """A cluster as the API shows it; `jobs` are (id, name, cluster, workers) of the jobs placed there."""

    def marked(node: dict[str, Any]) -> str | None:
        state: str | None = cluster.node_marks.get(node["node_id"], {}).get("state")
        return state

    nodes = [
        {
            "node_id": node["node_id"],
            "address": node["address"],
            "hostname": node.get("hostname", ""),
            "cpu": node["cpu"],
            "cpu_used": node.get("cpu_used", 0),
            "gpu": node.get("gpu", 0),
            "gpu_used": node.get("gpu_used", 0),
            "draining": node.get("draining", False) or marked(node) == "draining",
            "cordoned": marked(node) is not None,
            "jobs": [
                {"job_id": job_id, "name": name, "workers": count}
                for job_id, name, _cluster, workers in jobs
                if (count := sum(is_on_node(worker, node) for worker in workers))
            ],
        }
        for node in cluster.nodes
    ]
    return {
        "id": cluster.id,
        "status": "online" if is_online(cluster, settings, now) else "offline",
        "last_seen": to_rfc3339(cluster.last_seen),
        "slots_total": sum(node["cpu"] for node in nodes),
        "slots_used": sum(node["cpu_used"] for node in nodes),
        "nodes": nodes,
    }


def is_online(cluster: Cluster, settings: Settings, now: datetime) -> bool:
    """Whether an agent spoke lately. What was heard in the future was heard by a clock that has been set back since."""
    return abs(now - cluster.last_seen) <= settings.cluster_offline_after


def is_on_node(worker: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a reported worker lives on a node. Controllers of the release before this one tell its host name only."""
    if worker.get("node_id"):
        return bool(worker["node_id"] == node["node_id"])
    names = {node["node_id"], node["address"], node.get("hostname", "")} - {""}
    return worker.get("node") in names


def _check_numbers(request: SyncRequest) -> None:
    """Refuse what no clock can count, and no JSON of a database holds."""
    numbers: list[tuple[str, float | None]] = [("wait", request.wait)]
    for index, node in enumerate(request.nodes):
        names = ("cpu", "gpu", "cpu_used", "gpu_used", "drain_within_s", "memory")
        numbers += [(f"nodes[{index}].{name}", getattr(node, name)) for name in names]
    findings = [
        Finding(path, f"must be finite, got {value}")
        for path, value in numbers
        if value is not None and not math.isfinite(value)
    ]
    if findings:
        raise ServiceError(ErrorKind.INVALID_REQUEST, "The sync holds numbers that are not finite.", findings=findings)


async def _take_view(context: Context, cluster_id: str, request: SyncRequest, *, of_its_own: bool) -> SyncReply:
    """Store what the acting agent saw; another agent only looks on. `of_its_own`: only of jobs placed there."""
    now = context.clock()
    async with context.database.write() as session:
        cluster = await session.get(Cluster, cluster_id, with_for_update=True)
        if cluster is None:
            await _insert_cluster(session, cluster_id, request.agent_id, now)
            cluster = await session.get_one(Cluster, cluster_id, with_for_update=True)
        is_led = is_held(cluster.agent_lease_expires_at, now, context.settings.agent_lease)
        if cluster.agent_id != request.agent_id and is_led:
            return _reply(context, cluster, request.agent_id, [])
        nodes = to_json(request.nodes)
        if _capacity(cluster.nodes) != _capacity(nodes) or not is_online(cluster, context.settings, now):
            notify(session, SCHEDULER)
        cluster.nodes = nodes
        cluster.agent_id = request.agent_id
        cluster.agent_lease_expires_at = now + context.settings.agent_lease
        cluster.last_seen = now
        for seen in request.controllers:
            if seen.state == "gone" and 0 < seen.attempt <= LARGEST:
                await confirm_gone(session, seen.job_id, seen.attempt, cluster_id if of_its_own else None)
        await session.flush()
        return await _refresh_list(context, session, cluster, request.agent_id)


def _capacity(nodes: list[Any]) -> list[Any]:
    """What the scheduler decides from; what is in use changes with every sync."""
    return [(node["node_id"], node["cpu"], node.get("gpu"), node.get("draining")) for node in nodes]


async def _insert_cluster(session: AsyncSession, cluster_id: str, agent_id: str, now: datetime) -> None:
    """A cluster that nobody knew; of two agents that come at once, one becomes the acting one."""
    row = {
        "id": cluster_id,
        "agent_id": agent_id,
        "agent_lease_expires_at": now,
        "last_seen": now,
        "nodes": [],
        "node_marks": {},
        "run_version": 0,
        "run_digest": "",
    }
    await session.execute(insert_for(session, Cluster).values(row).on_conflict_do_nothing(index_elements=["id"]))


async def _refresh_list(context: Context, session: AsyncSession, cluster: Cluster, agent_id: str) -> SyncReply:
    """The reply with today's list, whose version grows when the list differs from the last one."""
    jobs = await _jobs_to_run(session, cluster.id)
    digest = _digest(jobs)
    if cluster.run_digest != digest:
        cluster.run_digest = digest
        cluster.run_version += 1
    return _reply(context, cluster, agent_id, jobs)


def _reply(context: Context, cluster: Cluster, agent_id: str, jobs: list[str]) -> SyncReply:
    acting = cluster.agent_id == agent_id
    run = tuple(JobToRun(job_id, context.authority.job_ticket(job_id)) for job_id in jobs) if acting else ()
    return SyncReply(version=cluster.run_version, run=run, acting=acting)


async def _jobs_to_run(session: AsyncSession, cluster_id: str) -> list[str]:
    placed = select(Job.id).where(Job.placed_at.is_not(None), Job.status.in_(WITH_CONTROLLER))
    statement = placed.where(Job.cluster_id == cluster_id).order_by(Job.id)
    return list((await session.scalars(statement)).all())


def _digest(jobs: list[str]) -> str:
    return hashlib.sha256(json.dumps(jobs).encode()).hexdigest()
