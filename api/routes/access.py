"""Projects and who may do what in them; users, tokens, and the trail of what people changed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from api import access_schemas as schemas
from api.auth import Caller, Parts, ProjectName, allow, needs
from api.routes.asking import Editor, Maker
from api.routes.errors import errors
from api.routes.pages import Cursor, PageLimit
from service import audit, people, tokens
from service.access import ProjectRole, Role

router = APIRouter(prefix="/api/v1", tags=["access"])


def _tagged(response: Response, project: dict[str, Any]) -> dict[str, Any]:
    response.headers["ETag"] = people.edition_of(project)
    return project


@router.get("/projects", response_model=schemas.ProjectPage, responses=errors())
@needs(None)
async def list_projects(context: Parts, caller: Caller, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """Your projects by name, with your role in each; an admin sees all."""
    items, next_cursor = await people.list_projects(context, caller, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}


@router.post("/projects", status_code=201, response_model=schemas.Project, responses=errors(409, 415))
@allow(Role.ADMIN)
async def create_project(body: schemas.ProjectRequest, context: Parts, asked: Maker) -> Any:
    """A new project."""
    return await people.create_project(context, body.name, body.description, asked)


@router.get("/projects/{project}", response_model=schemas.ProjectDetail, responses=errors(404))
async def get_project(project: ProjectName, response: Response, context: Parts, caller: Caller) -> Any:
    """A project, its members, its quota and what it uses of it."""
    return _tagged(response, await people.get_project(context, project, caller))


@router.patch("/projects/{project}", response_model=schemas.ProjectDetail, responses=errors(404, 412, 415))
@allow(Role.ADMIN)
async def update_project(
    project: ProjectName, body: schemas.ProjectUpdate, response: Response, context: Parts, asked: Editor
) -> Any:
    """Change a project's description or quota; the scheduler keeps to it at once."""
    quota = {} if body.quota is None else body.quota.model_dump(exclude_unset=True)
    changed = await people.update_project(context, project, asked, description=body.description, quota=quota)
    return _tagged(response, changed)


@router.delete("/projects/{project}", status_code=204, response_class=Response, responses=errors(404, 409, 412))
@allow(Role.ADMIN)
async def delete_project(project: ProjectName, context: Parts, asked: Editor) -> Response:
    """Remove a project without jobs."""
    await people.delete_project(context, project, asked)
    return Response(status_code=204)


@router.put("/projects/{project}/members/{user}", response_model=schemas.Member, responses=errors(404, 415))
@needs(ProjectRole.ADMIN)
async def grant_role(
    project: ProjectName, user: str, body: schemas.MemberRequest, context: Parts, caller: Caller
) -> Any:
    """Give a user a role in the project, in place of another one."""
    return await people.grant(context, project, user, body.role, caller)


@router.delete("/projects/{project}/members/{user}", status_code=204, response_class=Response, responses=errors(404))
@needs(ProjectRole.ADMIN)
async def withdraw_role(project: ProjectName, user: str, context: Parts, caller: Caller) -> Response:
    """Take a user's role in the project away."""
    await people.withdraw(context, project, user, caller)
    return Response(status_code=204)


@router.get("/users", response_model=schemas.UserPage, responses=errors())
@allow(Role.ADMIN)
async def list_users(context: Parts, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """All users by name."""
    items, next_cursor = await people.list_users(context, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}


@router.post("/users", status_code=201, response_model=schemas.User, responses=errors(409, 415))
@allow(Role.ADMIN)
async def create_user(body: schemas.UserRequest, context: Parts, asked: Maker) -> Any:
    """A new user, who can sign in once there is a token."""
    return await people.create_user(context, body.name, asked, is_admin=body.is_admin)


@router.patch("/users/{user}", response_model=schemas.User, responses=errors(404, 409, 412, 415))
@allow(Role.ADMIN)
async def update_user(user: str, body: schemas.UserUpdate, response: Response, context: Parts, asked: Editor) -> Any:
    """Make a user an admin or not, or shut the user out; open streams end."""
    changed = await people.update_user(context, user, asked, is_admin=body.is_admin, is_disabled=body.is_disabled)
    response.headers["ETag"] = changed["etag"]
    return changed


@router.get("/tokens", response_model=schemas.TokenPage, responses=errors())
@needs(None)
async def list_tokens(context: Parts, caller: Caller, cursor: Cursor = None, limit: PageLimit = 50) -> Any:
    """Your tokens, newest first, without their secrets; an admin sees all."""
    items, next_cursor = await tokens.list_tokens(context, caller, cursor=cursor, limit=limit)
    return {"items": items, "next_cursor": next_cursor}


@router.post("/tokens", status_code=201, response_model=schemas.NewToken, responses=errors(404, 415))
@needs(None)
async def create_token(body: schemas.TokenRequest, context: Parts, caller: Caller) -> Any:
    """A new token for yourself; by an admin for anybody, or a machine. Its secret is in this reply and nowhere else."""
    return await tokens.create(
        context,
        body.name,
        caller,
        user=body.user,
        role=Role(body.role),
        lifetime_s=body.expires_in,
        cluster_id=body.cluster,
    )


@router.delete("/tokens/{token_id}", status_code=204, response_class=Response, responses=errors(404))
@needs(None)
async def revoke_token(token_id: str, context: Parts, caller: Caller) -> Response:
    """Make a token worthless; its browser sessions and open streams end."""
    await tokens.revoke(context, token_id, caller)
    return Response(status_code=204)


@router.get("/audit", response_model=schemas.AuditPage, responses=errors())
@allow(Role.ADMIN)
async def list_audit(
    context: Parts,
    actor: Annotated[str, Query(max_length=63)] = "",
    action: Annotated[str, Query(max_length=64)] = "",
    job_id: Annotated[str, Query(max_length=40)] = "",
    cursor: Cursor = None,
    limit: PageLimit = 50,
) -> Any:
    """What people changed, newest first."""
    items, next_cursor = await audit.list_entries(
        context, actor=actor, action=action, job_id=job_id, cursor=cursor, limit=limit
    )
    return {"items": items, "next_cursor": next_cursor}
