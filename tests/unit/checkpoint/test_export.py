from __future__ import annotations

import queue
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from rubato.checkpoint.export import export, find_checkpoint, read_model
from rubato.checkpoint.manifest import JobTerms, commit_manifest, open_checkpoint
from rubato.checkpoint.storage import LocalFolder
from rubato.engine.saver import Saver
from rubato.engine.state import TrainingState
from rubato.errors import CheckpointCorrupt, UserError
from rubato.wire import worker as wire
from rubato.wire.storage import MANIFEST_NAME
from tests.pickle_bomb import PickleBomb

TERMS = JobTerms("job_1", num_microbatches=4, radices=(2, 2), seed=0, global_batch=8)


class Model(nn.Module):
    """Tied weights, a buffer that is saved, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.half = nn.Linear(4, 4).bfloat16()
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(3), persistent=False)


def save(root: Path, models: dict[str, nn.Module], step: int = 5, world: int = 3) -> Path:
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    optimizer = torch.optim.AdamW([one for model in models.values() for one in model.parameters()])
    state = TrainingState(models, {"": optimizer}, {}, {})
    members = tuple(wire.Member(f"w{rank}", f"1.{rank}") for rank in range(world))
    record = wire.GenerationRecord(1, 1, members, (0,), "", wire.Origin("fresh"), "start", 0)
    parts = []
    for rank in range(world):
        saver = Saver(str(root), f"1.{rank}", said.put)
        saver.save(state, record, rank, step=step, extra={}, metrics={})
        parts.append(said.get(timeout=30))
    folder = LocalFolder(root / f"1-{step}")
    files = [file for part in parts for file in part.files]
    commit_manifest(folder, TERMS.manifest(folder.name, step=step, generation=1, files=files, terms=parts[0].terms))
    return folder.path


def assert_loads(path: Path, model: nn.Module, other: nn.Module) -> None:
    other.load_state_dict(load_file(path))  # strict
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_the_file_loads_into_a_model_of_the_same_class(tmp_path: Path) -> None:
    model, out = Model(), tmp_path / "out" / "model.safetensors"
    folder = save(tmp_path / "job", {"": model})
    manifest, size = export(LocalFolder(folder), lambda _: out)
    assert (manifest.step, size) == (5, out.stat().st_size)
    assert_loads(out, model, Model())
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "job": "job_1", "step": "5", "checkpoint": "1-5"}
        assert "mask" not in file.keys()  # noqa: SIM118


def test_a_jobs_folder_gives_its_newest_that_holds(tmp_path: Path) -> None:
    model = Model()
    save(tmp_path, {"": model}, step=5)
    newest = save(tmp_path, {"": Model()}, step=9)
    (document,) = newest.glob("state*")
    document.write_text("{}")
    assert find_checkpoint(LocalFolder(tmp_path))[0].name == "1-5"
    export(LocalFolder(tmp_path), lambda _: tmp_path / "out.safetensors")
    assert_loads(tmp_path / "out.safetensors", model, Model())
    with pytest.raises(CheckpointCorrupt, match=f"{document.name} of checkpoint 1-9 has 2 bytes"):
        export(LocalFolder(newest), lambda _: tmp_path / "out.safetensors")
    with pytest.raises(UserError, match=r"there is no whole checkpoint in .*absent"):
        export(LocalFolder(tmp_path / "absent"), lambda _: tmp_path / "out.safetensors")
    export(LocalFolder(tmp_path), lambda _: tmp_path / "out.safetensors", job="job_1")
    with pytest.raises(UserError, match=r"is of job_1: `rubato export job_1` writes that one"):
        export(LocalFolder(tmp_path), lambda _: tmp_path / "out.safetensors", job="job_2")


def test_a_checkpoint_in_a_folder_of_another_name_is_exported_as_what_it_is(tmp_path: Path) -> None:
    """As `rubato checkpoints download ckpt_... FOLDER` makes one; in a job's folder it is no checkpoint."""
    named = save(tmp_path / "job", {"": Model()}).rename(tmp_path / "job" / "best")
    manifest, _ = export(LocalFolder(named), lambda found: tmp_path / f"{found.step}.safetensors")
    assert manifest.step == 5
    with safe_open(tmp_path / "5.safetensors", framework="pt") as file:
        assert file.metadata()["checkpoint"] == "1-5"
    named.rename(tmp_path / "job" / "1-6")
    with pytest.raises(UserError, match="is that of 1-5: the folder was renamed or copied"):
        export(LocalFolder(tmp_path / "job"), lambda _: tmp_path / "no.safetensors")


def test_a_pickle_in_the_place_of_any_file_is_refused_and_not_run(tmp_path: Path) -> None:
    folder = LocalFolder(save(tmp_path / "job", {"": Model()}))
    manifest = open_checkpoint(folder)
    bomb = PickleBomb(tmp_path / "mark")
    for data in bomb.forms().values():
        for path in sorted(folder.path.iterdir()):
            whole = path.read_bytes()
            path.write_bytes(data)
            with pytest.raises(CheckpointCorrupt):
                find_checkpoint(folder)
            if path.name != MANIFEST_NAME:  # as whoever gave the manifest the hashes of what he wrote would have it
                with pytest.raises(CheckpointCorrupt):
                    read_model(folder, manifest)
            path.write_bytes(whole)
    assert not bomb.went_off
    assert read_model(folder, manifest)


def test_one_of_several_models(tmp_path: Path) -> None:
    models: dict[str, nn.Module] = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
    folder = LocalFolder(save(tmp_path, models))
    with pytest.raises(UserError, match="this checkpoint holds 'generator', 'critic'; name one with --model"):
        export(folder, lambda _: tmp_path / "out.safetensors")
    export(folder, lambda _: tmp_path / "out.safetensors", "critic")
    assert_loads(tmp_path / "out.safetensors", models["critic"], nn.Linear(3, 1))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_exported_as_the_model(tmp_path: Path) -> None:
    model = nn.Linear(2, 3)
    folder = save(tmp_path, {"": torch.compile(model)})  # type: ignore[dict-item]
    export(LocalFolder(folder), lambda _: tmp_path / "out.safetensors")
    assert_loads(tmp_path / "out.safetensors", model, nn.Linear(2, 3))


def test_the_command_works_on_a_folder_without_a_service(tmp_path: Path) -> None:
    model, out = Model(), tmp_path / "model.safetensors"
    save(tmp_path / "job", {"": model})
    command = [sys.executable, "-m", "rubato.cli", "export"]
    done = subprocess.run([*command, str(tmp_path / "job"), "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 5 of job_1" in done.stderr
    assert_loads(out, model, Model())
    refused = subprocess.run([*command, str(tmp_path / "none")], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "there is no whole checkpoint" in refused.stderr
