"""The workload as a job of `rubato run`, led by this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.processes import PROGRAMS
from benchmarks.programs.workload import Workload
from rubato.testing import LocalJob


def local_job(workload: Workload, num_microbatches: int, config: dict[str, Any] | None = None, **rest: Any) -> LocalJob:
    """A job that keeps its files in the workload's folder.

    Args:    config: besides steps and workload.  rest: of `LocalJob`.
    """
    return LocalJob(
        Path(workload.folder) / "home",
        PROGRAMS / "rubato_mlp.py",
        config={"steps": workload.steps, "workload": workload.to_json(), **(config or {})},
        batch={"global_size": workload.batch, "num_microbatches": num_microbatches},
        **rest,
    )
