"""Each recipe as a job of the real service on a real Ray: its bits are those of the script alone, whatever happens."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rubato.recipes import find_recipe
from tests.running_home import PATIENCE_S, PROGRAMS, ClusterJob, RunningHome

pytestmark = pytest.mark.timeout(900)

STEPS, BATCH, MICROBATCHES = 60, 96, 12
CONFIGS: dict[str, dict[str, Any]] = {
    "image-classifier": {"steps": STEPS},
    "char-lm": {"steps": STEPS, "width": 32, "layers": 1, "max_characters": 100_000},
}
EACH_RECIPE = pytest.mark.parametrize("recipe", list(CONFIGS))


@functools.cache
def expected(recipe: str) -> str:
    """The digest that the recipe prints when it runs alone, as a script."""
    flags = [f"--config={key}={json.dumps(value)}" for key, value in CONFIGS[recipe].items()]
    done = subprocess.run(
        [sys.executable, find_recipe(recipe).path, *flags, f"--batch={BATCH}", f"--num-microbatches={MICROBATCHES}"],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.strip().rsplit(" ", 1)[-1]


def spec(workers: int) -> dict[str, Any]:
    return {
        "batch": {"global_size": BATCH, "num_microbatches": MICROBATCHES},
        "workers": {"initial": workers, "min": 1, "max": 4},
    }


def paced(running: RunningHome, scratch: Path, recipe: str, *, workers: int, **changes: Any) -> ClusterJob:
    """The recipe's own `train`, slowed between two steps until the test lets it go."""
    config = {"recipe": recipe, **CONFIGS[recipe]}
    return running.submit(PROGRAMS, "recipe.py:train", scratch, config=config, **spec(workers), **changes)


@EACH_RECIPE
@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_bits_do_not_depend_on_the_worker_count(running: RunningHome, recipe: str, workers: int) -> None:
    submitted = running.client.submit(
        {"name": f"{recipe}-{workers}", "recipe": recipe, "config": CONFIGS[recipe], **spec(workers)}
    )
    running.jobs.append(submitted.id)
    job = ClusterJob(running, submitted.id, hold=Path("/nonexistent"))
    job.check(expected(recipe), STEPS)
    assert [event.data["workers"] for event in job.formed()] == [workers]


@EACH_RECIPE
def test_scaling_while_it_trains(running: RunningHome, tmp_path: Path, recipe: str) -> None:
    job = paced(running, tmp_path, recipe, workers=1)
    job.wait_step(3)
    for workers in (4, 2, 3):
        job.scale(workers)
        job.wait_step(job.now().step + 2)
    job.check(expected(recipe), STEPS)
    assert [event.data["workers"] for event in job.changes()] == [1, 4, 2, 3]
    assert not job.events("worker.lost")


@EACH_RECIPE
def test_scaling_and_a_kill(running: RunningHome, tmp_path: Path, recipe: str) -> None:
    job = paced(running, tmp_path, recipe, workers=1)
    job.wait_step(3)
    job.scale(3)
    job.kill([0], among=3)
    (lost,) = job.wait_events("worker.lost")
    job.wait_formed(3, after=lost.position)
    job.scale(2)
    job.check(expected(recipe), STEPS)
    causes = [event.data["cause"] for event in job.changes()]
    assert (causes[:3], causes[-1]) == (["start", "scale_up", "recovery"], "scale_down")


@EACH_RECIPE
@pytest.mark.parametrize("ranks", [(0,), (1,), (2,), (1, 2, 3), (0, 1, 2)])
def test_sigkill_of_some(running: RunningHome, tmp_path: Path, recipe: str, ranks: tuple[int, ...]) -> None:
    among = 3 if len(ranks) == 1 else 4
    job = paced(running, tmp_path, recipe, workers=among)
    job.wait_step(5)
    job.kill(ranks, among=among)
    lost = job.wait_events("worker.lost", len(ranks))
    assert {event.data["signal"] for event in lost} == {"SIGKILL"}
    job.wait_members(among)
    job.check(expected(recipe), STEPS)
    assert not job.events("job.restarting")


@EACH_RECIPE
def test_sigkill_of_all_resumes_from_the_manifest(running: RunningHome, tmp_path: Path, recipe: str) -> None:
    job = paced(running, tmp_path, recipe, workers=2, checkpoint={"every_steps": 7})
    job.wait_events("checkpoint.committed")
    job.wait_step(12)
    job.kill([0, 1], among=2)
    job.wait_events("job.restarting")
    job.check(expected(recipe), STEPS)
    assert job.now().restarts == 1
    again = job.formed()[-1]
    assert again.step is not None
    assert again.step > 7, "the job began anew instead of resuming"
