"""The application: routers, the gate around them, and the service behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Route

from api import page
from api.auth import authorize
from api.bodies import check_body
from api.gate import Gate
from api.page import Assets, show_the_lost
from api.parameters import refuse_unknown_parameters
from api.problems import install_problems, problem_for
from api.routes import (
    access,
    cluster,
    code,
    jobs,
    nodes,
    people,
    planning,
    project_secrets,
    recipes,
    scheduling,
    storage,
    streams,
    webhooks,
    workers,
)
from service.clock import Clock, utc_now
from service.settings import Settings
from service.startup import run_service

ROUTERS = (
    # Routes are tried one after another, and nobody asks as often as clusters do.
    cluster.router,
    jobs.router,
    workers.router,
    nodes.router,
    scheduling.router,
    streams.router,
    storage.router,
    code.router,
    people.router,
    access.router,
    project_secrets.router,
    planning.router,
    recipes.router,
    webhooks.router,
    people.top_router,
    # The last: it answers to whatever name is left.
    page.router,
)


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """All routes, behind the checks of what is asked by whom; made once for all applications of a process."""
    top = APIRouter(dependencies=[Depends(authorize)])
    of_people = [Depends(refuse_unknown_parameters), Depends(check_body)]
    for router in ROUTERS:
        # Clusters ask often, may be of another release, and their bodies are read elsewhere: neither check is for them.
        top.include_router(router, dependencies=[] if router is cluster.router else of_people)
    return tuple(top.routes)


def methods_at(path: str) -> list[str]:
    """All methods that some route takes there."""
    found = [route for router in ROUTERS for route in router.routes if isinstance(route, Route)]
    return sorted({method for route in found if route.path_regex.match(path) for method in route.methods or ()})


async def refuse_method(request: Request, _: Exception) -> Response:
    """Name all methods of a path: the route that was nearest knows only its own."""
    # A file of the mount is no route.
    allowed = ", ".join(methods_at(request.url.path) or page.LOOKS)
    detail = f"{request.method} is not possible on {request.url.path}; possible: {allowed}."
    return problem_for(request, HTTPException(405, detail, {"Allow": allowed}))


def create_app(settings: Settings, *, clock: Clock = utc_now, with_loop: bool = True) -> FastAPI:
    """The whole application; its lifespan starts and stops the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with run_service(settings, clock=clock, with_loop=with_loop) as running:
            app.state.running = running
            app.state.context = running.context
            yield

    app = FastAPI(
        title="Rubato",
        version="1",
        description="Elastic PyTorch training: submit, watch and scale jobs.",
        lifespan=lifespan,
        routes=list(_routes()),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.web_dist = settings.web_dist
    install_problems(app)
    app.add_exception_handler(405, refuse_method)
    show_the_lost(app)
    assets = Assets(directory=settings.web_dist / "assets", check_dir=False)
    # Nothing else: what is said to a user is not compressed together with what is asked.
    app.mount("/assets", GZipMiddleware(assets), name="assets")
    app.add_middleware(Gate, settings=settings)
    return app
