"""Every error as `application/problem+json` (RFC 9457); the one place where kinds become statuses."""

from __future__ import annotations

import errno
import math
import re
from collections.abc import Iterable
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.bodies import TOO_DEEP
from rubato.errors import Finding
from service.database_file import DatabaseLost
from service.errors import ErrorKind, ServiceError
from service.patience import DatabaseSilent
from service.states import IllegalTransition

log = structlog.get_logger(__name__)

PROBLEM_JSON = "application/problem+json"

K = ErrorKind
STATUS: dict[ErrorKind, int] = {
    K.INVALID_SPEC: 422,
    K.INVALID_REQUEST: 422,
    K.UNAUTHENTICATED: 401,
    K.FORBIDDEN: 403,
    K.NOT_FOUND: 404,
    K.METHOD_NOT_ALLOWED: 405,
    K.JOB_FINAL: 409,
    K.NAME_TAKEN: 409,
    K.CONFLICT: 409,
    K.PRECONDITION_FAILED: 412,
    K.OUT_OF_BOUNDS: 422,
    K.QUOTA_EXCEEDED: 409,
    K.RATE_LIMITED: 429,
    K.IDEMPOTENCY_MISMATCH: 422,
    K.PACKAGE_UNKNOWN: 422,
    K.PACKAGE_INVALID: 422,
    K.PACKAGE_TOO_LARGE: 413,
    K.BODY_TOO_LARGE: 413,
    K.UNSUPPORTED_MEDIA_TYPE: 415,
    K.HOST_NOT_ALLOWED: 421,
    K.LEASE_HELD: 409,
    K.FENCED: 409,
    K.STORAGE_UNREACHABLE: 503,
    K.NOT_READY: 503,
    K.INTERNAL: 500,
}
TITLE: dict[ErrorKind, str] = {
    K.INVALID_SPEC: "The job spec is not valid",
    K.INVALID_REQUEST: "The request is not valid",
    K.UNAUTHENTICATED: "Not signed in",
    K.FORBIDDEN: "Not allowed",
    K.NOT_FOUND: "Not found",
    K.METHOD_NOT_ALLOWED: "Method not allowed",
    K.JOB_FINAL: "The job has ended",
    K.NAME_TAKEN: "The name is taken",
    K.CONFLICT: "Not possible now",
    K.PRECONDITION_FAILED: "Changed by somebody else",
    K.OUT_OF_BOUNDS: "Out of bounds",
    K.QUOTA_EXCEEDED: "The project's quota is used up",
    K.RATE_LIMITED: "Too many requests",
    K.IDEMPOTENCY_MISMATCH: "The key was used with another request",
    K.PACKAGE_UNKNOWN: "The package is unknown",
    K.PACKAGE_INVALID: "The package is refused",
    K.PACKAGE_TOO_LARGE: "The package is too large",
    K.BODY_TOO_LARGE: "The body is too large",
    K.UNSUPPORTED_MEDIA_TYPE: "Unsupported media type",
    K.HOST_NOT_ALLOWED: "Unknown host name",
    K.LEASE_HELD: "The predecessor may be alive",
    K.FENCED: "A newer attempt counts",
    K.STORAGE_UNREACHABLE: "The storage does not answer",
    K.NOT_READY: "Not ready",
    K.INTERNAL: "Internal error",
}
RETRY_AFTER_S = 2
MOST_SHOWN = 100
"""Characters of a value that a caller sent."""
_LONG_QUOTE = re.compile(rf"(?<!\w)(['\"])((?:(?!\1).){{{MOST_SHOWN}}})(?:(?!\1).)+\1(?!\w)", re.DOTALL)
_LONG_WORD = re.compile(rf"([^\s'\"]{{{MOST_SHOWN}}})[^\s'\"]{{20,}}")
SILENT = "The database does not answer; try again shortly."


def problem(
    kind: ErrorKind,
    detail: str,
    *,
    instance: str,
    request_id: str,
    findings: Iterable[Finding] = (),
    extra: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    """One problem document."""
    body = {
        "type": f"urn:rubato:problem:{kind}",
        "title": TITLE[kind],
        "status": STATUS[kind],
        "detail": shorten(detail),
        "instance": instance,
        "code": str(kind),
        "errors": [{"path": shorten(finding.path), "message": shorten(finding.message)} for finding in findings],
        "request_id": request_id,
        **(extra or {}),
    }
    return JSONResponse(body, status_code=STATUS[kind], headers=headers, media_type=PROBLEM_JSON)


def shorten(text: str) -> str:
    """A sentence in which no value, quoted or of one word, is long: whoever sent it has it."""
    return _LONG_WORD.sub(r"\1...", _LONG_QUOTE.sub(r"\1\2...\1", text))


def problem_for(request: Request, error: Exception) -> JSONResponse:
    """The problem document of any exception; what nobody foresaw is an internal error without details."""
    kind, detail = K.INTERNAL, "Something went wrong in the service; its log has the details under this request_id."
    findings: Iterable[Finding] = ()
    extra: dict[str, Any] = {}
    headers: dict[str, str] = {}
    match error:
        case ServiceError():
            kind, detail, findings, extra = error.kind, error.message, error.findings, error.extra
            if kind is K.RATE_LIMITED:
                headers["Retry-After"] = str(math.ceil(extra["retry_after"]))
        case RequestValidationError():
            kind, findings = K.INVALID_REQUEST, tuple(_finding(item) for item in error.errors())
            detail = "; ".join(str(finding) for finding in findings)
        case IllegalTransition():
            kind, detail = K.CONFLICT, f"The job changed at the same moment: {error}. Look again, then retry."
        case HTTPException():
            kind, detail = _http_kind(error, request)
            headers = dict(error.headers or {})
        case DBAPIError() if (refusal := why_refused(error)) is not None:
            log.error("database_unavailable", error=str(error).splitlines()[0])
            kind, detail = K.NOT_READY, refusal
        case PoolTimeoutError() | DatabaseSilent():
            log.error("database_unavailable", error=str(error).splitlines()[0])
            kind, detail = K.NOT_READY, SILENT
        case DatabaseLost():
            log.critical("database_lost", error=str(error))
            kind, detail = K.NOT_READY, "The database is gone or damaged: the service stops. Its log says what to do."
        case ClientDisconnect():
            kind, detail = K.INVALID_REQUEST, "The connection ended before the request was whole."
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            log.error("disk_full", error=str(error))
            kind, detail = K.NOT_READY, "The disk of the service is full; what was sent is not stored. Make room there."
        case OSError(errno=errno.EROFS | errno.EIO | errno.ESTALE):
            log.error("disk_refused", error=str(error))
            kind, detail = (
                K.NOT_READY,
                f"The disk of the service takes nothing ({error.strerror}); mend it, then retry.",
            )
        case _:
            log.error("unhandled_error", exc_info=error)
    if kind is K.UNAUTHENTICATED:
        headers["WWW-Authenticate"] = "Bearer"
    if STATUS[kind] == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    return problem(
        kind,
        detail,
        instance=request.url.path,
        request_id=str(request.scope.get("request_id", "")),
        findings=findings,
        extra=extra,
        headers=headers,
    )


def why_refused(error: DBAPIError) -> str | None:
    """Why the database took nothing, for whoever sent it; None: it is not the database's state that is at fault."""
    state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "sqlite_errorname", None)
    match state:
        case "53100" | "SQLITE_FULL":
            return "The disk of the database is full; what was sent is not stored. Make room there."
        case "25006" | "SQLITE_READONLY":
            return "The database takes no changes now: it is read-only, or a standby. What was sent is not stored."
        case "25P03" | "25P04":  # it ended a transaction that had waited for the service
            return SILENT
    return SILENT if isinstance(error, OperationalError | InterfaceError) else None


def install_problems(app: FastAPI) -> None:
    """Turn what handlers raise into problem documents."""

    async def respond(request: Request, error: Exception) -> JSONResponse:
        return problem_for(request, error)

    # What is not listed reaches the gate, the last net.
    for kind in (ServiceError, RequestValidationError, IllegalTransition, HTTPException):
        app.add_exception_handler(kind, respond)


def _http_kind(error: HTTPException, request: Request) -> tuple[ErrorKind, str]:
    if isinstance(error.__cause__, RecursionError):  # FastAPI read the body before it was checked
        return K.INVALID_REQUEST, TOO_DEEP
    match error.status_code:
        case 404:
            return K.NOT_FOUND, f"There is nothing at {request.url.path}; /api/openapi.json lists what there is."
        case 405:
            return K.METHOD_NOT_ALLOWED, str(error.detail)
        case 413:
            return K.BODY_TOO_LARGE, str(error.detail)
        case status if 400 <= status < 500:
            return K.INVALID_REQUEST, str(error.detail)
        case _:
            return K.INTERNAL, str(error.detail)


def _finding(item: Any) -> Finding:
    location = [str(part) for part in item.get("loc", ()) if part not in ("body", "query", "path", "header")]
    if item.get("type") == "json_invalid":  # the location is a number of characters
        return Finding("", f"The body is no JSON: {item['ctx']['error']} (at character {location[-1]})")
    return Finding(".".join(location), str(item.get("msg", "is not valid")))
