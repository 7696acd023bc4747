"""The benchmark in its shortest form: that every figure is produced, not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.figures import FIGURES

ROOT = Path(__file__).resolve().parents[3]
SHORT = ("--rounds", "1", "--width", "32", "--steps", "512", "--steady-steps", "16", "--hold", "0.1")


@pytest.mark.timeout(900)  # about 50 s on two cores that do nothing else
def test_one_round_gives_every_figure_and_leaves_nothing_behind(tmp_path: Path) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--peers", "rubato,ddp", *SHORT, "--json", figures, "--keep", kept],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())
    assert set(measured["rubato"]["samples"]) == {figure.key for figure in FIGURES}
    assert set(measured["ddp"]["samples"]) == {"start", "steady_2", "steady_4"}
    rubato = {key: values[0] for key, values in measured["rubato"]["samples"].items()}
    assert (rubato["equal"], rubato["lost"], rubato["repeated"]) == (1.0, 0.0, 0.0)
    assert rubato["redone"] <= 1.0
    assert all(seconds > 0.0 for key, seconds in rubato.items() if key in ("start", "request", "steady_2", "steady_4"))
    assert "| downtime, SIGKILL of one of 4, s |" in done.stdout
    left = [one.pid for one in psutil.process_iter() if str(kept) in " ".join(_command(one))]
    assert left == []


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
