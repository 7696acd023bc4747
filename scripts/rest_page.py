"""The REST reference as one Markdown page, from docs/reference/openapi.json: what the site of the documents shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

FIRST = ("jobs", "live data", "workers", "scheduling", "packages and checkpoints")
"""What most people look up; the other tags follow by name."""
INTRODUCTION = """# REST

Every route, as `docs/reference/openapi.json` and a running service under `/api/openapi.json` describe it. Requests
carry `Authorization: Bearer TOKEN`; errors are `application/problem+json` with `code`, `detail` and a list of
findings: see
[Problem](#problem).
"""
OF_ALL = {"401", "403", "422", "429"}
"""Every route may answer these: no or a wrong token, no permission, a wrong request, too many."""


def render(openapi: Path) -> str:
    """The page."""
    described = json.loads(openapi.read_text())
    by_tag: dict[str, list[str]] = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append("\n".join(_operation(method, path, operation)))
    tags = sorted(by_tag, key=lambda tag: (FIRST.index(tag) if tag in FIRST else len(FIRST), tag))
    parts = [INTRODUCTION]
    parts += ["\n\n".join([f"## {tag.capitalize()}", *by_tag[tag]]) for tag in tags]
    parts.append("## Schemas")
    parts += ["\n".join(_schema(name, schema)) for name, schema in sorted(described["components"]["schemas"].items())]
    return "\n\n".join(parts) + "\n"


def _operation(method: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`\n"
    yield str(operation.get("description", operation["summary"]))
    if parameters := operation.get("parameters"):
        yield "\n| parameter | in | type | default | meaning |\n|---|---|---|---|---|"
        for one in parameters:
            schema = one["schema"]
            default = "required" if one.get("required") else _value(schema.get("default"))
            meaning = _cell(one.get("description", ""))
            yield f"| `{one['name']}` | {one['in']} | {_type(schema)} | {default} | {meaning} |"
    if body := operation.get("requestBody"):
        kinds = [f"{_type(content['schema'])} as `{kind}`" for kind, content in body["content"].items()]
        yield f"\nBody: {', or '.join(kinds)}."
    answers = [_answer(code, answer) for code, answer in operation["responses"].items() if code not in OF_ALL]
    yield f"\nAnswers: {', '.join(answers)}.\n"


def _answer(code: str, answer: Schema) -> str:
    contents = list(answer.get("content", {}).values())
    return f"{code} {_type(contents[0]['schema'])}" if contents and contents[0].get("schema") else code


def _schema(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}\n"
    if description := schema.get("description"):
        yield f"{description}\n"
    if properties := schema.get("properties"):
        required = schema.get("required", [])
        yield "| field | type | meaning |\n|---|---|---|"
        for field, one in properties.items():
            optional = "" if field in required else " (optional)"
            yield f"| `{field}` | {_type(one)}{optional} | {_cell(one.get('description', ''))} |"
    elif "enum" in schema:
        yield _type(schema)


def _type(schema: Schema) -> str:
    """A type in words, with links to the schemas it names."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_type(one) for one in schema[several])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "anything"))


def _value(value: object) -> str:
    return "" if value in (None, "") else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
