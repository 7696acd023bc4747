"""A copy of each recipe, run as a script with nothing around it, learns."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rubato.recipes import find_recipe

ROOT = Path(__file__).resolve().parents[3]


def run_copy(name: str, folder: Path, *settings: str) -> str:
    copy = Path(shutil.copy(find_recipe(name).path, folder / "train.py"))
    flags = [flag for setting in settings for flag in ("--config", setting)]
    done = subprocess.run(
        [sys.executable, str(copy), *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def values(output: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"\b{name} ([\d.]+)", output)]


@pytest.mark.long  # the demo's does, too
def test_the_image_classifier_reaches_97_percent(tmp_path: Path) -> None:
    output = run_copy("image-classifier", tmp_path, "epochs=20")
    assert values(output, "accuracy")[-1] >= 0.97, output
    assert re.search(r"step 120, digest [0-9a-f]{64}", output), output


def test_the_language_model_learns(tmp_path: Path) -> None:
    output = run_copy("char-lm", tmp_path, "steps=40", "evaluate_every=20", "max_characters=300000")
    before, after = values(output, "val_loss")
    assert after < before < 4.85, output  # ln 128: knowing nothing
    assert after < 3.1, output  # 3.14: knowing only how frequent each character is


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unexpected keyword argument 'epoch'"):
        run_copy("image-classifier", tmp_path, "epoch=3")
