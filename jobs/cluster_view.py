"""What the agent sees of its cluster, by the calls that work without Ray's dashboard."""

from __future__ import annotations

import json
import time
from typing import Any

import ray

from jobs.names import ActorName, parse_listing
from rubato.wire.cluster import NodeReport

ACCELERATOR = "accelerator_type:"
"""How Ray names the resource of a node that has a type of accelerator."""
UNPLACED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION")
"""Ray's states of an actor whose constructor has not returned."""


def observe_nodes() -> tuple[NodeReport, ...]:
    """The living nodes, what of each is taken, and which Ray lets go."""
    free, draining = _free_by_node(), _draining_nodes()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return tuple(
        node_report(node, free.get(str(node["NodeID"])), draining.get(str(node["NodeID"])), time.time())
        for node in nodes
        if node.get("Alive")
    )


def node_report(
    node: dict[str, Any], free: dict[str, float] | None, deadline_ms: int | None = None, now_s: float = 0.0
) -> NodeReport:
    """One entry of `ray.nodes()`.

    Args:
        node: the entry.
        free: what is left of it; None: not known, nothing counts as taken.
        deadline_ms: of a node that Ray drains, when it is taken away, in milliseconds since 1970 (0: it does not say).
        now_s: the time, in seconds since 1970.
    """
    total = node.get("Resources", {})
    cpu, gpu = float(total.get("CPU", 0.0)), float(total.get("GPU", 0.0))
    left = {"CPU": cpu, "GPU": gpu} if free is None else free
    return NodeReport(
        node_id=str(node["NodeID"]),
        address=str(node.get("NodeManagerAddress", "")),
        cpu=cpu,
        gpu=gpu,
        # Ray leaves out of `free` what is taken to the last bit.
        cpu_used=round(max(0.0, cpu - left.get("CPU", 0.0)), 4),
        gpu_used=round(max(0.0, gpu - left.get("GPU", 0.0)), 4),
        hostname=str(node.get("NodeManagerHostname", "")),
        draining=deadline_ms is not None,
        drain_within_s=max(0.0, round(deadline_ms / 1000 - now_s, 1)) if deadline_ms else None,
        memory=float(total.get("memory", 0.0)),
        accelerators=tuple(sorted(name.removeprefix(ACCELERATOR) for name in total if name.startswith(ACCELERATOR))),
    )


def observe_actors() -> list[ActorName]:
    """All living actors of ours."""
    return parse_listing(ray.util.list_named_actors(all_namespaces=True))


def observe_unplaced() -> set[str]:
    """Ids of all actors that wait for a place, or begin at one. Semi-private; empty where it is not known."""
    try:
        state: Any = ray._private.state
        return {str(actor) for name in UNPLACED for actor in state.actors(actor_state_name=name)}
    except AttributeError:
        return set()


def _draining_nodes() -> dict[str, int]:
    """Deadline (ms since 1970, 0: none) by node id. Semi-private as well; empty where there is none."""
    try:
        state: Any = ray._private.state.state
        return {str(node): int(deadline) for node, deadline in state.get_draining_nodes().items()}
    except AttributeError:
        return {}


def _free_by_node() -> dict[str, dict[str, float]]:
    """Free resources by node id. Semi-private, but the only source without the dashboard; empty where there is none."""
    try:
        state: Any = ray._private.state
        return {str(node): dict(free) for node, free in state.available_resources_per_node().items()}
    except (AttributeError, json.JSONDecodeError):
        return {}
