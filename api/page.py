"""The page: one index.html for all its addresses, and the built assets beside it."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from api.auth import public
from api.problems import problem_for

router = APIRouter(include_in_schema=False)

LOOKS = ["GET", "HEAD"]
"""What probes and proxies ask for; the server leaves the body of a HEAD out."""

OF_PROGRAMS = ("/api/", "/cluster/", "/assets/")
"""How addresses begin at which no person looks for a page."""
NOT_BUILT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rubato</title></head>
<body><h1>Rubato</h1>
<p>The service runs, but its page is not built. Build it with <code>make web</code>, then load this page again.</p>
<p>The API is at <a href="/api/openapi.json">/api/openapi.json</a>.</p>
</body></html>
"""


class Assets(StaticFiles):
    """Files whose names carry their hash: a browser may keep them for ever."""

    async def check_config(self) -> None:
        """The folder may be built later; until then nothing is found."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One file."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


@router.api_route("/", methods=LOOKS)
@router.api_route("/jobs", methods=LOOKS)
@router.api_route("/jobs/{path:path}", methods=LOOKS)
@router.api_route("/compare", methods=LOOKS)
@router.api_route("/cluster", methods=LOOKS)
@router.api_route("/settings", methods=LOOKS)
@router.api_route("/sign-in", methods=LOOKS)
@public
async def get_page(request: Request) -> Response:
    """The single page; it finds its way by the address itself."""
    return _page(request, 200)


def show_the_lost(app: FastAPI) -> None:
    """Let the page say that there is nothing at an address, where a browser asks; programs get the problem."""

    async def respond(request: Request, error: Exception) -> Response:
        is_of_a_person = request.method in LOOKS and not request.url.path.startswith(OF_PROGRAMS)
        if is_of_a_person and "text/html" in request.headers.get("Accept", ""):
            return _page(request, 404)
        return problem_for(request, error)

    app.add_exception_handler(404, respond)


@router.api_route("/{name}", methods=LOOKS)
@public
async def get_top_file(name: str, request: Request) -> Response:
    """Icons and the like that lie beside index.html."""
    dist = _dist(request)
    # Only a name that the folder itself lists; the asked one never becomes a path.
    found = next((path for path in dist.iterdir() if path.name == name), None) if dist.is_dir() else None
    if found is None or not found.is_file():
        raise HTTPException(404)
    return FileResponse(found, headers={"Cache-Control": "no-cache"})


def _page(request: Request, status: int) -> Response:
    index = _dist(request) / "index.html"
    if index.is_file():
        return FileResponse(index, status, headers={"Cache-Control": "no-cache"})
    return HTMLResponse(NOT_BUILT, status)


def _dist(request: Request) -> Path:
    dist: Path = request.app.state.web_dist
    return dist
