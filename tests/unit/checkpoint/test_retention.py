from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.checkpoint.files import FileRecord
from rubato.checkpoint.manifest import JobTerms, commit_manifest, find_latest, folder_name, read_manifest
from rubato.checkpoint.retention import Retention, decide_deletions, delete, drop, holds, pin, prunable, sweep, unpin
from rubato.checkpoint.storage import LocalFolder
from rubato.errors import CheckpointCorrupt, CheckpointError
from rubato.wire.cluster import Distrust
from rubato.wire.spec import KeepBestSpec

TERMS = JobTerms("job_1", num_microbatches=4, radices=(2, 2), seed=0, global_batch=8)


def make(
    root: Path, attempt: int, step: int, *, finished: bool = True, generation: int = 1, **metrics: float
) -> LocalFolder:
    folder = LocalFolder(root / folder_name(attempt, step))
    record = folder.write("a", [f"{attempt} {step}".encode() * 50])
    if finished:
        files = [{"name": record.name, "bytes": record.bytes, "sha256": record.sha256}]
        terms = {"metrics": metrics}
        manifest = TERMS.manifest(folder.name, step=step, generation=generation, files=files, terms=terms)
        commit_manifest(folder, manifest)
    return folder


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def prune(root: Path, retention: Retention) -> list[str]:
    """As a controller does it once it has read the newest again."""
    doomed, newest = prunable(LocalFolder(root), retention)
    assert newest is None or holds(newest)
    return [folder.name for folder in doomed if delete(folder)]


def test_the_newest_are_kept_whatever_their_attempt(tmp_path: Path) -> None:
    for attempt, step in [(1, 10), (1, 20), (2, 15), (2, 25)]:
        make(tmp_path, attempt, step)
    make(tmp_path, 3, 40, finished=False)
    assert prune(tmp_path, Retention(2)) == ["1-10", "1-20"]
    assert names(tmp_path) == ["2-15", "2-25", "3-40"]
    assert prune(tmp_path, Retention(2)) == []


def test_what_was_begun_before_a_whole_one_is_swept_away_and_nothing_newer(tmp_path: Path) -> None:
    for attempt, step in [(1, 10), (2, 25)]:
        make(tmp_path, attempt, step)
    for attempt, step in [(1, 30), (2, 20), (2, 35), (3, 5)]:
        make(tmp_path, attempt, step, finished=False)
    make(tmp_path, 2, 22, finished=False).write_new("pinned", b"")
    assert sweep(LocalFolder(tmp_path), before=(2, 25)) == ["1-30", "2-20"]
    assert names(tmp_path) == ["1-10", "2-22", "2-25", "2-35", "3-5"]
    assert sweep(LocalFolder(tmp_path / "absent"), before=(9, 9)) == []


def test_the_best_and_the_pinned_stay(tmp_path: Path) -> None:
    losses = {10: 0.9, 20: 0.2, 30: 0.5, 40: 0.2, 50: math.nan, 60: 0.8}
    folders = {step: make(tmp_path, 1, step, loss=loss) for step, loss in losses.items()}
    pin(folders[10])
    retention = Retention(1, KeepBestSpec(metric="loss", keep=2))
    assert str(retention) == "the newest 1 and the best 2 by loss"
    assert prune(tmp_path, retention) == ["1-30", "1-50"]
    unpin(folders[10])
    assert prune(tmp_path, retention) == ["1-10"]
    assert names(tmp_path) == ["1-20", "1-40", "1-60"]


def test_what_may_hold_a_wrong_state_is_found_no_more_whatever_its_attempt(tmp_path: Path) -> None:
    for attempt, step in [(1, 10), (1, 40), (2, 20), (2, 30)]:
        make(tmp_path, attempt, step)
    pin(LocalFolder(tmp_path / "1-40"))
    assert drop(LocalFolder(tmp_path), Distrust(20, attempt=2, generation=1)) == ["1-40", "2-30"]
    assert names(tmp_path) == ["1-10", "1-40", "2-20"]
    found = find_latest(LocalFolder(tmp_path), lambda folder, cause: None)
    assert found is not None
    assert found[0].name == "2-20"
    assert (tmp_path / "1-40" / "a").exists(), "its files are kept, as was asked for"


def test_what_was_made_since_stands_however_late_the_others_are_taken_away(tmp_path: Path) -> None:
    for step, generation in [(10, 3), (30, 4), (40, 5)]:
        make(tmp_path, 2, step, generation=generation)
    make(tmp_path, 3, 50, generation=1)
    make(tmp_path, 2, 60, generation=5)
    (tmp_path / "2-60" / "manifest.json").write_text("{")
    wrong = Distrust(20, attempt=2, generation=4)
    assert drop(LocalFolder(tmp_path), wrong) == ["2-30", "2-60"], "of one that cannot be read nothing good is known"
    assert names(tmp_path) == ["2-10", "2-40", "3-50"]
    assert drop(LocalFolder(tmp_path), wrong) == []


def test_only_a_whole_checkpoint_can_be_pinned(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt, match="never finished"):
        pin(make(tmp_path, 1, 1, finished=False))


values = st.floats(allow_nan=True, width=16)


@given(
    st.lists(st.one_of(st.none(), values), max_size=9),
    st.integers(1, 4),
    st.sampled_from(["min", "max"]),
    st.integers(1, 3),
)
def test_what_goes_is_neither_new_nor_better_than_what_stays(
    found: list[float | None], keep_last: int, mode: str, keep: int
) -> None:
    order = [f"1-{step}" for step in range(len(found))]
    metrics = {name: {"score": value} for name, value in zip(order, found, strict=True) if value is not None}
    best = KeepBestSpec("score", mode, keep)  # type: ignore[arg-type]
    gone = decide_deletions(order, metrics, Retention(keep_last, best))
    stays = [name for name in order if name not in gone]
    assert stays[-keep_last:] == order[-keep_last:]
    scored = {name: entry["score"] for name, entry in metrics.items() if not math.isnan(entry["score"])}
    assert len([name for name in stays if name in scored]) >= min(keep, len(scored))
    better = min if mode == "min" else max
    for name in gone:
        if name in scored:
            good = sorted((scored[one] for one in stays if one in scored), reverse=mode == "max")[:keep]
            assert better(scored[name], good[-1]) == good[-1]


def test_keeping_nothing_is_refused(tmp_path: Path) -> None:
    assert prune(tmp_path / "absent", Retention(1)) == []
    with pytest.raises(ValueError, match="keep_last must be at least 1"):
        Retention(0)


class Racing(LocalFolder):
    """Somebody does something right after a file was removed, or written."""

    after: str
    do: Callable[[], object]

    def remove(self, name: str) -> None:
        super().remove(name)
        if name == self.after:
            self.do()

    def write_new(self, name: str, data: bytes) -> FileRecord | None:
        record = super().write_new(name, data)
        if name == self.after:
            self.do()
        return record


def race(folder: LocalFolder, after: str, do: Callable[[], object]) -> Racing:
    racing = Racing(folder.path)
    racing.after, racing.do = after, do
    return racing


def test_a_pin_that_comes_while_the_manifest_goes_wins(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, 10)
    assert not delete(race(folder, "manifest.json", lambda: (folder.path / "pinned").write_bytes(b"")))
    assert names(folder.path) == ["a", "manifest.json", "pinned"]
    assert read_manifest(folder).step == 10


def test_a_pin_that_comes_too_late_says_so(tmp_path: Path) -> None:
    folder = make(tmp_path, 1, 10)
    with pytest.raises(CheckpointError, match="was deleted while"):
        pin(race(folder, "pinned", lambda: (folder.path / "manifest.json").unlink(missing_ok=True)))
    assert names(folder.path) == ["a"]
