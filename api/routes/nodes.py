"""Nodes: what is there, and taking one out of service."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from api import operations_schemas as schemas
from api.auth import Caller, Parts, allow
from api.routes.asking import Wait
from api.routes.errors import errors
from service import nodes
from service.access import Role
from service.clusters import check_cluster_id

router = APIRouter(prefix="/api/v1", tags=["nodes"])

NodeId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$", description="As the list of nodes names it.")]


@router.get("/clusters/{cluster_id}/nodes", response_model=schemas.NodeList, responses=errors(404))
async def list_nodes(cluster_id: str, context: Parts, caller: Caller) -> Any:
    """The living nodes of a cluster, and what of your projects runs there."""
    check_cluster_id(cluster_id)
    return {"items": await nodes.list_nodes(context, cluster_id, caller)}


@router.post("/nodes/{node_id}/cordon", response_model=schemas.Node, responses=errors(404))
@allow(Role.ADMIN)
async def cordon_node(node_id: NodeId, context: Parts, caller: Caller) -> Any:
    """Give the node no new workers, until `uncordon` or the end of its Ray process; those that are there stay."""
    return await nodes.mark_node(context, node_id, nodes.CORDONED, caller)


@router.post("/nodes/{node_id}/uncordon", response_model=schemas.Node, responses=errors(404))
@allow(Role.ADMIN)
async def uncordon_node(node_id: NodeId, context: Parts, caller: Caller) -> Any:
    """Let the node have workers again; a drain that is under way ends."""
    return await nodes.mark_node(context, node_id, None, caller)


@router.post(
    "/nodes/{node_id}/drain",
    status_code=202,
    response_model=schemas.Node,
    responses={200: {"model": schemas.Node, "description": "No worker is left."}, **errors(404)},
)
@allow(Role.ADMIN)
async def drain_node(node_id: NodeId, response: Response, context: Parts, caller: Caller, wait: Wait = 0) -> Any:
    """Cordon the node and let its workers leave, each after its replacement elsewhere has joined where there is room.

    With `wait` it answers 200 once no worker is left.
    """
    node = await nodes.mark_node(context, node_id, nodes.DRAINING, caller)
    if wait:
        node = await nodes.wait_drained(context, node_id, caller, wait)
    if not node["workers_left"]:
        response.status_code = 200
    return node
