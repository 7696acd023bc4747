"""What the OpenAPI document says of refusals."""

from __future__ import annotations

from typing import Any

from api.problems import PROBLEM_JSON
from api.schemas import Problem

_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, as problem documents."""
    return refusals(401, 403, 422, 429, *statuses)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The same of a route that is for everyone: these alone."""
    return {status: {"model": Problem, "content": {PROBLEM_JSON: _SCHEMA}} for status in sorted({*statuses})}
