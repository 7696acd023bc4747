"""`rubato profile` trains a few steps of a program here, and `rubato plan` predicts from what it saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rubato.cli.app import run
from rubato.cli.exits import ExitCode
from rubato.cli.planning import _measure
from rubato.planner.choose import plan
from rubato.planner.links import Link
from rubato.planner.measured import profile_of
from rubato.planner.profile import MAX_SPREAD, Profile
from rubato.planner.separated import cut_of
from rubato.profiling import CODECS
from rubato.wire.codec import from_json
from rubato.wire.spec import parse_spec

PROGRAM = """
import time, torch

class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 64)

    def forward(self, x):
        time.sleep(0.004 * len(x))
        return self.linear(x).relu()

def train(run):
    head = torch.nn.Sequential(torch.nn.MaxPool1d(16), torch.nn.Linear(4, 2))
    model = torch.nn.Sequential(Slow(), head)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.zeros(256, dtype=torch.long))
    run.prepare(model=model, optimizer=optimizer, dataset=data)
    print("the program prints this")
    for step in run.steps(steps=run.config.get("steps", 100)):
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(model(x), y))
        optimizer.step()
        assert not run.config.get("fails")
"""
PARAMETERS = 8 * 64 + 64 + 4 * 2 + 2


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_program_is_profiled_and_planned_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text(PROGRAM.replace("0.004", "0.016"))  # more than what a busy machine adds
    sizes = ["--set", "batch.global_size=64", "--set", "batch.num_microbatches=16"]
    assert run(["profile", "train.py", *sizes]) == 0
    told = capsys.readouterr()
    assert f"profile.json: {PARAMETERS} parameters in 2 layers" in told.out
    assert "passes of 2 samples (1 of 3)" in told.err
    found = from_json(Profile, json.loads((folder / "profile.json").read_text()), strict=True)
    assert [layer.name for layer in found.layers] == ["0.linear", "1.1"]
    assert [layer.shapes for layer in found.layers] == [((64, 8), (64,)), ((2, 4), (2,))]
    assert [(layer.inputs, layer.outputs) for layer in found.layers] == [(8, 64), (4, 2)]
    assert found.modules == {"0": (8, 64), "1": (64, 2)}, "what goes in before it is pooled"
    assert (cut := cut_of(found, "1")) is not None
    assert (cut.inputs, cut.outputs) == (64, 2)
    assert 0 <= found.spread <= MAX_SPREAD
    assert found.merge_s.keys() == {"topk", "gtopk"}
    assert found.codec_settings == {"density": 0.001, "rank": 4, "rows": 5, "columns": 0}
    slow, quick = found.layers
    assert 0.012 < slow.forward_s < 0.4, "sixteen milliseconds a sample, and more where the machine is busy"
    assert quick.forward_s < slow.forward_s / 2
    assert all(0 <= layer.backward_s < slow.forward_s / 2 for layer in found.layers)
    assert found.codec_s.keys() == set(CODECS)
    state = 3 * PARAMETERS * torch.float32.itemsize
    assert state <= found.state_bytes <= state + 4 * torch.float32.itemsize, "weights, two moments, steps"
    assert state <= found.averaged_bytes <= 1.5 * state, "each tensor with its padding, and flags"
    rest_bytes, sample_bytes = found.activation_bytes
    given_on = 4 * (64 + 4 + 2)
    assert given_on <= sample_bytes <= given_on + 2 * 8 * 4, "what ReLU, pooling and the loss give on, and indices"
    assert 0 <= rest_bytes <= 64, "next to nothing whatever the samples"

    assert run(["plan", "train.py", *sizes, "--gbit", "10"]) == 0
    told = capsys.readouterr()
    assert "8 workers with whole gradients, each worker adding up a part" in told.out
    assert "topk" in told.out
    assert run(["plan", "train.py", *sizes, "--gbit", "10", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["recommended"]["workers"] == 8
    assert not [one for one in answer["sentences"] if "rubato profile" in one and "Passes varied" not in one]
    alone_s = 16 * (found.forward_s(4) + found.backward_s(4)) + found.update_s * PARAMETERS
    assert answer["by_workers"][0]["step_s"] == pytest.approx(alone_s, rel=0.01), "16 microbatches of 4 samples"

    (folder / "train.py").write_text(PROGRAM)
    assert run(["plan", "train.py", *sizes, "--gbit", "10", "--config", "width=9", "--config", "steps=50"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "The profile was measured with no config.width, and this spec has config.width 9: `rubato profile` measures it "
        "anew.",
        "The program has changed since it was profiled (train.py): `rubato profile` measures it anew.",
    ]


@pytest.mark.long
def test_bytes_are_those_of_the_engine_s_vector_and_of_activations(folder: Path) -> None:
    """One buffer of float64 has all gradients travel so."""
    buffer = "    model.register_buffer('seen', torch.zeros(1).double())\n"
    (folder / "train.py").write_text(PROGRAM.replace("    optimizer =", f"{buffer}    optimizer ="))
    assert run(["profile", "train.py", "--set", "batch.global_size=64", "--set", "batch.num_microbatches=16"]) == 0
    found = from_json(Profile, json.loads((folder / "profile.json").read_text()), strict=True)
    assert (found.element_bytes, found.module_bytes) == (8, {"0": (4, 4), "1": (4, 4)})


@pytest.mark.parametrize(
    ("recipe", "least"),
    [
        pytest.param(  # into BatchNorm, and out of ReLU, of two each
            "image-classifier", 4 * 2 * 2 * (32 * 8 * 8 + 64 * 4 * 4), marks=pytest.mark.long
        ),
        ("char-lm", 4 * 32 * (2 * 2 * 4 * 64 + 128)),  # into GELU, and out of it, of two; and what is predicted
    ],
)
def test_what_passes_of_a_recipe_keep_grows_with_their_samples(tmp_path: Path, recipe: str, least: int) -> None:
    spec, batch = {"name": "a", "recipe": recipe}, {"global_size": 64, "num_microbatches": 16}
    coarse, fine = (parse_spec({**spec, "batch": {**batch, "num_microbatches": count}}) for count in (16, 32))
    seen = [_measure(coarse, tmp_path, samples, with_codecs=False) for samples in (2, 4)]
    found = profile_of(seen)
    assert found.files == {}, "a recipe is no file of the user's"
    rest_bytes, sample_bytes = found.activation_bytes
    assert least <= sample_bytes <= 3 * least
    assert 0 <= rest_bytes <= sample_bytes, "and sums of normalisations"
    more, less = (plan(found, Link(1e-4, 1e9), one).by_workers[0].memory_bytes for one in (coarse, fine))
    assert more - less == 2 * sample_bytes - found.vector_bytes, "passes of 2 samples, not 4, and a partial sum more"


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("torch.func.grad(lambda w: (w * w).sum())(torch.ones(3))", 100),  # refuses to have its tensors followed
        ("pass", 9),  # leaves no step but those that are timed
    ],
)
def test_a_program_that_does_not_tell_what_it_keeps_is_profiled(folder: Path, line: str, steps: int) -> None:
    loop = "        for x, y in step:\n"
    (folder / "train.py").write_text(PROGRAM.replace(loop, f"{loop}            {line}\n"))
    spec = parse_spec({"name": "a", "entrypoint": "train.py:train", "config": {"steps": steps}})
    seen = _measure(spec, folder, 1, with_codecs=False)
    assert seen.kept_bytes is None
    assert seen.parameters == PARAMETERS
    assert all(layer.backward_s > 0 for layer in seen.layers)


def test_what_cannot_be_profiled_says_why(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "train.py", "--config", "fails=true"]) == ExitCode.ERROR
    assert "AssertionError" in (told := capfd.readouterr().err)
    assert "the program failed with passes of" in told
    assert run(["profile", "train.py", "--config", "steps=3"]) == ExitCode.ERROR
    assert "ended after 3 steps" in capfd.readouterr().err
    assert not (folder / "profile.json").exists()
    assert run(["plan", "train.py", "--gbit", "1"]) == ExitCode.ERROR
    assert "there is no profile.json: `rubato profile` measures one" in capfd.readouterr().err
    (folder / "profile.json").write_text("{}")
    assert run(["plan", "train.py", "--gbit", "1"]) == ExitCode.ERROR
    assert "profile.json is no profile (layers" in capfd.readouterr().err


@pytest.mark.long
def test_compression_is_measured_as_the_spec_has_it(folder: Path) -> None:
    sizes = ["--set", "batch.global_size=64", "--set", "batch.num_microbatches=16", "--set", "reproducible=false"]
    aggregation = "aggregation.compression.method=topk", "aggregation.compression.density=0.25"
    assert run(["profile", "train.py", *sizes, *(word for one in aggregation for word in ("--set", one))]) == 0
    found = from_json(Profile, json.loads((folder / "profile.json").read_text()), strict=True)
    assert found.codec_settings["density"] == 0.25
