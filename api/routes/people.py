"""Sign-in, the cluster's overview, health and version."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse

from api import schemas
from api.auth import PEOPLE, Caller, Parts, allow, check_not_foreign, needs, public
from api.gate import address_of
from api.page import LOOKS
from api.reference import render_reference
from api.routes.errors import errors, refusals
from rubato.wire import WIRE_VERSION
from service import telemetry
from service.auth import SESSION_LIFETIME, Role
from service.clusters import list_clusters
from service.context import Context
from service.errors import ErrorKind, ServiceError
from service.readiness import Examiner

router = APIRouter(prefix="/api/v1", tags=["service"])
top_router = APIRouter(tags=["service"])


@router.get("/me", response_model=schemas.Me, responses=errors())
@needs(None)
async def get_me(caller: Caller) -> Any:
    """Who is asking, and with which role in which project."""
    return {"user": caller.name, "role": caller.role, "projects": dict(caller.projects)}


@router.get("/cluster", response_model=schemas.ClusterOverview, responses=errors())
@needs(None)
async def get_cluster(context: Parts, caller: Caller) -> Any:
    """The clusters, their nodes and what of your projects runs there, and the queue of these."""
    return await list_clusters(context, caller)


@router.post("/session", status_code=204, response_class=Response, responses=errors(415))
@public
async def sign_in(body: schemas.SessionRequest, request: Request, context: Parts) -> Response:
    """Exchange a person's token for a cookie; 429 to an address from which too many tokens were no good."""
    check_not_foreign(request)
    now = context.clock()
    with context.limits.sign_in(address_of(request)):
        async with context.database.read() as session:
            principal = await context.authority.recognise(session, body.token.strip(), now)
        if principal.token_id is None or principal.role not in PEOPLE:
            raise ServiceError(ErrorKind.FORBIDDEN, "Sign in with a person's token, not a machine's.")
    # Each sign-in is written: a good token has no more of them than of other requests.
    context.limits.admit(principal.token_id)
    async with context.database.write() as session:
        cookie = await context.authority.open_session(session, principal.token_id, now)
    response = Response(status_code=204)
    _set_cookie(context, response, cookie)
    return response


@router.delete("/session", status_code=204, response_class=Response, responses=errors())
@needs(None)
async def sign_out(request: Request, context: Parts) -> Response:
    """End the browser's session."""
    name = context.settings.cookie_name
    async with context.database.write() as session:
        await context.authority.close_session(session, request.cookies.get(name, ""))
    response = Response(status_code=204)
    response.delete_cookie(name, path="/", httponly=True, samesite="strict")
    return response


@router.post("/login-links", status_code=201, response_model=schemas.LoginLink, responses=errors())
@needs(None)
async def make_login_link(request: Request, context: Parts, caller: Caller) -> Any:
    """A link that signs a browser in once, within 15 minutes."""
    if caller.token_id is None:
        raise ServiceError(ErrorKind.FORBIDDEN, "A login link needs a person's token.")
    async with context.database.write() as session:
        code = await context.authority.make_login_code(session, caller.token_id, context.clock())
    url = request.url_for("sign_in_by_link").include_query_params(code=code)
    if context.settings.behind_tls_proxy:  # which may be on another host, whose word for it is not taken
        url = url.replace(scheme="https")
    return {"url": str(url), "code": code}


@top_router.get("/login", response_class=RedirectResponse, status_code=303, responses=errors())
@public
async def sign_in_by_link(code: str, request: Request, context: Parts) -> RedirectResponse:
    """Sign a browser in by a one-time link; a spent one leads to the page, which says so, and counts as for tokens."""
    now = context.clock()
    try:
        with context.limits.sign_in(address_of(request)):
            async with context.database.read() as session:
                await context.authority.check_login_code(session, code, now)
            async with context.database.write() as session:
                cookie = await context.authority.redeem_login_code(session, code, now)
    except ServiceError as error:
        if error.kind is not ErrorKind.UNAUTHENTICATED:
            raise
        return RedirectResponse("/sign-in?link=spent", status_code=303)
    response = RedirectResponse("/", status_code=303)
    _set_cookie(context, response, cookie)
    return response


@router.get("/healthz", response_model=schemas.Health, responses=refusals(422))
@router.head("/healthz", include_in_schema=False)
@top_router.api_route("/healthz", methods=LOOKS, response_model=schemas.Health, include_in_schema=False)
@public
async def get_health() -> Any:
    """The process is alive."""
    return {"status": "ok"}


@router.get("/readyz", response_model=schemas.Readiness, responses={503: {"model": schemas.Readiness}, **refusals(422)})
@router.head("/readyz", include_in_schema=False)
@top_router.api_route("/readyz", methods=LOOKS, response_model=schemas.Readiness, include_in_schema=False)
@public
async def get_readiness(request: Request, response: Response) -> Any:
    """Whether requests can be taken, check by check, as of a second ago; 503 where a required one fails."""
    examiner: Examiner = request.app.state.running.examiner
    found = await examiner.examine()
    response.status_code = 200 if found.is_ready else 503
    checks = [
        {"name": check.name, "ok": check.is_ok, "required": check.is_required, "detail": check.detail}
        for check in found.checks
    ]
    return {"status": found.status, "checks": checks}


@top_router.get("/metrics", response_class=PlainTextResponse, responses=errors())
@top_router.head("/metrics", include_in_schema=False)
@allow(Role.SCRAPER, Role.ADMIN)
async def get_prometheus_metrics(context: Parts) -> Response:
    """Metrics for Prometheus; with the token in the home's file `scraper-token`, or an admin's."""
    return Response(await telemetry.expose(context), media_type=telemetry.CONTENT_TYPE)


@router.get("/version", response_model=schemas.Version, responses=refusals(422))
@router.head("/version", include_in_schema=False)
@top_router.api_route("/version", methods=LOOKS, response_model=schemas.Version, include_in_schema=False)
@public
async def get_version() -> Any:
    """What runs here."""
    return {"version": installed_version(), "wire_version": WIRE_VERSION}


@router.api_route("/openapi.json", methods=LOOKS, include_in_schema=False)
@top_router.api_route("/api/openapi.json", methods=LOOKS, include_in_schema=False)
@public
async def get_openapi(request: Request) -> JSONResponse:
    """The description of this API."""
    return JSONResponse(request.app.openapi())


@top_router.api_route("/docs", methods=LOOKS, response_class=HTMLResponse, include_in_schema=False)
@public
async def get_docs(request: Request) -> HTMLResponse:
    """The description of this API for reading."""
    return HTMLResponse(render_reference(request.app.openapi()))


def installed_version() -> str:
    """Of the wheel `rubato`; a checkout that was never installed has none."""
    try:
        return version("rubato")
    except PackageNotFoundError:
        return "0+checkout"


def _set_cookie(context: Context, response: Response, value: str) -> None:
    response.set_cookie(
        context.settings.cookie_name,
        value,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        path="/",
        httponly=True,
        samesite="strict",
        secure=context.settings.behind_tls_proxy,
    )
