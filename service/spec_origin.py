"""Which fields of a resolved spec were not left at their defaults. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from rubato.errors import SpecError
from rubato.wire.codec import to_json
from rubato.wire.spec import JobSpec, WorkersSpec, parse_spec

_FREE = frozenset({"config", "env", "labels"})
"""Mappings with names of the user's own: each of them counts."""


def given_fields(spec: dict[str, Any]) -> list[str]:
    """Paths of all fields with another value than the default, in the order of the spec."""
    return list(_given_fields(json.dumps(spec)))


@lru_cache(maxsize=1_000)
def _given_fields(text: str) -> tuple[str, ...]:
    """Remembered: the stream of a job tells the same spec twice a second."""
    spec = json.loads(text)
    own = {"workers": _worker_defaults(spec), "batch": _defaults()["batch"] | {"num_microbatches": _usual_count(spec)}}
    return tuple(_differing(spec, _defaults() | own, ""))


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


def _usual_count(spec: dict[str, Any]) -> int | str:
    """What `num_microbatches: auto` was resolved to when the spec was stored."""
    try:
        parsed = parse_spec(spec)
    except SpecError:  # of another release
        return "auto"
    return replace(parsed, batch=replace(parsed.batch, num_microbatches="auto")).num_microbatches
