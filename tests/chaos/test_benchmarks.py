"""The benchmark in its shortest form: that every figure is produced, not how fast anything is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.figures import FIGURES

ROOT = Path(__file__).resolve().parents[2]
STORY = [figure.key for figure in FIGURES if figure.run == "story"]
SHORT = ("--peers", "rubato", "--figures", ",".join(STORY), "--rounds", "1", "--width", "32", "--steps", "512")


@pytest.mark.timeout(900)
def test_one_round_gives_every_figure_of_the_story_and_leaves_nothing_behind(tmp_path: Path) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "kept"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *SHORT, "--hold", "0.1", "--json", figures, "--keep", kept],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())["peers"]
    assert set(measured["rubato"]["samples"]) == set(STORY)
    rubato = {key: values[0] for key, values in measured["rubato"]["samples"].items()}
    assert (rubato["equal"], rubato["lost"], rubato["repeated"]) == (1.0, 0.0, 0.0)
    assert rubato["redone"] <= 1.0
    assert rubato["request"] > 0.0
    assert "| downtime, SIGKILL of one of 4, s |" in done.stdout
    again = subprocess.run(
        [sys.executable, "-m", "benchmarks", *SHORT, "--again", figures],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == done.stdout
    left = [one.pid for one in psutil.process_iter() if str(kept) in " ".join(_command(one))]
    assert left == []


@pytest.mark.parametrize(
    ("module", "flags", "told"),
    [
        ("checkpoint_stall", ("--seconds", "4", "--every", "1"), "| stall of a checkpoint |"),
        ("join_size", ("--widths", "64", "--rounds", "1"), "| request -> three train |"),
        ("cluster", ("--width", "64", "--rounds", "1"), "| SIGKILL of the controller: downtime |"),
    ],
)
@pytest.mark.timeout(900)
def test_the_smaller_ones_run(module: str, flags: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{module}", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
