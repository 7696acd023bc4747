"""A recipe is profiled and planned for by its name; nothing is trained here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rubato.cli import planning
from rubato.planner.measured import Passes, Seen, profile_of
from rubato.wire.codec import to_json
from rubato.wire.spec import JobSpec
from tests.unit.cli.fake_service import FakeService, Reply, Rubato


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


def test_links_are_those_that_a_job_has_measured(
    rubato: Rubato, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = Seen("only", ((800, 800), (800,)), 1e-3, 2e-3)
    passes = [Passes(samples, (layer,), 1e-4, 640_800, 1000, "cpu") for samples in (4, 8)]
    (tmp_path / "profile.json").write_text(json.dumps(to_json(profile_of(passes))))
    monkeypatch.chdir(tmp_path)
    row = {"link_latency_s": 1e-3, "link_bytes_per_s": 1.25e6, "link_workers": 4.0, "link_large_bytes": 1e6}
    point = {"position": 1, "step": 1, "time": "2026-01-01T00:00:00Z", "values": row, "workers": 4}
    service.on(
        "GET",
        "/jobs/links/metrics",
        lambda request: Reply({"items": [] if int(request.query.get("after", "0")) else [point]}),
    )
    measured = rubato("plan", "--recipe", "char-lm", "--links-of", "links")
    assert measured.code == 0, measured.err
    assert measured.out == rubato("plan", "--recipe", "char-lm", "--gbit", "0.01", "--latency-ms", "1").out


@pytest.mark.parametrize("flags", [[], ["--gbit", "1", "--links-of", "links"]])
def test_the_network_is_told_once(rubato: Rubato, flags: list[str]) -> None:
    done = rubato("plan", "--recipe", "char-lm", *flags)
    assert done.code == 2
    assert "say --gbit, or --links-of a job that has measured the network" in done.err
