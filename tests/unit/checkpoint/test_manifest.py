from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rubato.checkpoint.manifest import (
    FileRecord,
    JobTerms,
    Manifest,
    commit_manifest,
    find_latest,
    folder_name,
    read_manifest,
    verify,
)
from rubato.checkpoint.storage import Folder, LocalFolder
from rubato.errors import CheckpointCorrupt, CheckpointError, UserError
from rubato.wire.cluster import MetricRow


def make(root: Path, attempt: int, step: int, *, finished: bool = True) -> LocalFolder:
    folder = LocalFolder(root / folder_name(attempt, step))
    files = tuple(folder.write(name, [f"{name} {attempt} {step}".encode() * 50]) for name in ("a", "b"))
    if finished:
        commit_manifest(folder, manifest_of(attempt, step, files))
    return folder


def manifest_of(attempt: int, step: int, files: tuple[FileRecord, ...] = ()) -> Manifest:
    return Manifest(
        job="job_1",
        attempt=attempt,
        generation=2,
        step=step,
        num_microbatches=24,
        radices=(2, 2, 2, 3),
        seed=2**63 - 1,
        code_digest="c" * 64,
        files=files,
        created_at="2024-01-01T00:00:00Z",
        versions={"torch": "2"},
        metrics={"loss": 0.1},
        rows=(MetricRow(step, "2024-01-01T00:00:00Z", 2, 3, {"loss": 0.1}),),
    )


class Told:
    """Collects what find_latest passes over."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __call__(self, folder: Folder, reason: str) -> None:
        self.reasons[folder.name] = reason


def truncate(folder: Path) -> None:
    (folder / "b").write_bytes((folder / "b").read_bytes()[:-1])


def flip_bit(folder: Path) -> None:
    data = bytearray((folder / "a").read_bytes())
    data[7] ^= 4
    (folder / "a").write_bytes(data)


def drop_file(folder: Path) -> None:
    (folder / "a").unlink()


def drop_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def flip_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"generation": 2', '"generation": 3'))


def cut_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:-30])


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (truncate, r"b of checkpoint 1-20 has \d+ bytes, the manifest says \d+"),
    (flip_bit, "a of checkpoint 1-20 has SHA-256 .* its bytes changed"),
    (drop_file, "a of checkpoint 1-20 is missing"),
    (drop_manifest, "manifest.json of checkpoint 1-20 is missing: the checkpoint was never finished"),
    (flip_manifest, "does not match its own hash"),
    (cut_manifest, "manifest.json of checkpoint 1-20 cannot be read"),
]


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    folder = make(tmp_path, 3, 120)
    manifest = read_manifest(folder)
    assert manifest == manifest_of(3, 120, manifest.files)
    assert [record.name for record in manifest.files] == ["a", "b"]
    verify(folder, manifest)


def test_metrics_that_are_not_finite_are_still_json(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "1-1")
    metrics = {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 1.0}
    commit_manifest(folder, replace(manifest_of(1, 1), metrics=metrics))

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    json.loads((folder.path / "manifest.json").read_text(), parse_constant=refuse)
    read = read_manifest(folder).metrics
    assert math.isnan(read.pop("c"))
    assert read == {"a": math.inf, "b": -math.inf, "d": 1.0}


def test_a_manifest_is_not_written_over_files_that_are_not_whole(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, 5, finished=False)
    missing = manifest_of(1, 5, (FileRecord("zzz", 1, "0" * 64),))
    with pytest.raises(CheckpointError, match="checkpoint 1-5 is not whole: zzz is missing"):
        commit_manifest(folder, missing)
    with pytest.raises(CheckpointError, match="not whole: a is"):
        commit_manifest(folder, replace(missing, files=(FileRecord("a", 1, "0" * 64),)))
    assert not folder.exists("manifest.json")


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_told_and_the_one_before_is_taken(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    good, bad, told = make(tmp_path, 1, 10), make(tmp_path, 1, 20), Told()
    damage(bad.path)
    with pytest.raises(CheckpointCorrupt, match=message):
        verify(bad, read_manifest(bad))
    found = find_latest(LocalFolder(tmp_path), told)
    assert found is not None
    assert (str(found[0]), found[1].step) == (str(good), 10)
    assert list(told.reasons) == ["1-20"]


def test_the_highest_attempt_wins_then_the_highest_step_as_numbers(tmp_path: Path) -> None:
    for attempt, step in [(2, 9), (2, 100), (10, 5), (9, 700)]:
        make(tmp_path, attempt, step)
    (tmp_path / "11-x").mkdir()
    (tmp_path / "12-3").write_text("no folder")
    told = Told()
    found = find_latest(LocalFolder(tmp_path), told)
    assert found is not None
    assert found[0].name == "10-5"
    assert told.reasons == {}


def test_nothing_to_find_is_none(tmp_path: Path) -> None:
    told = Told()
    assert find_latest(LocalFolder(tmp_path / "absent"), told) is None
    drop_file(make(tmp_path, 1, 1).path)
    make(tmp_path, 1, 2, finished=False)
    assert find_latest(LocalFolder(tmp_path), told) is None
    assert sorted(told.reasons) == ["1-1", "1-2"]


def test_a_renamed_folder_and_a_path_for_a_name_are_corrupt(tmp_path: Path) -> None:
    make(tmp_path, 1, 10).path.rename(tmp_path / "2-10")
    with pytest.raises(CheckpointCorrupt, match="is that of 1-10"):
        read_manifest(LocalFolder(tmp_path / "2-10"))
    (tmp_path / "outside").write_bytes(b"x")
    folder = LocalFolder(tmp_path / "3-1")
    escaping = replace(folder.write("x", [b"x"]), name="../outside")
    commit_manifest(folder, manifest_of(3, 1, (escaping,)))
    with pytest.raises(CheckpointCorrupt, match="not a plain name"):
        read_manifest(folder)


def test_a_newer_format_says_what_to_use(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "1-1")
    commit_manifest(folder, replace(manifest_of(1, 1), format_version=3))
    with pytest.raises(CheckpointError, match="format 3, this Rubato reads 2: use a newer Rubato"):
        read_manifest(folder)


def test_of_two_controllers_that_commit_one_checkpoint_either_may_win(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, 10)
    there = read_manifest(folder)
    again = replace(there, created_at="later")
    assert commit_manifest(folder, again)[0] == there
    others = replace(there, files=(folder.write("c", [b"another cut of the same step"]),))
    manifest, record = commit_manifest(folder, others)
    assert manifest == there, "equal steps are equal bits: the first one stays"
    assert record.bytes == folder.size("manifest.json")
    with pytest.raises(CheckpointError, match=r"is that of job_1: two runs write to one folder, give each its own"):
        commit_manifest(folder, replace(there, job="job_2"))


def test_a_manifest_whose_files_were_damaged_gives_way_to_a_new_one(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, 10)
    others = replace(read_manifest(folder), files=(folder.write("c", [b"written again"]),))
    flip_bit(folder.path)
    assert commit_manifest(folder, others)[0] == others
    verify(folder, read_manifest(folder))


TERMS = JobTerms("job_1", num_microbatches=24, radices=(2, 2, 2, 3), seed=2**63 - 1, global_batch=96)


def test_going_on_under_other_terms_is_refused_with_what_differs() -> None:
    saved = replace(manifest_of(1, 10), global_batch=96)
    TERMS.check(saved, "it")
    TERMS.check(replace(saved, global_batch=0), "one that does not say its batch")
    with pytest.raises(UserError, match=r"it was trained under other terms: the seed was \d+, now it is 5; the global"):
        replace(TERMS, seed=5, global_batch=32).check(saved, "it")
    loose = replace(saved, radices=())
    with pytest.raises(UserError, match=r"the shape of the sums was `reproducible: false`, now it is \(2, 2, 2, 3\)"):
        TERMS.check(loose, "it")
    replace(TERMS, radices=()).check(saved, "nothing is promised any more")


def test_the_manifest_is_made_in_one_place() -> None:
    files = [{"name": "a", "bytes": 3, "sha256": "0" * 64}]
    made = TERMS.manifest("3-120", step=120, generation=2, files=files, terms={"metrics": {"loss": 1}})
    assert (made.attempt, made.step, made.files, made.metrics) == (3, 120, (FileRecord(**files[0]),), {"loss": 1.0})  # type: ignore[arg-type]
    for name in ("3-121", "../evil", "3-120/x"):
        with pytest.raises(CheckpointError, match="no folder of a checkpoint of step 120"):
            TERMS.manifest(name, step=120, generation=2, files=[], terms={})


def test_controllers_can_do_without_torch_and_numpy() -> None:
    code = (
        "import sys, rubato.checkpoint.retention, rubato.launch.archive; "
        "assert not {'torch', 'numpy', 'safetensors', 'fsspec'} & set(sys.modules), 'not the standard library only'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
