"""Values that are kept as they are measured, so that a measurement of an hour can be gone on with."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")
"""As JSON has it."""


class Kept(Generic[Value]):
    """What was measured, by two names.

    Args:
        file: keeps it; what it has already is taken over.  None: it is kept in memory only.
        terms: of the measurement, as JSON has them; values of others are not mixed with these.

    Raises:  ValueError: the file is of other terms.
    """

    def __init__(self, file: Path | None, terms: Mapping[str, Any]) -> None:
        self._file, self._terms = file, dict(terms)
        self._found: dict[str, dict[str, Value]] = {}
        if file is not None and file.exists():
            kept = json.loads(file.read_text())
            if kept["terms"] != self._terms:
                raise ValueError(f"{file} has runs of {kept['terms']}, these are of {self._terms}: name another file")
            self._found = kept["values"]

    def get(self, group: str, name: str) -> Value | None:
        """To look at or to read, not to change; None: it was not measured."""
        return self._found.get(group, {}).get(name)

    def put(self, group: str, name: str, value: Value) -> None:
        """In the place of what was there."""
        self._found.setdefault(group, {})[name] = value
        if self._file is not None:
            self._file.write_text(json.dumps({"terms": self._terms, "values": self._found}, indent=1))


def add_json_flag(parser: ArgumentParser) -> None:
    """`--json FILE`, of a benchmark that keeps its values."""
    parser.add_argument("--json", type=Path, default=None, help="keep each value here, and go on with those it has")
