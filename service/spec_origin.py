"""Which fields of a resolved spec were not left at their defaults. Pure."""

from __future__ import annotations

from functools import cache
from typing import Any

from rubato.wire.codec import to_json
from rubato.wire.spec import JobSpec, WorkersSpec

_FREE = frozenset({"config", "env", "labels", "aggregation"})
"""Mappings with names of the user's own: each of them counts."""


def given_fields(spec: dict[str, Any]) -> list[str]:
    """Paths of all fields with another value than the default, in the order of the spec."""
    return _differing(spec, _defaults() | {"workers": _worker_defaults(spec)}, "")


def _differing(spec: dict[str, Any], defaults: dict[str, Any], prefix: str) -> list[str]:
    found: list[str] = []
    for name, value in spec.items():
        path, default = prefix + name, defaults.get(name)
        if name in _FREE and not prefix and isinstance(value, dict):
            found += [f"{path}.{key}" for key in value]
        elif isinstance(value, dict) and isinstance(default, dict):
            found += _differing(value, default, f"{path}.")
        elif value != default:
            found.append(path)
    return found


@cache
def _defaults() -> dict[str, Any]:
    """Name and program have none: they are always given."""
    resolved: dict[str, Any] = to_json(JobSpec(name="a", recipe="b"))
    return {name: value for name, value in resolved.items() if name not in {"name", "recipe", "entrypoint"}}


def _worker_defaults(spec: dict[str, Any]) -> dict[str, Any]:
    """`workers.max` follows the others where it is not given; a spec of another release may have other fields."""
    workers = spec.get("workers") or {}
    counts = {name: workers[name] for name in ("initial", "min") if isinstance(workers.get(name), int)}
    usual: dict[str, Any] = to_json(WorkersSpec())
    return usual | {"max": max(8, *counts.values()) if counts else usual["max"]}
