"""Every example trains, alone and with two workers, to the same bits; and as its own words say."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rubato.testing import LocalJob

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
ALONE = ("digits", "transformer", "mixed_precision", "streaming")
SMALL = ["--config", "steps=3"]

EACH = f"""
import runpy, sys
for name in {ALONE!r}:
    sys.argv = [name, *{SMALL!r}]
    print("example", name, file=sys.stderr, flush=True)
    runpy.run_path(f"{EXAMPLES}/{{name}}.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def call(home: Path, *command: str) -> str:
    """What a command said, all of it."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "RUBATO_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def digest(said: str) -> str:
    found = re.search(r"digest ([0-9a-f]{64})", said)
    assert found is not None, said
    return found[1]


@pytest.fixture(scope="module")
def alone(home: Path) -> dict[str, str]:
    """Digests by example; in one process, for starting it takes longer than the training."""
    parts = re.split(r"^example (\w+)$", call(home, "-c", EACH), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], map(digest, parts[1::2]), strict=True))


@pytest.mark.parametrize("name", ALONE)
def test_it_trains_to_the_same_bits_alone_and_with_two_workers(home: Path, alone: dict[str, str], name: str) -> None:
    together = call(home, "-m", "rubato.cli", "run", f"examples/{name}.py", "--workers", "2", *SMALL)
    assert digest(together) == alone[name]


@pytest.mark.long
def test_a_model_is_fine_tuned_from_what_another_run_exported(home: Path) -> None:
    trained = call(home, "-m", "rubato.cli", "run", "examples/digits.py", "--config", "epochs=2")
    run = re.search(r"run_[0-9a-f]+", trained)
    assert run is not None, trained
    weights = home / "digits.safetensors"
    call(home, "-m", "rubato.cli", "export", run[0], "-o", str(weights))
    rubato = ("-m", "rubato.cli", "run", "examples/fine_tune.py", "--config", f"weights={weights}")
    said = [call(home, *rubato, "--config", "epochs=1", "--workers", workers) for workers in ("1", "2")]
    assert digest(said[0]) == digest(said[1])


def test_a_horovod_script_trains_to_the_same_bits_on_one_worker_and_scaled_to_two(tmp_path: Path) -> None:
    digests = []
    for scaled_to in (None, 2):
        with LocalJob(
            tmp_path / f"home-{scaled_to}",
            EXAMPLES / "horovod_digits.py",
            entrypoint="horovod_digits.py:main",
            config={"epochs": 40},
            batch={"global_size": 128, "num_microbatches": 4},
            workers={"initial": 1, "min": 1, "max": 2},
        ) as job:
            if scaled_to is not None:
                job.wait_step(1)
                job.scale(scaled_to)
                job.wait_workers(scaled_to)
            digests.append(job.result())
            rows = job.rows()
    assert digests[0] == digests[1]
    assert digests[0][0] == 40 * 12
    assert [row["step"] for row in rows if "accuracy" in row["values"]] == [12 * epoch for epoch in range(1, 41)]
    (scaled,) = (event for event in job.formed() if event["data"]["workers"] == 2)
    assert scaled["step"] > 12, "the second worker has passes over the data to leave out"


@pytest.mark.parametrize("library", ["lightning", pytest.param("accelerate", marks=pytest.mark.long)])
def test_a_counterpart_in_another_library_learns_the_same(home: Path, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"SKIPPED, for {library} is not installed: pip install '.[examples]'")
    theirs = call(home, f"examples/{library}_digits.py", "--epochs", "6")
    assert float(re.findall(r"accuracy (0\.\d+)", theirs)[-1]) > 0.8


def test_the_rubato_version_of_the_counterparts_learns(home: Path) -> None:
    ours = call(home, "examples/digits.py", "--config", "epochs=6")
    assert float(re.findall(r"accuracy (0\.\d+)", ours)[-1]) > 0.8


def test_the_page_names_every_example() -> None:
    named = set(re.findall(r"\]\((\w+)\.py\)", (EXAMPLES / "README.md").read_text()))
    assert named == {path.stem for path in EXAMPLES.glob("*.py")}
