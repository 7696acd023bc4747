"""Files of JSON lines that somebody writes meanwhile, as they are read: whole lines, over the change to a new file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

FIRST = "first_line"
"""Key of the one entry of a file's first line, where another file came before it: the number of the line behind it."""


def older(path: Path) -> Path:
    """The file that came before, as far as it is kept."""
    return path.with_name(f"{path.name}.1")


class LineReader:
    """Reads on where it was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = 0
        """Number of the last line that was read."""
        self._places: dict[int, tuple[int, int]] = {}
        """Of each file, by the number of its first line, the byte to read on at, and the number of the line there."""

    def read(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines that are there and were not read yet, each with its number, counted from 1."""
        with contextlib.ExitStack() as opened:
            files = []
            # The newer one first: should it be put aside before the other is opened, it is found twice, not never.
            for path in (self._path, older(self._path)):
                with contextlib.suppress(FileNotFoundError):
                    files.append(opened.enter_context(path.open("rb")))
            for file in reversed(files):
                yield from self._read(file)

    def _read(self, file: BinaryIO) -> Iterator[tuple[int, dict[str, Any]]]:
        head = file.readline()
        if not head.endswith(b"\n"):
            return  # it is being written, as any half line is
        said = json.loads(head)
        begin = (len(head), int(said[FIRST])) if said.keys() == {FIRST} else (0, 1)
        at, number = self._places.get(begin[1], begin)
        file.seek(at)
        for raw in file:
            if not raw.endswith(b"\n"):
                return
            mine, at, number = number, at + len(raw), number + 1
            self._places[begin[1]] = at, number
            if mine > self._last:
                self._last = mine
                yield mine, json.loads(raw)
