"""Rubato: `rubato run`, led by this process; the coordinator, supervisors and engine are those of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.local_job import local_job
from benchmarks.peers.peer import MAX_WORKERS, JsonLines, Kind, read_results
from benchmarks.programs.workload import Workload
from benchmarks.timeline import Row, seconds_of
from rubato.testing import LocalJob

MICROBATCHES = 8
"""Of 32 samples: what `auto` makes of 256 samples and at most 4 workers."""


class RubatoRun:
    """The reproducible mode."""

    def __init__(self, folder: Path, job: Workload) -> None:
        self._folder = folder
        self._job = job
        self._local: LocalJob | None = None

    def prepare(self, workers: int) -> None:
        pass

    def start(self, workers: int, low: int, high: int) -> None:
        self._local = local_job(self._job, MICROBATCHES, workers={"initial": workers, "min": low, "max": high})
        self._rows = JsonLines(self._local.run.folder / "metrics.jsonl")
        self._local.__enter__()

    @property
    def _run(self) -> LocalJob:
        assert self._local is not None
        return self._local

    def scale(self, workers: int) -> None:
        self._run.scale(workers)

    def kill(self) -> None:
        self._run.wait_workers(MAX_WORKERS)
        self._run.kill([2])

    def rows(self) -> list[Row]:
        return [
            Row(row["step"], seconds_of(row["time"]), row["workers"], str(row["generation"]))
            for row in self._rows.read()
        ]

    def redone(self) -> float:
        formed = [event["data"] for event in self._run.events("generation.formed")]
        return float(sum(data["redone_microbatches"] for data in formed) / MICROBATCHES)

    def is_over(self) -> bool:
        return self._run.outcome is not None or self._run.error is not None

    def results(self) -> list[dict[str, Any]]:
        return read_results(self._folder)

    def output(self) -> str:
        return "\n".join([*self._run.told().splitlines()[-12:], str(self._run.outcome or self._run.error or "")])

    def close(self) -> None:
        if self._local is not None:
            self._local.__exit__()


RUBATO = Kind(
    RubatoRun,
    "Rubato",
    packages=("torch",),
    notes=(f"Rubato cuts the batch in {MICROBATCHES} microbatches; it saves checkpoints every 30 s, its default.",),
)
