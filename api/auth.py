"""Who may call what: one app-wide dependency. A route without a mark is for the admin; the marks name the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request

from service.auth import Principal, Role
from service.context import Context
from service.errors import ErrorKind, ServiceError

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__rubato_roles__"
PUBLIC: frozenset[Role] = frozenset()
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def allow(*roles: Role) -> Callable[[F], F]:
    """Mark a route for these roles instead of the admin."""

    def mark(endpoint: F) -> F:
        setattr(endpoint, _MARK, frozenset(roles))
        return endpoint

    return mark


def public(endpoint: F) -> F:
    """Mark a route for everyone."""
    setattr(endpoint, _MARK, PUBLIC)
    return endpoint


def roles_of(endpoint: object) -> frozenset[Role]:
    """Who may call a route; nobody: it is public."""
    roles: frozenset[Role] = getattr(endpoint, _MARK, frozenset({Role.ADMIN}))
    return roles


async def authorize(request: Request) -> None:
    """Find the caller and check the role, before the route runs.

    Raises:
        ServiceError: unauthenticated, forbidden.
    """
    roles = roles_of(request.scope["route"].endpoint)
    if not roles:
        return
    principal = await _find_principal(request)
    if principal.role not in roles:
        raise ServiceError(
            ErrorKind.FORBIDDEN, f"This needs the role {' or '.join(sorted(roles))}; yours is {principal.role}."
        )
    request.state.principal = principal


async def _find_principal(request: Request) -> Principal:
    context = context_of(request)
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    cookie = request.cookies.get(context.settings.cookie_name)
    now = context.clock()
    if scheme.lower() == "bearer":
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
    """A cookie is sent by the browser, whoever asked: changes must come from our own page."""
    if request.method in SAFE_METHODS:
        return
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_own = site == "same-origin"
    else:
        # Browsers too old for Fetch Metadata still send Origin on unsafe requests.
        is_own = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not is_own:
        raise ServiceError(ErrorKind.FORBIDDEN, "Changes by cookie are taken from this service's own page only.")


def context_of(request: Request) -> Context:
    """The parts of the running service."""
    context: Context = request.app.state.context
    return context


def principal_of(request: Request) -> Principal:
    """The caller that `authorize` found."""
    principal: Principal = request.state.principal
    return principal


Parts = Annotated[Context, Depends(context_of)]
Caller = Annotated[Principal, Depends(principal_of)]
