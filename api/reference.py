"""The API's description as one page of plain HTML: readable offline, without a script."""

from __future__ import annotations

from html import escape
from typing import Any

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rubato API</title></head>
<body><h1>Rubato API</h1>
<p>Every call carries <code>Authorization: Bearer rbt_...</code>; every error is
<code>application/problem+json</code>. The same for machines: <a href="/api/openapi.json">/api/openapi.json</a>.</p>
{sections}
</body></html>
"""


def render_reference(description: dict[str, Any]) -> str:
    """All calls by tag, in the order of the description."""
    sections: dict[str, list[str]] = {}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            for tag in operation.get("tags", ["other"]):
                sections.setdefault(tag, []).append(_call(method, path, operation))
    return _PAGE.format(
        sections="\n".join(f"<h2>{escape(tag)}</h2>\n{''.join(calls)}" for tag, calls in sections.items())
    )


def _call(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = [
        f"<li><code>{escape(item['name'])}</code> ({escape(item['in'])}) {escape(item.get('description', ''))}</li>"
        for item in operation.get("parameters", [])
    ]
    replies = ", ".join(escape(status) for status in operation["responses"])
    return (
        f"<h3><code>{escape(method.upper())} {escape(path)}</code></h3>\n"
        f"<p>{escape(operation.get('description', ''))}</p>\n"
        f"<ul>{''.join(parameters)}<li>replies: {replies}</li></ul>\n"
    )
