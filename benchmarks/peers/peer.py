"""What a peer can be asked for, and the part that those share whose programs write to the folder of the run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchmarks.processes import Processes
from benchmarks.programs.workload import Workload
from benchmarks.timeline import Row

MAX_WORKERS = 4


class PeerFailed(Exception):
    """A peer did not do what was asked of it; the message says what is known."""


class Peer(Protocol):
    """One run of the workload, from `start` to `close`."""

    def prepare(self, workers: int) -> None:
        """Have ready what is there before a job comes: a cluster with room for so many workers, a server."""

    def start(self, workers: int, low: int, high: int) -> None:
        """Begin to train with so many workers, between these bounds."""

    def scale(self, workers: int) -> None:
        """Ask for another number of workers; does not wait."""

    def kill(self) -> None:
        """SIGKILL the training process of rank 2."""

    def rows(self) -> list[Row]:
        """Committed steps so far."""

    def redone(self) -> float:
        """Steps that were computed again without being committed twice."""

    def is_over(self) -> bool:
        """Whether it has ended, well or not."""

    def results(self) -> list[dict[str, Any]]:
        """What each worker told at the end."""

    def output(self) -> str:
        """The end of what it printed."""

    def close(self) -> None:
        """End all of its processes."""


@dataclass(frozen=True)
class Kind:
    """A peer as the table knows it."""

    make: Callable[[Path, Workload], Peer]
    title: str
    packages: tuple[str, ...]
    """Whose versions the table names."""
    notes: tuple[str, ...] = ()
    """What a reader must know of how it was run: settings, patches."""
    is_elastic: bool = True
    """Whether it can be scaled, and goes on after a loss."""
    pace: float = 1.0
    """How many times the usual steps a run with changes needs: slow ones train on for longer before they react."""


class JsonLines:
    """A file of JSON lines that somebody else writes; each line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.values: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """All lines so far that are whole."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._offset += len(line)
                    self.values.append(json.loads(line))
        return self.values


def read_results(folder: Path) -> list[dict[str, Any]]:
    """What the workers of a run left when they ended."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]


class FolderPeer:
    """A peer whose workers write rows, results and process ids to the folder of the run."""

    def __init__(self, folder: Path, job: Workload) -> None:
        self.folder = folder
        self.job = job
        self.processes = Processes(folder / "log")
        self._lines = JsonLines(folder / "rows.jsonl")

    def prepare(self, workers: int) -> None:
        pass

    def kill(self) -> None:
        os.kill(int((self.folder / "pid-2").read_text()), signal.SIGKILL)

    def rows(self) -> list[Row]:
        rows = [Row(**line) for line in self._lines.read() if "dropped" not in line]
        return sorted(rows, key=lambda row: row.time)

    def redone(self) -> float:
        return float(sum("dropped" in line for line in self._lines.read()))

    def is_over(self) -> bool:
        return self.processes.are_gone()

    def results(self) -> list[dict[str, Any]]:
        return read_results(self.folder)

    def output(self) -> str:
        return self.processes.output()

    def close(self) -> None:
        self.processes.close()
