"""Projects, users, and who has which role where. One call is one transaction with its audit row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from rubato.errors import Finding
from rubato.wire.spec import is_name
from service import quotas
from service.access import Principal, ProjectRole
from service.clock import optional_rfc3339, to_rfc3339
from service.context import Context
from service.database import insert_for
from service.errors import ErrorKind, ServiceError, not_found
from service.ids import new_id
from service.models import AuditEntry, Job, Membership, Project, Secret, Token, User, Webhook
from service.notify import ACCESS, SCHEDULER, notify
from service.pages import cut, read_key
from service.requests import Asked, answer_once, check_tag
from service.tags import tag_of


async def list_projects(
    context: Context, caller: Principal, *, cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the caller's projects by name, each with the caller's role."""
    statement = select(Project).order_by(Project.name).limit(limit + 1)
    if caller.visible_projects is not None:
        statement = statement.where(Project.name.in_(sorted(caller.visible_projects)))
    if cursor is not None:
        statement = statement.where(Project.name > storable(read_key(cursor, "projects")))
    async with context.database.read() as session:
        rows = (await session.scalars(statement)).all()
    page, next_cursor = cut(rows, limit, lambda project: project.name, of="projects")
    return [_project_json(project, caller) for project in page], next_cursor


async def get_project(context: Context, name: str, caller: Principal) -> dict[str, Any]:
    """One project, its members, its quota and what it uses of it.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.read() as session:
        project = await find_project(session, name)
        rows = await session.execute(
            select(User.name, Membership.role)
            .join(Membership, Membership.user_id == User.id)
            .where(Membership.project == name)
            .order_by(User.name)
        )
        members = [{"user": user, "role": role} for user, role in rows]
        use = await quotas.read_use(session, name)
    return {**_project_json(project, caller), "members": members, "quota": _quota_json(project), "use": use}


async def create_project(context: Context, name: str, description: str, asked: Asked) -> dict[str, Any]:
    """A new project, without members.

    Raises:
        ServiceError: invalid_request, name_taken, idempotency_mismatch.
    """
    check_name(name)

    async def make(session: AsyncSession) -> dict[str, Any]:
        row = {"name": name, "description": description, "created_at": context.clock()}
        insert = insert_for(session, Project).values(row).on_conflict_do_nothing(index_elements=["name"])
        if (await session.execute(insert.returning(Project.name))).first() is None:
            raise _taken("project", name)
        audit(session, context, asked.caller, "project.created", {"project": name})
        return _project_json(await session.get_one(Project, name), asked.caller)

    return await answer_once(context, asked, ["create project", name, description], make)


def edition_of(project: Mapping[str, Any]) -> str:
    """The entity tag of a project as `get_project` gives it: of what an admin of the service may change."""
    return tag_of(project["description"], project["quota"])


async def update_project(
    context: Context, name: str, asked: Asked, *, description: str | None, quota: Mapping[str, int | None]
) -> dict[str, Any]:
    """Change a project's description (None leaves it) and its quota: what is left out stays, null takes a limit away.

    Nobody is paused by a lower quota: jobs give back spare workers, and elastic ones workers down to their minimum.

    Raises:
        ServiceError: not_found, precondition_failed.
    """
    caller = asked.caller
    async with context.database.write() as session:
        project = await find_project(session, name, for_update=True)
        before = _quota_json(project)
        check_tag(name, _edition(project), asked.if_match)
        if description is not None:
            project.description = description
        for limit in QUOTA & quota.keys():
            setattr(project, limit, quota[limit])
        after = _quota_json(project)
        changes = {limit: [before[limit], after[limit]] for limit in sorted(QUOTA) if before[limit] != after[limit]}
        audit(session, context, caller, "project.updated", {"project": name, "quota": changes})
        notify(session, SCHEDULER)
    return await get_project(context, name, caller)


async def delete_project(context: Context, name: str, asked: Asked) -> None:
    """Remove a project without jobs.

    Raises:
        ServiceError: not_found, conflict, precondition_failed.
    """
    async with context.database.write() as session:
        # Locked: a job that is submitted at this moment is waited for, and found.
        check_tag(name, _edition(await find_project(session, name, for_update=True)), asked.if_match)
        in_it = select(Job.id).where(Job.project == name, Job.deleted_at.is_(None)).limit(1)
        if await session.scalar(in_it) is not None:
            raise ServiceError(ErrorKind.CONFLICT, f"The project {name!r} has jobs; only one without can be removed.")
        gone = await _belongings(session, name)
        await session.execute(delete(Project).where(Project.name == name))
        audit(session, context, asked.caller, "project.deleted", {"project": name, **gone})


async def _belongings(session: AsyncSession, project: str) -> dict[str, list[str]]:
    """The names of what goes with a project."""
    members = select(User.name).join(Membership, Membership.user_id == User.id).where(Membership.project == project)
    names = {
        "secrets": select(Secret.name).where(Secret.project == project),
        "webhooks": select(Webhook.name).where(Webhook.project == project),
        "members": members,
    }
    return {what: sorted((await session.scalars(statement)).all()) for what, statement in names.items()}


async def grant(context: Context, project: str, user: str, role: ProjectRole, caller: Principal) -> dict[str, Any]:
    """Give a user a role in a project, in place of another one.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.write() as session:
        await find_lasting_project(session, project)
        found = await _user(session, user)
        insert = insert_for(session, Membership).values(user_id=found.id, project=project, role=str(role))
        await session.execute(
            insert.on_conflict_do_update(index_elements=["user_id", "project"], set_={"role": str(role)})
        )
        audit(session, context, caller, "member.granted", {"project": project, "user": user, "role": str(role)})
        notify(session, ACCESS)
    return {"user": user, "role": str(role)}


async def withdraw(context: Context, project: str, user: str, caller: Principal) -> None:
    """Take a user's role in a project away.

    Raises:
        ServiceError: not_found.
    """
    async with context.database.write() as session:
        found = await _user(session, user)
        await find_project(session, project)
        gone = delete(Membership).where(Membership.user_id == found.id, Membership.project == project)
        if (await session.execute(gone.returning(Membership.user_id))).first() is None:
            raise not_found("member", user)
        audit(session, context, caller, "member.withdrawn", {"project": project, "user": user})
        notify(session, ACCESS)


async def list_users(context: Context, *, cursor: str | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """A page of all users by name."""
    statement = select(User).order_by(User.name).limit(limit + 1)
    if cursor is not None:
        statement = statement.where(User.name > storable(read_key(cursor, "users")))
    async with context.database.read() as session:
        rows = (await session.scalars(statement)).all()
    page, next_cursor = cut(rows, limit, lambda user: user.name, of="users")
    return [_user_json(user) for user in page], next_cursor


async def create_user(context: Context, name: str, asked: Asked, *, is_admin: bool) -> dict[str, Any]:
    """A new user, without a token.

    Raises:
        ServiceError: invalid_request, name_taken, idempotency_mismatch.
    """
    check_name(name)
    if name in RESERVED:
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"{name!r} is what the service's own tokens are called.")

    async def make(session: AsyncSession) -> dict[str, Any]:
        now = context.clock()
        row = {"id": new_id("usr", now), "name": name, "is_admin": is_admin, "created_at": now}
        insert = insert_for(session, User).values(row).on_conflict_do_nothing(index_elements=["name"])
        if (await session.execute(insert.returning(User.id))).first() is None:
            raise _taken("user", name)
        audit(session, context, asked.caller, "user.created", {"user": name, "is_admin": is_admin})
        return _user_json(await _user(session, name))

    return await answer_once(context, asked, ["create user", name, is_admin], make)


async def update_user(
    context: Context, name: str, asked: Asked, *, is_admin: bool | None, is_disabled: bool | None
) -> dict[str, Any]:
    """Make a user an admin of the service or not, or shut the user out: all tokens and streams end.

    Raises:
        ServiceError: not_found, conflict (oneself), precondition_failed.
    """
    caller = asked.caller
    async with context.database.write() as session:
        user = await _user(session, name, for_update=True)
        check_tag(name, _edition_of_user(user), asked.if_match)
        if user.id == caller.user_id and (is_disabled or is_admin is False):
            raise ServiceError(ErrorKind.CONFLICT, "Nobody shuts out or demotes themselves; ask another admin.")
        if is_admin is not None:
            user.is_admin = is_admin
        if is_disabled is not None:
            user.disabled_at = context.clock() if is_disabled else None
        audit(session, context, caller, "user.updated", {"user": name, "admin": is_admin, "disabled": is_disabled})
        notify(session, ACCESS)
        return _user_json(user)


def audit(session: AsyncSession, context: Context, caller: Principal, action: str, detail: dict[str, Any]) -> None:
    """What a person changed, in the transaction that changes it."""
    session.add(AuditEntry(time=context.clock(), actor=caller.name, action=action, job_id=None, detail=detail))


RESERVED = frozenset({"admin", "service", "cluster", "scraper"})


def check_name(name: str) -> None:
    """Refuse what no job, project or user may be called.

    Raises:
        ServiceError: invalid_request.
    """
    if not is_name(name):
        message = (
            "must be 1 to 63 lower-case letters, digits, '.', '_' or '-', and begin and end with a letter or digit"
        )
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"The name {message}.", findings=[Finding("name", message)])


def storable(text: str) -> str:
    """A text that is only compared: NUL cannot stand in one of PostgreSQL."""
    return text.replace("\x00", "")


def is_storable(text: str) -> bool:
    """Whether anything can have this name: what is found by it is also written about by it."""
    return storable(text) == text


async def find_token(session: AsyncSession, token_id: str, caller: Principal) -> Token:
    """A token that the caller may see: the own ones, an admin all.

    Raises:
        ServiceError: not_found.
    """
    token = await session.get(Token, storable(token_id)[:40])
    if token is None or not (caller.is_admin or (token.user_id is not None and token.user_id == caller.user_id)):
        raise not_found("token", token_id[:80])
    return token


async def find_project(session: AsyncSession, name: str, *, for_update: bool = False) -> Project:
    """A project by its name.

    Raises:
        ServiceError: not_found.
    """
    project = await session.get(Project, name, with_for_update=for_update) if is_storable(name) else None
    if project is None:
        raise not_found("project", name[:80])
    return project


async def find_lasting_project(session: AsyncSession, name: str) -> Project:
    """A project of exactly this name, which nobody deletes before the transaction is over.

    Raises:
        ServiceError: not_found.
    """
    project = await quotas.find_for_submit(session, name) if is_storable(name) else None
    if project is None:
        raise not_found("project", name[:80])
    return project


async def _user(session: AsyncSession, name: str, *, for_update: bool = False) -> User:
    found = select(User).where(User.name == name)
    found = found.with_for_update() if for_update else found
    user = (await session.scalars(found)).one_or_none() if is_storable(name) else None
    if user is None:
        raise not_found("user", name[:80])
    return user


def _taken(what: str, name: str) -> ServiceError:
    return ServiceError(
        ErrorKind.NAME_TAKEN, f"There is a {what} {name!r} already.", findings=[Finding("name", "is taken")]
    )


def _project_json(project: Project, caller: Principal) -> dict[str, Any]:
    return {
        "name": project.name,
        "description": project.description,
        "created_at": to_rfc3339(project.created_at),
        "role": caller.role_in(project.name),
    }


QUOTA = frozenset({"max_slots", "max_queued", "max_priority"})


def _quota_json(project: Project) -> dict[str, int | None]:
    return {limit: getattr(project, limit) for limit in sorted(QUOTA)}


def _edition(project: Project) -> str:
    return edition_of({"description": project.description, "quota": _quota_json(project)})


def _edition_of_user(user: User) -> str:
    return tag_of(user.is_admin, user.disabled_at is not None)


def _user_json(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "etag": _edition_of_user(user),
        "is_admin": user.is_admin,
        "created_at": to_rfc3339(user.created_at),
        "disabled_at": optional_rfc3339(user.disabled_at),
    }
