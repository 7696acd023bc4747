"""Secrets of a project: written and listed by name. There is no route that shows a value to a person."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from api import secret_schemas as schemas
from api.auth import Parts, ProjectName, needs
from api.routes.asking import Editor
from api.routes.errors import errors
from api.routes.pages import Cursor, PageLimit
from service import project_secrets
from service.access import ProjectRole

router = APIRouter(prefix="/api/v1/projects/{project}/secrets", tags=["secrets"])


@router.get("", response_model=schemas.SecretPage, responses=errors(404))
async def list_secrets(project: ProjectName, context: Parts, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """The project's secrets by name, without their values."""
    items, next_cursor = await project_secrets.list_secrets(context, project, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}


@router.put(
    "/{name}",
    status_code=201,
    response_model=schemas.Secret,
    responses={200: {"model": schemas.Secret, "description": "It had another value."}, **errors(404, 412, 415, 503)},
)
@needs(ProjectRole.ADMIN)
async def set_secret(
    project: ProjectName, name: str, body: schemas.SecretRequest, response: Response, context: Parts, asked: Editor
) -> Any:
    """Set a secret. Attempts that begin from now on get the value; those that run keep the one that they have."""
    shown, is_new = await project_secrets.set_secret(context, project, name, body.value, asked)
    response.headers["ETag"] = shown["etag"]
    if not is_new:
        response.status_code = 200
    return shown


@router.delete("/{name}", status_code=204, response_class=Response, responses=errors(404, 412))
@needs(ProjectRole.ADMIN)
async def delete_secret(project: ProjectName, name: str, context: Parts, asked: Editor) -> Response:
    """Remove a secret; the next attempt of a job that needs it fails, and says so."""
    await project_secrets.delete_secret(context, project, name, asked)
    return Response(status_code=204)
