"""What to expect of a job before it is submitted: predicted steps, by number of workers and strategy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from api.auth import Caller, Parts, needs
from api.bodies import read_json
from api.routes.errors import errors
from rubato.errors import Finding, SpecError, UserError, unknown_field
from rubato.planner.batches import check_noise
from rubato.planner.choose import Plan, plan
from rubato.planner.links import Link
from rubato.planner.measured import link_of
from rubato.planner.profile import Profile
from rubato.wire.codec import from_json, to_json
from service import jobs
from service.access import Principal
from service.context import Context
from service.errors import ErrorKind, ServiceError, invalid_spec
from service.metrics import finite, newest_metrics

router = APIRouter(prefix="/api/v1", tags=["planning"])

MAX_BYTES = 1 << 20
"""Of a request: a spec, and a profile with some thousand layers."""
MOST_ROWS = 1000
"""Of a job that has measured links: the newest count."""
_FIELDS = {
    "spec": {"type": "object", "description": "A job spec."},
    "profile": {"type": "object", "description": "What `rubato profile` wrote."},
    "link": {
        "type": "object",
        "properties": {"latency_s": {"type": "number"}, "bytes_per_s": {"type": "number"}},
        "required": ["latency_s", "bytes_per_s"],
    },
    "links_of": {"type": "string", "description": "Instead: id or name of a job of the recipe `measure-links`."},
    "noise_scale": {
        "type": "number",
        "description": "Of its gradients, in samples, as a job like it has charted: other batches are compared.",
    },
}
_SCHEMA = {"type": "object", "properties": _FIELDS, "required": ["spec", "profile"], "additionalProperties": False}
_BODY = {"requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMA}}}}
T = TypeVar("T")


@router.post("/plan", response_model=Plan, responses=errors(404, 413, 415), openapi_extra=_BODY)
@needs(None)
async def make_plan(request: Request, context: Parts, caller: Caller) -> Any:
    """Predict a step for each number of workers and strategy, from a profile of the program; nothing is stored."""
    body = await read_json(request, "question", MAX_BYTES)
    fields = body.keys() if isinstance(body, dict) else set()
    _check_fields(fields)
    if not {"spec", "profile"} <= fields or ("link" in fields) == ("links_of" in fields):
        raise ServiceError(
            ErrorKind.INVALID_REQUEST,
            "Send {spec, profile, link}: a job spec, what `rubato profile` wrote, and latency_s and bytes_per_s; "
            "or, instead of link, links_of: a job that has measured the network.",
        )
    spec = jobs.read_spec(body["spec"])
    if spec.backend != "rubato":
        finding = Finding("backend", "Ray Train decides itself how its workers exchange gradients")
        raise invalid_spec(SpecError([finding]))
    profile = _part(Profile, body, "profile")
    link = _part(Link, body, "link") if "link" in body else await _measured(context, caller, body["links_of"])
    noise_scale = _noise_of(body)
    try:
        return to_json(await asyncio.to_thread(plan, profile, link, spec, noise_scale))
    except SpecError as error:
        raise invalid_spec(error) from None


def _check_fields(given: Iterable[str]) -> None:
    unknown = [Finding(name, unknown_field(name, _FIELDS)) for name in given if name not in _FIELDS]
    if unknown:
        raise _invalid(unknown)


def _invalid(findings: Sequence[Finding]) -> ServiceError:
    """The refusal of what is asked beside the spec."""
    told = "; ".join(map(str, findings))
    return ServiceError(ErrorKind.INVALID_REQUEST, f"The question is not valid: {told}", findings=findings)


def _noise_of(body: dict[str, Any]) -> float | None:
    noise_scale = body.get("noise_scale")
    if noise_scale is None:
        return None
    if not isinstance(noise_scale, (int, float)) or isinstance(noise_scale, bool):
        raise _invalid([Finding("noise_scale", "must be a number of samples")])
    try:
        check_noise(noise_scale)
    except SpecError as error:
        raise _invalid(error.findings) from None
    return float(noise_scale)


def _part(kind: type[T], body: dict[str, Any], name: str) -> T:
    try:
        return from_json(kind, body[name], strict=True)
    except SpecError as error:
        found = [replace(one, path=f"{name}.{one.path}" if one.path else name) for one in error.findings]
        raise _invalid(found) from None


async def _measured(context: Context, caller: Principal, reference: Any) -> Link:
    """The links that a job has measured, as far as the caller may know of it."""
    if not isinstance(reference, str):
        raise _invalid([Finding("links_of", "must be the id or the name of a job")])
    async with context.database.read() as session:
        job = await jobs.find_visible(session, reference, caller)
        rows = [finite(row.values) for row in await newest_metrics(session, job.id, MOST_ROWS)]
    try:
        return link_of(rows)
    except UserError as error:
        raise _invalid([Finding("links_of", str(error))]) from None
