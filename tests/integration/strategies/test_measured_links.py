"""A job of the recipe `measure-links` says what its links carry; real processes, the planner reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rubato.launch.local import run_local
from rubato.planner.links import Link
from rubato.planner.measured import link_of
from rubato.recipes import find_recipe
from rubato.testing import LocalJob
from rubato.wire.spec import parse_spec


def values(tmp_path: Path, workers: int) -> list[dict[str, Any]]:
    """The metrics of each step."""
    spec = {"name": "links", "recipe": "measure-links", "config": {"rounds": 2}, "workers": {"initial": workers}}
    assert run_local(parse_spec(spec), working_dir=tmp_path, checkpoint_dir=None, home=tmp_path) == 0
    (told,) = tmp_path.glob("runs/*/metrics.jsonl")
    return [json.loads(line)["values"] for line in told.read_text().splitlines()]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_measures_its_links(tmp_path: Path, workers: int) -> None:
    rows = values(tmp_path, workers)
    assert len(rows) == 2
    if workers == 1:
        assert not any(name.startswith("link_") for row in rows for name in row)
        return
    link = link_of(rows)
    assert isinstance(link, Link)
    assert link.measured_workers == 2
    assert {"direct", "ring", "tree", "halving_doubling", "native", "all_gather"} == link.start_s.keys()


@pytest.mark.long
def test_a_loss_while_links_are_measured_is_repaired(tmp_path: Path) -> None:
    with LocalJob(
        tmp_path,
        find_recipe("measure-links").path,
        config={"rounds": 12},
        workers={"initial": 3, "min": 1, "max": 3},
    ) as job:
        job.wait_step(1)
        job.kill_and_wait([1])
        job.wait_step(job.step + 1)
        job.kill_and_wait([0])
        step, _ = job.result()
    assert step == 12
    rows = [row["values"] for row in job.rows()]
    assert link_of(rows).measured_workers in (2, 3)
    assert len(job.events("worker.lost")) == 2
