"""Writes down what the processes of this release say to each other: `docs/reference/wire.json`.

Run when a release is made. Until the next one, `tests/unit/wire/test_compatibility.py` holds every change against it.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

from rubato.wire import WIRE_VERSION, cluster, worker

SCHEMA = Path(__file__).resolve().parents[1] / "docs" / "reference" / "wire.json"

Fields = dict[str, dict[str, Any]]
"""By name: `type` as it is written in the code, and `required`."""


def messages() -> dict[str, type]:
    """Every dataclass that crosses processes, by `module.Name`."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": kind
        for module in (worker, cluster)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    }


def fields_of(kind: type) -> Fields:
    """What a message of this class must and may have."""
    hints = typing.get_type_hints(kind)
    missing = dataclasses.MISSING
    return {
        field.name: {
            "type": _describe(hints[field.name]),
            "required": field.default is missing and field.default_factory is missing,
        }
        for field in dataclasses.fields(kind)
    }


def schema() -> dict[str, Any]:
    """Of this release."""
    return {"version": WIRE_VERSION, "messages": {name: fields_of(kind) for name, kind in sorted(messages().items())}}


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is None and isinstance(hint, type):
        return hint.__name__
    return str(hint).replace("typing.", "").replace("rubato.wire.", "")


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(schema(), indent=1) + "\n")
    print(f"wrote {SCHEMA.name}")
