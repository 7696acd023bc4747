"""What a request may say besides its path: parameters that a route does not have are refused, never ignored."""

from __future__ import annotations

from difflib import get_close_matches

from fastapi import Request
from fastapi.dependencies.models import Dependant

from rubato.errors import Finding
from service.errors import ErrorKind, ServiceError

STRICT_PREFIX = "/api/v1/"
"""Addresses of the page have parameters that only its script reads, and clusters of another release may send more."""


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse a query parameter that the route does not have: a misspelt one would ask for something else.

    Raises:
        ServiceError: invalid_request, with a finding for each.
    """
    route = request.scope["route"]
    if not request.query_params or not route.path.startswith(STRICT_PREFIX):
        return
    known = sorted(names_of(route.dependant))
    findings = [Finding(name, why_unknown(name, known)) for name in request.query_params if name not in known]
    if findings:
        detail = "; ".join(f"{finding.path!r} {finding.message}" for finding in findings)
        raise ServiceError(ErrorKind.INVALID_REQUEST, f"{detail}.", findings=findings)


def names_of(dependant: Dependant) -> set[str]:
    """The query parameters of a route and of all that it depends on."""
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*(names_of(part) for part in dependant.dependencies))


def why_unknown(name: str, known: list[str]) -> str:
    """What to ask for instead."""
    if not known:
        return "is no parameter of this route, which takes none"
    near = get_close_matches(name[:100], known, n=1)
    advice = f"; did you mean {near[0]}?" if near else ""
    return f"is no parameter of this route, which takes {', '.join(known)}{advice}"
