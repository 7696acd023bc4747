"""What a local run has written into its folder, for whoever asks from another terminal, or after its end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rubato.errors import RunNotFound, UserError
from rubato.launch.control import RUN_FILE, ask_run
from rubato.launch.lines import LineReader
from rubato.wire.units import utc_timestamp

File = Literal["events", "metrics", "logs"]
LOOK_EVERY_S = 0.3
"""While lines are waited for."""
OUTCOME = "outcome"
"""Kind of the last event of a run that ended as it should."""
WANTED = ("desired_workers", "min_workers", "max_workers")


def runs_folder(home: Path) -> Path:
    """Where all local runs of a home keep their folders."""
    return home / "runs"


def run_folder(home: Path, run_id: str) -> Path:
    """Where a run keeps its files."""
    return runs_folder(home) / run_id


def run_ids(home: Path) -> list[str]:
    """All runs of a home, the oldest first: their ids sort by time."""
    return sorted(path.parent.name for path in runs_folder(home).glob(f"*/{RUN_FILE}"))


def read_record(home: Path, run_id: str) -> LocalRecord:
    """What a run says of itself.

    Raises:
        RunNotFound: there is none of this id, or its record cannot be read.
    """
    folder = run_folder(home, run_id)
    try:
        record = json.loads((folder / RUN_FILE).read_text())
    except (OSError, ValueError) as error:
        raise RunNotFound(
            f"there is no run {run_id} in {runs_folder(home)}; `rubato run` prints the id of each run, and RUBATO_HOME "
            "says where runs are kept"
        ) from error
    return LocalRecord(
        folder,
        run_id,
        name=str(record.get("name", run_id)),
        checkpoints=str(record.get("checkpoints", folder / "checkpoints")),
        wanted={key: int(record[key]) for key in WANTED if key in record},
        began_at=utc_timestamp(int(run_id[4:12], 16)),
    )


@dataclass(frozen=True)
class LocalRecord:
    """The folder of one run."""

    folder: Path
    run_id: str
    name: str
    """Of the job that it trains."""
    checkpoints: str
    """Where they lie: a path or a URI."""
    wanted: dict[str, int]
    """Of `WANTED`, as it was when the run began."""
    began_at: str
    """RFC 3339, UTC."""

    def status(self) -> dict[str, Any] | None:
        """What the run answers of itself; None: it has ended."""
        with contextlib.suppress(RunNotFound):
            return self.ask({"verb": "status"})
        return None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the run answers.

        Raises:
            RunNotFound: it has ended.  UserError: it refused, and says why; or it does not answer.
        """
        try:
            return ask_run(self.folder, request)
        except (FileNotFoundError, ConnectionError) as error:
            raise RunNotFound(f"no run {self.run_id} is alive; `rubato get {self.run_id}` says how it ended") from error
        except OSError as error:
            raise UserError(
                f"run {self.run_id} does not answer ({error}): its process may be stopped, or be another user's"
            ) from error

    def outcome(self) -> dict[str, Any] | None:
        """Its last event; None where it is not over, or was killed."""
        ends = [event for event in self.lines("events") if event.get("kind") == OUTCOME]
        return ends[-1] if ends else None

    def written_at(self) -> str:
        """When its newest event was written, RFC 3339, UTC."""
        return utc_timestamp(max(path.stat().st_mtime for path in self.folder.glob("*.json*")))

    def lines(self, name: File) -> list[dict[str, Any]]:
        """All that a file says so far."""
        return [line for _, line in self.numbered(name)]

    def follow(self, name: File) -> Iterator[dict[str, Any]]:
        """The lines of a file, and those that are added until the run is over."""
        return (line for _, line in self.follow_numbered(name))

    def numbered(self, name: File) -> Iterator[tuple[int, dict[str, Any]]]:
        """The lines of a file that are kept, each with its number among all that there were, counted from 1."""
        return self._reader(name).read()

    def follow_numbered(self, name: File) -> Iterator[tuple[int, dict[str, Any]]]:
        """As `numbered`, and those that are added until the run is over."""
        reader = self._reader(name)
        while True:
            is_over = self.status() is None  # before the look: what was written until the end is seen by it
            yield from reader.read()
            if is_over:
                return
            time.sleep(LOOK_EVERY_S)

    def _reader(self, name: File) -> LineReader:
        return LineReader(self.folder / f"{name}.jsonl")
