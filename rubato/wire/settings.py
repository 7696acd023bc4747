"""Settings (`config.lr=0.1`), as the command line and `python train.py` read them: what is said where one is empty."""

from __future__ import annotations

import dataclasses
from typing import Any, get_origin, get_type_hints

from rubato.wire.spec import JobSpec


def why_empty(path: str) -> str:
    """What to write instead of a setting that has no value."""
    if is_section(path):
        return f"{path}= has no value: {path} is a section, its keys are set as {path}.KEY=VALUE"
    return f"{path}= has no value; write {path}=null for none, {path}='\"\"' for an empty text"


def is_section(path: str) -> bool:
    """Whether a field of the job spec always has fields or keys of its own."""
    kind: Any = JobSpec
    for name in path.split("."):
        kind = get_type_hints(kind).get(name) if dataclasses.is_dataclass(kind) else None
    return dataclasses.is_dataclass(kind) or get_origin(kind) is dict
