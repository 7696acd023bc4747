"""The job spec as a JSON Schema, from the dataclasses themselves: for editors, forms, and programs that write specs.

It says which keys there are, of which type, with which default and meaning. Bounds, and how keys depend on each other,
are for `parse_spec` alone: a dry run (`POST /api/v1/jobs?dry_run=true`) names everything that is wrong.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import types
import typing
from types import ModuleType
from typing import Any, Literal

from rubato.wire import spec
from rubato.wire.codec import to_json

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The one that every editor knows."""


def field_meanings(module: ModuleType, name: str) -> dict[str, str]:
    """By field of a class: the string that stands under it in the code, in one line; empty where none does."""
    tree = ast.parse(inspect.getsource(module))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    meanings = {}
    for node, after in zip(found.body, [*found.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            meanings[node.target.id] = " ".join(str(said).split())
    return meanings


@functools.cache
def job_spec_schema() -> dict[str, Any]:
    """The schema of what `parse_spec` reads; sections are in `definitions`, each under the name of its class."""
    sections: dict[str, Any] = {}
    top = _describe_section(spec.JobSpec, sections)
    return {
        "$schema": DIALECT,
        "title": "Rubato job spec",
        **top,
        "definitions": dict(sorted(sections.items())),
    }


def _describe_section(section: type, sections: dict[str, Any]) -> dict[str, Any]:
    """One class as an object; the sections below it are added to `sections`."""
    hints = typing.get_type_hints(section)
    meanings = field_meanings(sys.modules[section.__module__], section.__name__)
    properties, required = {}, []
    for field in dataclasses.fields(section):
        described = _describe(hints[field.name], sections, is_parsed="parse" in field.metadata)
        described["description"] = meanings[field.name]
        if field.default_factory is not dataclasses.MISSING:
            described["default"] = to_json(field.default_factory())
        elif field.default is dataclasses.MISSING:
            required.append(field.name)
        elif not dataclasses.is_dataclass(field.default):  # the keys of a section have defaults of their own
            described["default"] = to_json(field.default)
        properties[field.name] = described
    described_section: dict[str, Any] = {
        "description": " ".join((inspect.getdoc(section) or "").split()),
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return {**described_section, "required": required} if required else described_section


def _describe(hint: Any, sections: dict[str, Any], *, is_parsed: bool) -> dict[str, Any]:
    """A type.

    Args:
        hint: the annotation.
        sections: where classes are described that it names.
        is_parsed: a duration or a size: a number, or a text with a unit.
    """
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Union | types.UnionType:
            kinds = [_describe(one, sections, is_parsed=is_parsed) for one in arguments]
            return {"anyOf": [kind for index, kind in enumerate(kinds) if kind not in kinds[:index]]}
        case origin if origin is Literal:
            return {"enum": list(arguments)}
        case origin if origin is tuple:
            return {"type": "array", "items": _describe(arguments[0], sections, is_parsed=False)}
        case origin if origin is dict:
            return {"type": "object", "additionalProperties": _describe(arguments[1], sections, is_parsed=False)}
    if hint is Any:
        return {}
    if dataclasses.is_dataclass(hint):
        name = typing.cast(type, hint).__name__
        if name not in sections:
            sections[name] = _describe_section(typing.cast(type, hint), sections)
        return {"$ref": f"#/definitions/{name}"}
    if is_parsed and hint in (int, float):
        return {"type": ["number", "string"]}
    return {"type": _PLAIN[hint]}


_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
