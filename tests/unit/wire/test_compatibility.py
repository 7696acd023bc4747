"""A release takes over what the one before has started: messages change only by what the other side can do without."""

from __future__ import annotations

import json
from typing import Any

from rubato.wire import WIRE_VERSION
from scripts.wire_schema import SCHEMA, schema

RELEASED: dict[str, Any] = json.loads(SCHEMA.read_text())
PRESENT = schema()


def find_breaks(released: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """What a peer of the released schema could not read, or would not be understood in."""
    found = []
    for message, known in released.items():
        fields = present.get(message)
        if fields is None:
            found.append(f"{message} is gone")
            continue
        for name, field in known.items():
            if name not in fields:
                found.append(f"{message}.{name} is gone")
            elif fields[name]["type"] != field["type"]:
                found.append(f"{message}.{name} was {field['type']}, is {fields[name]['type']}")
            elif fields[name]["required"] and not field["required"]:
                found.append(f"{message}.{name} may be left out by the other side")
        found += [
            f"{message}.{name} is new and has no default"
            for name, field in fields.items()
            if name not in known and field["required"]
        ]
    return found


def test_this_release_and_the_one_before_understand_each_other() -> None:
    assert RELEASED["version"] == WIRE_VERSION, "write down the new version, and how the one before is accepted"
    assert find_breaks(RELEASED["messages"], PRESENT["messages"]) == []


def test_what_breaks_is_found() -> None:
    field = {"type": "int", "required": True}
    released = {"w.A": {"x": field, "y": {**field, "required": False}}, "w.B": {}}
    assert find_breaks(released, {"w.A": {"x": field, "y": {**field, "required": False}}, "w.B": {}, "w.C": {}}) == []
    assert find_breaks(released, {"w.A": {"x": {**field, "type": "str"}, "y": field, "z": field}}) == [
        "w.A.x was int, is str",
        "w.A.y may be left out by the other side",
        "w.A.z is new and has no default",
        "w.B is gone",
    ]
    assert find_breaks(released, {"w.A": {}, "w.B": {}}) == ["w.A.x is gone", "w.A.y is gone"]
