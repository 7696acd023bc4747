"""Webhooks of a project: made, listed, tested and removed by its admins."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from api import webhook_schemas as schemas
from api.auth import Caller, Parts, ProjectName, needs
from api.routes.errors import errors
from api.routes.pages import Cursor, PageLimit
from service.access import ProjectRole
from service.webhooks import manage

router = APIRouter(prefix="/api/v1/projects/{project}/webhooks", tags=["webhooks"])


@router.get("", response_model=schemas.WebhookPage, responses=errors(404))
@needs(ProjectRole.ADMIN)
async def list_webhooks(project: ProjectName, context: Parts, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """The project's webhooks by name, without their secrets."""
    items, next_cursor = await manage.list_webhooks(context, project, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}


@router.post("", status_code=201, response_model=schemas.NewWebhook, responses=errors(404, 409, 415, 503))
@needs(ProjectRole.ADMIN)
async def create_webhook(project: ProjectName, body: schemas.WebhookRequest, context: Parts, caller: Caller) -> Any:
    """A new webhook. Its signing secret is in this reply and nowhere else; 409 where webhooks are off."""
    return await manage.create(context, project, body.name, body.url, body.events, caller)


@router.delete("/{name}", status_code=204, response_class=Response, responses=errors(404))
@needs(ProjectRole.ADMIN)
async def delete_webhook(project: ProjectName, name: str, context: Parts, caller: Caller) -> Response:
    """Remove a webhook with its deliveries."""
    await manage.remove(context, project, name, caller)
    return Response(status_code=204)


@router.post(
    "/{name}/test",
    status_code=202,
    response_model=schemas.Delivery,
    responses={200: {"model": schemas.Delivery, "description": "It is over."}, **errors(404, 409)},
)
@needs(ProjectRole.ADMIN)
async def send_test(
    project: ProjectName,
    name: str,
    response: Response,
    context: Parts,
    caller: Caller,
    wait: Annotated[float, Query(ge=0, le=60, description="Seconds to wait for what becomes of it.")] = 0,
) -> Any:
    """Send a test, once; the reply is its delivery. With `wait` it answers 200 once that is over."""
    delivery = await manage.send_test(context, project, name, caller, wait_s=wait)
    if manage.is_over(delivery):
        response.status_code = 200
    return delivery


@router.get("/{name}/deliveries", response_model=schemas.DeliveryPage, responses=errors(404))
@needs(ProjectRole.ADMIN)
async def list_deliveries(
    project: ProjectName,
    name: str,
    context: Parts,
    status: schemas.DeliveryFilter = "",
    cursor: Cursor = None,
    limit: PageLimit = 50,
) -> Any:
    """The webhook's deliveries of the last days, newest first, with what became of each."""
    items, next_cursor = await manage.list_deliveries(context, project, name, status=status, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}
