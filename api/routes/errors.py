"""What the OpenAPI document says of refusals."""

from __future__ import annotations

from typing import Any

from api.problems import PROBLEM_JSON
from api.schemas import Problem

_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, as problem documents."""
    shown = {401, 403, 429, *statuses}
    return {status: {"model": Problem, "content": {PROBLEM_JSON: _SCHEMA}} for status in sorted(shown)}
