from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rubato.checkpoint.manifest import JobTerms, commit_manifest
from rubato.checkpoint.storage import LocalFolder
from rubato.checkpoint.stripes import copy_stripe, write_document
from rubato.checkpoint.tree import encode
from rubato.cli.export import complete_sources
from rubato.wire.codec import to_json
from tests.unit.cli.fake_service import FakeService, Reply, Rubato


@pytest.fixture
def stored(tmp_path: Path) -> LocalFolder:
    """A checkpoint as a worker and a controller leave it."""
    model = nn.Linear(2, 3)
    names = {key: ["parameters", key] for key in model.state_dict()}
    document, tensors = encode({"parameters": dict(model.named_parameters()), "buffers": {}})
    folder = LocalFolder(tmp_path / "stored" / "2-30")
    layout = [{"dtype": "float32", "shape": list(tensor.shape)} for tensor in tensors]
    full = {"state": document, "extra": {}, "models": {"": names}}
    files = [
        write_document(folder, full, layout),
        *(copy_stripe(index, 2, tensors).write(folder) for index in range(2)),
    ]
    terms = JobTerms("job_1", num_microbatches=4, radices=(2, 2), seed=0, global_batch=8)
    manifest = terms.manifest("2-30", step=30, generation=1, files=to_json(files), terms={})
    commit_manifest(folder, manifest)
    return folder


def serve(service: FakeService, folder: LocalFolder) -> None:
    files = [{"name": path.name, "bytes": path.stat().st_size, "sha256": ""} for path in sorted(folder.path.iterdir())]
    newest = {"id": "ckpt_2", "attempt": 2, "step": 30, "checkpoint_id": "2-30", "files": files}
    older = {"id": "ckpt_1", "attempt": 1, "step": 40, "checkpoint_id": "1-40", "files": []}
    service.on("GET", "/jobs/digits/checkpoints", {"items": [older, newest]})
    for file in files:
        content = (folder.path / file["name"]).read_bytes()
        service.on("GET", f"/checkpoints/ckpt_2/files/{file['name']}", Reply(content=content))


def test_a_job_is_exported_through_the_service(
    service: FakeService, rubato: Rubato, stored: LocalFolder, tmp_path: Path
) -> None:
    serve(service, stored)
    out = tmp_path / "model.safetensors"
    done = rubato("export", "digits", "--out", str(out))
    assert done.code == 0, done.err
    assert "Downloading stripe-00001-of-00002.safetensors (4 of 4" in done.err
    assert "step 30 of job_1" in done.err
    nn.Linear(2, 3).load_state_dict(load_file(out))
    again = tmp_path / "again.safetensors"
    assert rubato("export", str(stored), "--out", str(again)).code == 0
    assert again.read_bytes() == out.read_bytes()
    assert all(torch.isfinite(value).all() for value in load_file(out).values())


def test_a_name_alone_is_a_folder_only_where_that_holds_checkpoints(
    service: FakeService, rubato: Rubato, stored: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rubato init digits` makes a folder of the name that its job has."""
    monkeypatch.chdir(tmp_path)
    serve(service, stored)
    assert rubato("init", "digits").code == 0
    done = rubato("export", "digits")
    assert (done.code, Path("digits-30.safetensors").is_file()) == (0, True), done.err
    assert "digits is taken as a job" in done.err
    assert "./digits would mean it" in done.err
    meant = rubato("export", "./digits")
    assert (meant.code, "no whole checkpoint in" in meant.err) == (1, True)
    asked = len(service.requests)
    for parent, name in ((tmp_path, "stored"), (stored.path.parent, "2-30")):
        monkeypatch.chdir(parent)
        folder = rubato("export", name, "--out", f"{name}.safetensors")
        assert folder.code == 0, folder.err
        assert f"{name} is taken as the folder" in folder.err
        assert "by its id (job_...)" in folder.err
    assert len(service.requests) == asked


def test_a_downloaded_checkpoint_is_exported_as_the_download_says(
    service: FakeService, rubato: Rubato, stored: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    serve(service, stored)
    files = [{"name": path.name, "bytes": path.stat().st_size} for path in stored.path.iterdir()]
    item = {"id": "ckpt_2", "attempt": 2, "step": 30, "checkpoint_id": "2-30", "files": files}
    service.on("GET", "/checkpoints/ckpt_2", item)
    done = rubato("checkpoints", "download", "ckpt_2", "best one")
    assert (done.code, "`rubato export './best one'` makes a model of it" in done.err) == (0, True), done.err
    exported = rubato("export", "./best one")
    assert (exported.code, Path("job_1-30.safetensors").is_file()) == (0, True), exported.err


def test_a_file_that_exists_is_replaced_only_by_force(
    service: FakeService, rubato: Rubato, stored: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    serve(service, stored)
    for arguments, file in (
        (("digits",), "digits-30.safetensors"),
        ((str(stored),), "job_1-30.safetensors"),
        ((str(stored), "--out", "mine"), "mine"),
    ):
        Path(file).write_text("another model")
        asked = len(service.requests)
        refused = rubato("export", *arguments)
        assert (refused.code, f"{file} exists already" in refused.err, "--force" in refused.err) == (1, True, True)
        assert Path(file).read_text() == "another model"
        assert not any("/files/" in request.path for request in service.requests[asked:]), "nothing is fetched for it"
        assert rubato("export", *arguments, "--force").code == 0
        assert load_file(file)


def test_a_folder_that_is_not_there_is_not_made(rubato: Rubato, stored: LocalFolder, tmp_path: Path) -> None:
    done = rubato("export", str(stored.path), "--out", str(tmp_path / "nope/model.safetensors"))
    assert (done.code, (tmp_path / "nope").exists()) == (1, False)
    assert f"there is no folder {tmp_path / 'nope'}: make it first" in done.err
    folder = rubato("export", str(stored.path), "--out", str(tmp_path))
    assert (folder.code, "is a folder: name the file" in folder.err) == (1, True)


def test_completion_knows_jobs_and_folders(
    service: FakeService, rubato: Rubato, stored: LocalFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    service.on("GET", "/jobs", {"items": [{"id": "job_1", "name": "stars", "status": "running"}]})
    assert complete_sources("st") == ["stars", "stored/"]
    assert complete_sources("stored/") == ["stored/2-30/"]
    assert complete_sources("run_0") == []


def test_what_was_damaged_on_the_way_is_not_exported(
    service: FakeService, rubato: Rubato, stored: LocalFolder, tmp_path: Path
) -> None:
    serve(service, stored)
    name = "stripe-00001-of-00002.safetensors"
    damaged = bytearray((stored.path / name).read_bytes())
    damaged[-1] ^= 1
    service.on("GET", f"/checkpoints/ckpt_2/files/{name}", Reply(content=bytes(damaged)))
    done = rubato("export", "digits", "--out", str(tmp_path / "model.safetensors"))
    assert done.code == 1
    assert "its bytes changed" in done.err
    assert not (tmp_path / "model.safetensors").exists()


def test_what_is_not_there(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/jobs/digits/checkpoints", {"items": []})
    assert "digits has no checkpoint yet" in rubato("export", "digits").err
    assert rubato("export", "nobody").code == 102
    assert rubato("export", "run_nobody").code == 102, "a job may be called so"
    gone = rubato("export", "run_0123456789abcd")
    assert (gone.code, "there is no run run_0123456789abcd in " in gone.err) == (102, True)
    assert "--step is for jobs" in rubato("export", "./somewhere", "--step", "3").err


def test_a_service_that_names_no_plain_file_is_not_obeyed(service: FakeService, rubato: Rubato) -> None:
    files = [{"name": "../../evil", "bytes": 1}]
    item = {"id": "ckpt_1", "attempt": 1, "step": 4, "checkpoint_id": "1-4", "files": files}
    service.on("GET", "/jobs/digits/checkpoints", {"items": [item]})
    done = rubato("export", "digits")
    assert (done.code, "not a plain name" in done.err) == (1, True)


def test_a_checkpoint_of_ray_train_is_not_exported(service: FakeService, rubato: Rubato) -> None:
    item = {"id": "ckpt_1", "attempt": 1, "step": 4, "checkpoint_id": "checkpoint_000001", "files": []}
    service.on("GET", "/jobs/digits/checkpoints", {"items": [item]})
    done = rubato("export", "digits")
    assert (done.code, "ckpt_1 lists no files: Ray Train made it" in " ".join(done.err.split())) == (1, True)


def test_pinning_and_taking_it_back(rubato: Rubato, stored: LocalFolder) -> None:
    assert rubato("pin", str(stored)).code == 0
    assert stored.exists("pinned")
    assert rubato("pin", str(stored), "--undo").code == 0
    assert not stored.exists("pinned")
    refused = rubato("pin", str(stored.path.parent))
    assert (refused.code, "never finished" in refused.err) == (1, True)
