"""Checkpoints that were damaged where they lie, and disks that write less than they say: what a run makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_run import SPEC, expected
from invariants import record, values_by_step
from local_job import LocalJob

from rubato.checkpoint.manifest import MANIFEST_NAME, checkpoint_folders, find_latest
from rubato.checkpoint.storage import LocalFolder

pytestmark = pytest.mark.timeout(240)

STEPS = 24
JOB: dict[str, Any] = {
    **SPEC,
    "config": {"steps": STEPS, "model": "mlp"},
    "workers": {"initial": 2, "min": 1, "max": 4},
    "checkpoint": {"every_steps": 3, "keep_last": 3},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run that was paused: at least two."""
    home = tmp_path_factory.mktemp("trained")
    with LocalJob(home, "faulty", checkpoint_dir=str(home / "kept"), **JOB) as run:
        run.wait(lambda: len(run.events("checkpoint.committed")) >= 2, "two checkpoints")
        run.run.answer({"verb": "pause"})
        assert run.wait_for_end().state == "paused"
    return home / "kept"


@pytest.fixture
def kept(trained: Path, tmp_path: Path) -> Path:
    """Of its own, to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "kept"))


def whole(kept: Path) -> list[Path]:
    """Folders with a manifest, oldest first."""
    folders = [Path(str(folder)) for folder in checkpoint_folders(LocalFolder(kept))]
    return [folder for folder in folders if (folder / MANIFEST_NAME).exists()]


def step_of(folder: Path) -> int:
    return int(folder.name.split("-")[1])


def stripe(folder: Path) -> Path:
    return sorted(folder.glob("stripe-*"))[-1]


def truncate(folder: Path) -> None:
    content = stripe(folder).read_bytes()
    stripe(folder).write_bytes(content[: len(content) // 2])


def flip(folder: Path) -> None:
    """One bit of the last tensor's data, as a disk may without telling."""
    content = bytearray(stripe(folder).read_bytes())
    content[-5] ^= 1
    stripe(folder).write_bytes(content)


def lose(folder: Path) -> None:
    stripe(folder).unlink()


def flip_document(folder: Path) -> None:
    (document,) = folder.glob("state*")
    document.write_bytes(document.read_bytes().replace(b"0", b"1", 1))


def scribble(folder: Path) -> None:
    (folder / MANIFEST_NAME).write_bytes(b"\x00\xff garbage {" * 100)


def empty(folder: Path) -> None:
    """As after a crash of a file system that keeps names but no content."""
    (folder / MANIFEST_NAME).write_bytes(b"")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a truncated stripe": truncate,
    "one flipped bit": flip,
    "a missing stripe": lose,
    "one flipped bit of the document": flip_document,
    "a manifest of garbage": scribble,
    "an empty manifest": empty,
}


def go_on(tmp_path: Path, kept: Path) -> LocalJob:
    return LocalJob(tmp_path, "faulty", checkpoint_dir=str(kept), **JOB)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(tmp_path: Path, kept: Path, damage: str) -> None:
    *_, before, newest = whole(kept)
    DAMAGES[damage](newest)
    with go_on(tmp_path, kept) as run:
        (told,) = wait_for_corrupt(run)
        run.result()
    assert newest.name in told["message"]
    assert told["data"]["checkpoint_id"] == newest.name
    assert told["data"]["cause"]
    assert run.rows()[0]["step"] == step_of(before) + 1
    same_as_undisturbed(run)
    record(run, f"checkpoint with {damage}", steps_again=step_of(newest) - step_of(before))


def test_a_checkpoint_without_a_manifest_was_never_finished(tmp_path: Path, kept: Path) -> None:
    *_, before, newest = whole(kept)
    (newest / MANIFEST_NAME).unlink()
    with go_on(tmp_path, kept) as run:
        run.result()
    assert not run.events("checkpoint.corrupt")
    assert run.rows()[0]["step"] == step_of(before) + 1
    same_as_undisturbed(run)
    record(run, "checkpoint without a manifest", steps_again=step_of(newest) - step_of(before))


def test_where_all_are_damaged_nothing_is_begun_anew_over_them(tmp_path: Path, kept: Path) -> None:
    folders = whole(kept)
    for folder in folders:
        flip(folder)
    with go_on(tmp_path, kept) as run:
        run.hold.unlink()
        outcome = run.wait_for_end()
    assert outcome.failure is not None, outcome
    assert outcome.failure.reason == "checkpoint_invalid"
    assert all(folder.name in outcome.failure.message for folder in folders)
    assert "begin afresh" in outcome.failure.message
    assert not run.rows()
    assert whole(kept) == folders, "what might be mended was deleted"


def wait_for_corrupt(run: LocalJob) -> list[dict[str, Any]]:
    run.wait(lambda: bool(run.events("checkpoint.corrupt")), "word of the damage")
    return run.events("checkpoint.corrupt")


def same_as_undisturbed(run: LocalJob) -> None:
    undisturbed = expected("mlp", STEPS)
    assert run.result() == (STEPS, undisturbed.digest)
    rows = values_by_step(run)
    assert rows == {step: undisturbed.rows[step] for step in range(min(rows), STEPS + 1)}
    found = find_latest(run.run.checkpoints, lambda folder, cause: None)
    assert found is not None
    assert found[1].step == STEPS
