"""A recipe is profiled and planned for by its name; nothing is trained here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rubato.cli import planning
from rubato.planner.measured import Passes, Seen
from rubato.wire.spec import JobSpec
from tests.unit.cli.fake_service import Rubato


def test_a_recipe_needs_no_file(rubato: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    measured: list[tuple[str | None, Path, int]] = []

    def measure(spec: JobSpec, folder: Path, samples: int, *, with_codecs: bool) -> Passes:
        measured.append((spec.recipe, folder, samples))
        return Passes(samples, (Seen("only", ((8, 8), (8,)), 1e-3 * samples, 2e-3 * samples),), 1e-4, 72, 1000, "cpu")

    monkeypatch.setattr(planning, "_measure", measure)
    done = rubato("profile", "--recipe", "image_classifier", "--set", "batch.global_size=64")
    assert done.code == 0
    assert measured == [("image-classifier", tmp_path, samples) for samples in (4, 8, 16)]
    said = re.search(r"`rubato (.+)` says what to expect", done.err)
    assert said is not None

    planned = rubato(*said[1].split())
    assert planned.code == 0
    assert planned.out == rubato("plan", "--recipe", "image-classifier", "--gbit", "10").out
    assert "The fastest of each strategy:" in planned.out


def test_a_recipe_that_is_not_there(rubato: Rubato) -> None:
    done = rubato("plan", "--recipe", "image-classifer", "--gbit", "10")
    assert done.code == 1
    assert "did you mean 'image-classifier'" in done.err
