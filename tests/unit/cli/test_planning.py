"""A recipe is profiled and planned for by its name; nothing is trained here."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from rubato.cli import planning
from rubato.planner.choose import METHODS
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
    slow = ("plan", "--recipe", "image-classifier", "--gbit", "1", "--latency-ms", "5000")
    assert "--all shows each strategy with more workers" in rubato(*slow, "--set", "workers.max=4").out
    assert "--all shows" not in rubato(*slow, "--set", "workers.max=1").out, "there are no more"
    assert "--all shows" not in rubato(*slow, "--set", "workers.max=4", "--all").out


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


def test_files_are_looked_for_where_the_program_lies(
    rubato: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    files = {name: tmp_path / "below" / name for name in ("train.py", "net.py")} | {"data.py": tmp_path / "data.py"}
    for file in files.values():
        file.write_text("was = 1\n")
    (tmp_path / "train.py").write_text("other = 1\n")
    (tmp_path / "job.yaml").write_text("name: a\nentrypoint: below/train.py:train\n")
    layer = Seen("only", ((8, 8), (8,)), 1e-3, 2e-3)
    digests = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    passes = [
        Passes(samples, (layer,), 1e-4, 72, 1000, "cpu", files=digests | {"elsewhere.py": "0"}) for samples in (4, 8)
    ]
    (tmp_path / "profile.json").write_text(json.dumps(to_json(profile_of(passes))))
    monkeypatch.chdir(tmp_path)
    assert "has changed" not in rubato("plan", "job.yaml", "--gbit", "10").out
    for name in ("net.py", "data.py"):
        files[name].write_text("now = 1\n")
    assert "has changed since it was profiled (net.py, data.py)" in rubato("plan", "job.yaml", "--gbit", "10").out


@pytest.fixture
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the profile of a program that several workers train faster on a fast link."""
    codecs = dict.fromkeys(METHODS, 1e-9)
    passes = [
        Passes(
            samples,
            (Seen("only", ((800, 800), (800,)), 1e-2 * samples, 2e-2 * samples),),
            1e-4,
            640_800,
            1000,
            "cpu",
            codecs,
        )
        for samples in (4, 8)
    ]
    (tmp_path / "profile.json").write_text(json.dumps(to_json(profile_of(passes))))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_recommended_is_marked_and_what_binds_is_told(rubato: Rubato, profiled: Path) -> None:
    told = rubato("plan", "--recipe", "char-lm", "--gbit", "10", "--noise-scale", "1e6").out
    _, _, tables = told.partition("The fastest of each strategy:")
    best, by_workers, batches = (part.splitlines() for part in tables.split("\n\n")[:3])
    (marked,) = [line for line in by_workers if line.endswith("recommended")]
    assert marked.split()[:2] == ["auto", "8"]
    assert re.search(r" \d+% computation +recommended$", marked)
    assert [line.split() for line in best if line.endswith("recommended")] == [marked.split()]
    (batch,) = [line for line in batches if line.endswith("recommended")]
    assert f"samples a batch of {batch.split()[0]} " in told


def test_all_options_are_shown_where_they_are_asked_for(rubato: Rubato, profiled: Path) -> None:
    asked = ("plan", "--recipe", "char-lm", "--gbit", "10", "--set", "reproducible=false")
    options = rubato(*asked, "--json").json["options"]
    _, _, told = rubato(*asked, "--all").out.partition("Every strategy, by workers:\n")
    rows = [line.split()[:2] for line in told.partition("\n\n")[0].splitlines()[1:]]
    assert rows == [[one["name"], str(one["workers"])] for one in options]
    assert {"auto", "tree", "topk"} <= {name for name, _ in rows}
    few = rubato(*asked).out
    assert "Every strategy" not in few
    assert "auto, by workers:" in few


@pytest.mark.parametrize(
    ("flags", "named"), [(["--gbit", "1e13"], "--gbit"), (["--gbit", "1", "--latency-ms", "1e13"], "--latency-ms")]
)
def test_what_is_beyond_any_network_is_named_as_it_was_typed(
    rubato: Rubato, profiled: Path, flags: list[str], named: str
) -> None:
    done = rubato("plan", "--recipe", "char-lm", *flags)
    assert done.code == 2
    assert f"Invalid value for '{named}'" in done.err
    assert "bytes_per_s" not in done.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "say --gbit, or --links-of a job that has measured the network"),
        (["--gbit", "1", "--links-of", "links"], "say --gbit or --links-of, not both"),
        (["--gbit", "1", "--noise-scale", "0"], "Invalid value for --noise-scale: noise_scale: must lie above 0"),
    ],
)
def test_the_network_is_told_once_and_a_noise_is_one(rubato: Rubato, flags: list[str], told: str) -> None:
    done = rubato("plan", "--recipe", "char-lm", *flags)
    assert done.code == 2
    assert told in done.err
