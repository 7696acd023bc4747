"""The outermost layer: request ids, host names, body caps, security headers, access log, the net for errors."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import structlog
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem_for
from service.clock import utc_now
from service.counters import REQUESTS
from service.errors import ErrorKind, ServiceError
from service.ids import new_id
from service.settings import Settings

log = structlog.get_logger("api.access")

SECURITY_HEADERS = {
    # The page has no inline script or style; charts set styles through the object model, which needs no exception.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PACKAGES_PREFIX = "/api/v1/packages/"
QUIET_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
QUIET_OF_CLUSTERS = ("/report", "/desired", "/sync")
"""Every few seconds of each job: among them nobody would find a request of a person."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})


class Gate:
    """Pure ASGI, so that streams pass through unbuffered."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._hosts = {"localhost", "127.0.0.1", "::1", settings.host.lower(), *map(str.lower, settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_id("req", utc_now())
        scope["request_id"] = request_id
        # Whatever is logged while the request is served, also in threads it waits for, tells which one it was, and of
        # which job once that was found (`service.jobs.find`).
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._serve(scope, receive, send)
            finally:
                structlog.contextvars.unbind_contextvars("job_id")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                observe_request(scope, status, time.perf_counter() - started)
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = scope["request_id"]
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith(("/api/", "/cluster/")):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        request = Request(scope, receive)
        try:
            self._check_host(request)
            self._check_length(request)
            await self._app(scope, self._capped(scope, receive), send_with_headers)
        except Exception as error:
            if status:
                # Half a reply is on its way: only cutting the connection tells the client.
                log.exception("reply_broken", path=scope["path"])
                raise
            response = problem_for(request, error)
            await response(scope, receive, send_with_headers)
        finally:
            self._log(scope, status, started)

    def _check_host(self, request: Request) -> None:
        """Refuse names that are not ours: a foreign name that resolves here is DNS rebinding."""
        told = request.headers.get("host", "")
        try:
            host = urlsplit(f"//{told}").hostname or ""
        except ValueError:  # such as a bracket that nothing closes
            host = told
        if host.lower() not in self._hosts:
            raise ServiceError(
                ErrorKind.HOST_NOT_ALLOWED,
                f"This service does not answer to the host name {host[:100]!r}; add it to RUBATO_ALLOWED_HOSTS "
                '(a JSON list such as ["rubato.example"]).',
            )

    def _capped(self, scope: Scope, receive: Receive) -> Receive:
        """A body sent in chunks says no length before: it is counted as it comes."""
        if scope["path"].startswith(PACKAGES_PREFIX):
            return receive  # the store counts itself, and says what to leave out
        limit, received = self._settings.max_body_bytes, 0

        async def receive_capped() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                # FastAPI lets this kind through while it reads a body; of any other it says only "bad request".
                raise HTTPException(413, f"The body may have {limit} bytes.")
            return message

        return receive_capped

    def _limit(self, path: str) -> int:
        is_package = path.startswith(PACKAGES_PREFIX)
        return self._settings.max_package_bytes if is_package else self._settings.max_body_bytes

    def _check_length(self, request: Request) -> None:
        length = request.headers.get("content-length", "0")
        limit = self._limit(request.url.path)
        if not length.isdecimal() or int(length) > limit:
            raise ServiceError(ErrorKind.BODY_TOO_LARGE, f"The body may have {limit} bytes, got {length[:20]}.")

    def _log(self, scope: Scope, status: int, started: float) -> None:
        path = scope["path"]
        is_routine = path in QUIET_PATHS or (path.startswith("/cluster/") and path.endswith(QUIET_OF_CLUSTERS))
        if is_routine and status < 400:
            return
        log.info(
            "request",
            method=scope["method"],
            path=path,
            status=status,
            ms=round((time.perf_counter() - started) * 1000, 1),
            client=address_of(Request(scope)),
        )


def observe_request(scope: Scope, status: int, seconds: float) -> None:
    """Time a reply under the pattern of its route: addresses themselves hold ids."""
    route = getattr(scope.get("route"), "path", "")
    # Only names that this service has: anybody may ask for anything under any method.
    method = scope["method"] if scope["method"] in METHODS else "other"
    REQUESTS.labels(method, route or "none", str(status)).observe(seconds)


def address_of(request: Request) -> str:
    """Where a request comes from; behind a proxy that is trusted, what that says. Empty: a local socket."""
    return request.client.host if request.client else ""
