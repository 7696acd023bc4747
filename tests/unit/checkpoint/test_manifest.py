from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rubato.checkpoint.files import write_file
from rubato.checkpoint.manifest import (
    FileRecord,
    Manifest,
    commit_manifest,
    find_latest,
    folder_name,
    prune,
    read_manifest,
    verify,
)
from rubato.errors import CheckpointCorrupt, CheckpointError


def make(root: Path, attempt: int, step: int, *, finished: bool = True) -> Path:
    folder = root / folder_name(attempt, step)
    files = tuple(write_file(folder / name, [f"{name} {attempt} {step}".encode() * 50]) for name in ("a", "b"))
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
    )


class Told:
    """Collects what find_latest passes over."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def __call__(self, folder: Path, reason: str) -> None:
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
    folder = tmp_path / "1-1"
    metrics = {"a": math.inf, "b": -math.inf, "c": math.nan, "d": 1.0}
    commit_manifest(folder, replace(manifest_of(1, 1), metrics=metrics))

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    json.loads((folder / "manifest.json").read_text(), parse_constant=refuse)
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
    assert not (folder / "manifest.json").exists()


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damage_is_told_and_the_one_before_is_taken(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    good, bad, told = make(tmp_path, 1, 10), make(tmp_path, 1, 20), Told()
    damage(bad)
    with pytest.raises(CheckpointCorrupt, match=message):
        verify(bad, read_manifest(bad))
    found = find_latest(tmp_path, told)
    assert found is not None
    assert (found[0], found[1].step) == (good, 10)
    assert list(told.reasons) == ["1-20"]


def test_the_highest_attempt_wins_then_the_highest_step_as_numbers(tmp_path: Path) -> None:
    for attempt, step in [(2, 9), (2, 100), (10, 5), (9, 700)]:
        make(tmp_path, attempt, step)
    (tmp_path / "11-x").mkdir()
    (tmp_path / "12-3").write_text("no folder")
    told = Told()
    found = find_latest(tmp_path, told)
    assert found is not None
    assert found[0].name == "10-5"
    assert told.reasons == {}


def test_nothing_to_find_is_none(tmp_path: Path) -> None:
    told = Told()
    assert find_latest(tmp_path / "absent", told) is None
    drop_file(make(tmp_path, 1, 1))
    make(tmp_path, 1, 2, finished=False)
    assert find_latest(tmp_path, told) is None
    assert sorted(told.reasons) == ["1-1", "1-2"]


def test_a_renamed_folder_and_a_path_for_a_name_are_corrupt(tmp_path: Path) -> None:
    make(tmp_path, 1, 10).rename(tmp_path / "2-10")
    with pytest.raises(CheckpointCorrupt, match="is that of 1-10"):
        read_manifest(tmp_path / "2-10")
    (tmp_path / "outside").write_bytes(b"x")
    folder = tmp_path / "3-1"
    escaping = replace(write_file(folder / "x", [b"x"]), name="../outside")
    commit_manifest(folder, manifest_of(3, 1, (escaping,)))
    with pytest.raises(CheckpointCorrupt, match="not a plain name"):
        read_manifest(folder)


def test_a_newer_format_says_what_to_use(tmp_path: Path) -> None:
    folder = tmp_path / "1-1"
    commit_manifest(folder, replace(manifest_of(1, 1), format_version=2))
    with pytest.raises(CheckpointError, match="format 2, this Rubato reads 1: use a newer Rubato"):
        read_manifest(folder)


def test_pruning_keeps_the_newest_and_clears_what_older_attempts_left(tmp_path: Path) -> None:
    for attempt, step in [(1, 10), (1, 20), (2, 15), (2, 25)]:
        make(tmp_path, attempt, step)
    for attempt, step in [(1, 30), (2, 35), (3, 40)]:
        make(tmp_path, attempt, step, finished=False)
    assert prune(tmp_path, keep_last=2) == ["1-10", "1-20", "1-30"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2-15", "2-25", "2-35", "3-40"]
    assert prune(tmp_path, keep_last=2) == []


@pytest.mark.parametrize("damage", [truncate, flip_bit, drop_file, flip_manifest, cut_manifest])
def test_nothing_is_deleted_while_the_newest_does_not_hold(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    for step in (10, 20, 30):
        make(tmp_path, 1, step)
    damage(tmp_path / "1-30")
    assert prune(tmp_path, keep_last=1) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_pruning_nothing_and_keeping_nothing(tmp_path: Path) -> None:
    assert prune(tmp_path / "absent", keep_last=1) == []
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        prune(tmp_path, keep_last=0)


def test_controllers_can_do_without_torch_and_numpy() -> None:
    code = (
        "import sys, rubato.checkpoint.manifest; "
        "assert not {'torch', 'numpy', 'safetensors'} & set(sys.modules), 'not the standard library only'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
