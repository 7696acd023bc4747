"""The disk that holds a local run's own files is full: they wait in memory, and training does not notice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from faulty_run import SPEC, expected
from invariants import check
from local_job import LocalJob
from small_disk import fill

pytestmark = pytest.mark.timeout(240)

STEPS = 40


def local_job(tmp_path: Path, disk: Path) -> LocalJob:
    return LocalJob(
        disk,
        "faulty",
        **SPEC,
        checkpoint_dir=str(tmp_path / "kept"),
        config={"steps": STEPS, "model": "mlp"},
        workers={"initial": 2, "min": 1, "max": 4},
    )


def test_a_full_disk_does_not_end_a_run_and_its_files_catch_up(tmp_path: Path, small_disk: Path) -> None:
    with local_job(tmp_path, small_disk) as run:
        run.wait_step(4)
        ballast = fill(small_disk)
        # A page of each file may have room yet; each step tells a row of about 400 bytes.
        run.wait(lambda: "No space left" in run.told(), "word of the full disk")
        full = run.step
        run.scale(3)
        run.wait_step(full + 4)
        for path in run.run.folder.glob("*.jsonl"):
            assert (path.read_text() or "\n").endswith("\n"), f"half a line in {path.name}"
        assert run.rows()[-1]["step"] < full + 4, "the disk was not full"
        ballast.unlink()
        run.wait(lambda: run.rows()[-1]["step"] >= full + 4, "the rows that were kept")
        check(run, expected("mlp", STEPS))
    assert run.told().count("No space left") == 1, "said once"
    assert run.formed()[-1]["data"]["workers"] == 3
    assert "were written after all" in run.told()


def test_a_disk_that_stays_full_costs_the_files_their_end_and_says_so(tmp_path: Path, small_disk: Path) -> None:
    with local_job(tmp_path, small_disk) as run:
        run.wait_step(4)
        fill(small_disk)
        run.wait(lambda: "No space left" in run.told(), "word of the full disk")
        assert run.result() == (STEPS, expected("mlp", STEPS).digest)
    for path in run.run.folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            json.loads(line)
    assert "lines of metrics.jsonl were never written" in run.told()
