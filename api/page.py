"""The page: one index.html for all its addresses, and the built assets beside it."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, HTMLResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from api.auth import public

router = APIRouter(include_in_schema=False)

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


@router.get("/")
@router.get("/jobs")
@router.get("/jobs/{path:path}")
@router.get("/compare")
@router.get("/cluster")
@router.get("/settings")
@router.get("/sign-in")
@public
async def get_page(request: Request) -> Response:
    """The single page; it finds its way by the address itself."""
    index = _dist(request) / "index.html"
    if index.is_file():
        return FileResponse(index, headers={"Cache-Control": "no-cache"})
    return HTMLResponse(NOT_BUILT)


@router.get("/{name}")
@public
async def get_top_file(name: str, request: Request) -> Response:
    """Icons and the like that lie beside index.html."""
    dist = _dist(request)
    # Only a name that the folder itself lists; the asked one never becomes a path.
    found = next((path for path in dist.iterdir() if path.name == name), None) if dist.is_dir() else None
    if found is None or not found.is_file():
        raise HTTPException(404)
    return FileResponse(found, headers={"Cache-Control": "no-cache"})


def _dist(request: Request) -> Path:
    dist: Path = request.app.state.web_dist
    return dist
