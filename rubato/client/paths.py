"""Paths of the REST API."""

from __future__ import annotations

from urllib.parse import quote

from rubato.errors import UserError


def path_of(*parts: str) -> str:
    """`/jobs/digits/scale` of its parts. Each is quoted: whatever a name holds, it cannot mean another resource.

    Raises:
        UserError: a part is empty, or one of the dots by which a path goes up.
    """
    for part in parts:
        if part in ("", ".", ".."):
            raise UserError(f"{part!r} names nothing: give a name or an id")
    return "".join(f"/{quote(part, safe='')}" for part in parts)
