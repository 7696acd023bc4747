"""What to expect of a job before it is submitted: predicted steps, by number of workers and strategy."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from api.auth import Caller, needs
from api.bodies import parse_json, read_body
from api.routes.errors import errors
from rubato.errors import Finding, SpecError
from rubato.planner.choose import Plan, plan
from rubato.planner.links import Link
from rubato.planner.profile import Profile
from rubato.wire.codec import from_json, to_json
from service import jobs
from service.errors import ErrorKind, ServiceError, invalid_spec

router = APIRouter(prefix="/api/v1", tags=["planning"])

MAX_BYTES = 1 << 20
"""Of a request: a spec, and a profile with some thousand layers."""
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "spec": {"type": "object", "description": "A job spec."},
                        "profile": {"type": "object", "description": "What `rubato profile` wrote."},
                        "link": {
                            "type": "object",
                            "properties": {"latency_s": {"type": "number"}, "bytes_per_s": {"type": "number"}},
                            "required": ["latency_s", "bytes_per_s"],
                        },
                    },
                    "required": ["spec", "profile", "link"],
                }
            }
        },
    }
}
T = TypeVar("T")


@router.post("/plan", response_model=Plan, responses=errors(413, 422), openapi_extra=_BODY)
@needs(None)
async def make_plan(request: Request, caller: Caller) -> Any:
    """Predict a step for each number of workers and strategy, from a profile of the program; nothing is stored."""
    body = parse_json(await read_body(request, MAX_BYTES))
    if not isinstance(body, dict) or not {"spec", "profile", "link"} <= body.keys():
        raise ServiceError(
            ErrorKind.INVALID_REQUEST,
            "Send {spec, profile, link}: a job spec, what `rubato profile` wrote, and latency_s and bytes_per_s.",
        )
    spec = jobs.read_spec(body["spec"])
    if spec.backend != "rubato":
        finding = Finding("backend", "Ray Train decides itself how its workers exchange gradients")
        raise invalid_spec(SpecError([finding]))
    profile, link = _part(Profile, body, "profile"), _part(Link, body, "link")
    return to_json(await asyncio.to_thread(plan, profile, link, spec))


def _part(kind: type[T], body: dict[str, Any], name: str) -> T:
    try:
        return from_json(kind, body[name], strict=True)
    except SpecError as error:
        found = [replace(one, path=f"{name}.{one.path}" if one.path else name) for one in error.findings]
        raise invalid_spec(SpecError(found)) from None
