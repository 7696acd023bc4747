"""Who may call what: one app-wide dependency. A route without a mark is for people; the marks name the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request

from service import checkpoints, jobs
from service.access import Principal, ProjectRole, Role
from service.context import Context
from service.errors import ErrorKind, ServiceError, not_found

F = TypeVar("F", bound=Callable[..., Any])

_ROLES = "__rubato_roles__"
_NEEDED = "__rubato_needed__"
PUBLIC: frozenset[Role] = frozenset()
PEOPLE = frozenset({Role.ADMIN, Role.USER})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def allow(*roles: Role) -> Callable[[F], F]:
    """Mark a route for these roles instead of people."""

    def mark(endpoint: F) -> F:
        setattr(endpoint, _ROLES, frozenset(roles))
        return endpoint

    return mark


def public(endpoint: F) -> F:
    """Mark a route for everyone."""
    setattr(endpoint, _ROLES, PUBLIC)
    return endpoint


def needs(role: ProjectRole | None) -> Callable[[F], F]:
    """Mark a route for people with this role in the project it is about; None: for every signed-in person."""

    def mark(endpoint: F) -> F:
        setattr(endpoint, _NEEDED, role)
        return endpoint

    return mark


def roles_of(endpoint: object) -> frozenset[Role]:
    """Who may call a route; nobody: it is public."""
    roles: frozenset[Role] = getattr(endpoint, _ROLES, PEOPLE)
    return roles


def needed_of(endpoint: object, method: str) -> ProjectRole | None:
    """Which role a person needs in the project: viewers look, editors change, where no mark says otherwise."""
    usual = ProjectRole.VIEWER if method in SAFE_METHODS else ProjectRole.EDITOR
    needed: ProjectRole | None = getattr(endpoint, _NEEDED, usual)
    return needed


async def authorize(request: Request) -> None:
    """Find the caller and check the role, before the route runs.

    A person needs the role in some project here; in which one is checked where the route's job or project is found.

    Raises:
        ServiceError: unauthenticated, forbidden, rate_limited.
    """
    endpoint = request.scope["route"].endpoint
    roles = roles_of(endpoint)
    if not roles:
        return
    principal = await _find_principal(request)
    if principal.role not in roles:
        raise ServiceError(
            ErrorKind.FORBIDDEN, f"This needs the role {' or '.join(sorted(roles))}; yours is {principal.role}."
        )
    if principal.person is not None:
        context_of(request).limits.admit(principal.token_id or principal.person)
    needed = needed_of(endpoint, request.method)
    # A path that names something answers 404 where it is foreign, also to those who have no role anywhere.
    is_collection = not request.path_params.keys() & ABOUT
    if roles == PEOPLE and is_collection and needed is not None and not principal.has_anywhere(needed):
        raise ServiceError(ErrorKind.FORBIDDEN, f"This needs the role {needed} in a project.")
    request.state.principal = principal


ABOUT = frozenset({"reference", "checkpoint_id", "project"})
"""Path parameters that lie in a project; `job_of`, `checkpoint_of` and `project_of` check the role there."""


def _check_role(request: Request, caller: Principal, project: str, unseen: ServiceError) -> None:
    needed = needed_of(request.scope["route"].endpoint, request.method)
    role = caller.role_in(project)
    if role is None:
        raise unseen
    if needed is not None and not role.includes(needed):
        raise ServiceError(
            ErrorKind.FORBIDDEN,
            f"This needs the role {needed} in the project {project!r}; you are {role.with_article}.",
        )


async def _find_principal(request: Request) -> Principal:
    context = context_of(request)
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(context.settings.cookie_name)
    now = context.clock()
    if scheme.lower() == "bearer":
        if (known := context.authority.recall(bearer.strip())) is not None:
            return known
        async with context.database.read() as session:
            return await context.authority.recognise(session, bearer.strip(), now)
    if cookie is not None:
        _check_same_origin(request)
        async with context.database.read() as session:
            return await context.authority.recognise_session(session, cookie, now)
    raise ServiceError(
        ErrorKind.UNAUTHENTICATED,
        "Send `Authorization: Bearer rbt_...`. The admin token lies in the file 'token' of the service's home "
        "(RUBATO_HOME, default ~/.rubato).",
    )


def _check_same_origin(request: Request) -> None:
    """A cookie is sent by the browser, whoever asked: changes must come from our own page.

    Raises:
        ServiceError: forbidden.
    """
    if request.method not in SAFE_METHODS and not _is_same_origin(request):
        raise ServiceError(ErrorKind.FORBIDDEN, "Changes by cookie are taken from this service's own page only.")


def check_not_foreign(request: Request) -> None:
    """Refuse another site's page, which would sign the browser in as somebody else; what is no browser says nothing.

    Raises:
        ServiceError: forbidden.
    """
    if {"sec-fetch-site", "origin"} & set(request.headers.keys()) and not _is_same_origin(request):
        raise ServiceError(ErrorKind.FORBIDDEN, "Sign in from this service's own page.")


def _is_same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    # Browsers too old for Fetch Metadata still send Origin on unsafe requests.
    origin = request.headers.get("origin")
    return origin is not None and _place_of(origin) == request.headers.get("host")


def _place_of(origin: str) -> str | None:
    """Host and port; None: the origin cannot be read."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def context_of(request: Request) -> Context:
    """The parts of the running service."""
    context: Context = request.app.state.context
    return context


# What a route depends on is `async` also where it waits for nothing: FastAPI calls other functions in a thread.
async def _parts_of(request: Request) -> Context:
    return context_of(request)


async def _caller_of(request: Request) -> Principal:
    """The caller that `authorize` found."""
    principal: Principal = request.state.principal
    return principal


Parts = Annotated[Context, Depends(_parts_of)]
Caller = Annotated[Principal, Depends(_caller_of)]


async def job_of(reference: str, request: Request, context: Parts, caller: Caller) -> str:
    """The job that a path names by id or name, as far as the caller may know of it.

    Raises:
        ServiceError: not_found, forbidden.
    """
    return await _job_of(reference, request, context, caller)


async def job_to_delete_of(reference: str, request: Request, context: Parts, caller: Caller) -> str:
    """The same, also of one whose deletion is under way: asking again is no error.

    Raises:
        ServiceError: not_found, forbidden.
    """
    return await _job_of(reference, request, context, caller, with_deleted=True)


async def _job_of(
    reference: str, request: Request, context: Context, caller: Principal, *, with_deleted: bool = False
) -> str:
    is_change = request.method not in ("GET", "HEAD")
    if caller.is_admin and not is_change:
        return reference
    async with context.database.read() as session:
        if is_change:
            await jobs.refuse_ambiguous(session, reference, caller)
        if caller.is_admin:
            return reference
        job = await jobs.find_visible(session, reference, caller, with_deleted=with_deleted)
    _check_role(request, caller, job.project, not_found("job", reference))
    return job.id


async def checkpoint_of(checkpoint_id: str, request: Request, context: Parts, caller: Caller) -> str:
    """The checkpoint that a path names, as far as the caller may know of it.

    Raises:
        ServiceError: not_found, forbidden.
    """
    if not caller.is_admin:
        project = await checkpoints.project_of(context, checkpoint_id)
        _check_role(request, caller, project, not_found("checkpoint", checkpoint_id[:80]))
    return checkpoint_id


async def project_of(project: str, request: Request, caller: Caller) -> str:
    """The project that a path names, as far as the caller may know of it.

    Raises:
        ServiceError: not_found, forbidden.
    """
    _check_role(request, caller, project, not_found("project", project[:80]))
    return project


JobReference = Annotated[str, Depends(job_of)]
JobToDelete = Annotated[str, Depends(job_to_delete_of)]
CheckpointId = Annotated[str, Depends(checkpoint_of)]
ProjectName = Annotated[str, Depends(project_of)]


async def may_go_on(context: Context, caller: Principal) -> bool:
    """Whether a stream may stay open: the caller still has exactly the rights with which it began."""
    async with context.database.read() as session:
        return await context.authority.look_again(session, caller, context.clock()) == caller
