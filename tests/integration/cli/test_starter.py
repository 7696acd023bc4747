"""What `rubato init` writes trains, alone and with local workers, to the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rubato.cli.app import run

ROOT = Path(__file__).parents[3]


def train(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RUBATO_HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"digest ([0-9a-f]{64})", done.stdout + done.stderr)
    assert found is not None, done.stdout + done.stderr
    return found.group(1)


EACH = """
import runpy, sys
for name in ("images", "text", "stream"):
    sys.argv = ["train.py", "--config", "steps=2", "--config", "epochs=1", "--batch", "128", "--num-microbatches", "2"]
    print(name, flush=True)
    runpy.run_path(f"{name}/train.py", run_name="__main__")
"""


@pytest.mark.long
def test_every_other_template_trains(tmp_path: Path) -> None:
    """In one process, for starting it takes longer than the training."""
    for name in ("images", "text", "stream"):
        assert run(["init", str(tmp_path / name), "--template", name]) == 0
    (tmp_path / "each.py").write_text(EACH)
    train(tmp_path, "each.py")


def test_the_starter_trains_to_the_same_bits_alone_and_with_two_workers(tmp_path: Path) -> None:
    folder = tmp_path / "starter"
    assert run(["init", str(folder)]) == 0
    alone = train(folder, "train.py", "--config", "epochs=1")
    together = train(folder, "-m", "rubato.cli", "run", "job.yaml", "--workers", "2", "--config", "epochs=1")
    assert together == alone
