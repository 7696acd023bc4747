from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from rubato.checkpoint import manifest
from rubato.checkpoint.files import write_file
from rubato.checkpoint.manifest import JobTerms, read_manifest
from rubato.checkpoint.retention import Retention
from rubato.checkpoint.storage import LocalFolder
from rubato.engine.coordinator.orders import CheckpointFound, CommitManifest, DropCheckpoints, Emit, ManifestCommitted
from rubato.errors import StorageUnreachable, UserError
from rubato.launch.archive import ArchiveTerms, StorageArchive, check_terms, next_attempt
from rubato.wire.cluster import Distrust, MetricRow

WRONG = Distrust(6, attempt=1, generation=4)
JOB = JobTerms("job_1", num_microbatches=8, radices=(2, 2, 2), seed=3, global_batch=64)

Make = Callable[[ArchiveTerms], StorageArchive]


def terms(root: Path | None, **changes: Any) -> ArchiveTerms:
    return replace(ArchiveTerms(JOB, LocalFolder(root) if root else None, Retention(2), attempt=1), **changes)


def written(root: Path, step: int, attempt: int = 1) -> CommitManifest:
    """The stripes of a checkpoint, as workers leave them."""
    folder = f"{attempt}-{step}"
    files = tuple(asdict(write_file(root / folder / f"stripe-{rank}", [bytes([rank, step])])) for rank in range(2))
    given = {"code_digest": "abc", "versions": {"torch": "2"}, "metrics": {"loss": 0.5, "bad": float("nan")}}
    return CommitManifest(folder, step, 4, files, given)


def answers(posted: queue.SimpleQueue[Any], last: type) -> list[Any]:
    """Everything posted up to an answer of this type."""
    found = [posted.get(timeout=10)]
    while not isinstance(found[-1], last):
        found.append(posted.get(timeout=10))
    return found


def test_a_checkpoint_is_committed_told_and_found(tmp_path: Path, posted: Any, make: Make) -> None:
    archive = make(terms(tmp_path))
    archive.commit(written(tmp_path, 7))
    event, answer = answers(posted, ManifestCommitted)
    assert answer == ManifestCommitted("1-7", 7, 4)
    assert isinstance(event, Emit)
    assert event.kind == "checkpoint.committed"
    assert event.data["checkpoint_id"] == "1-7"
    assert event.data["metrics"] == {"loss": 0.5}, "JSON knows no NaN"
    assert [file["name"] for file in event.data["files"]] == ["stripe-0", "stripe-1", "manifest.json"]
    assert event.data["bytes"] == sum(file["bytes"] for file in event.data["files"])
    manifest = read_manifest(LocalFolder(tmp_path / "1-7"))
    assert (manifest.job, manifest.attempt, manifest.generation, manifest.seed) == ("job_1", 1, 4, 3)
    assert manifest.radices == (2, 2, 2)
    archive.find()
    assert answers(posted, CheckpointFound)[-1] == CheckpointFound(str(tmp_path / "1-7"), 7)


def test_older_ones_go_and_are_told(tmp_path: Path, posted: Any, make: Make) -> None:
    archive = make(terms(tmp_path))
    for step in (1, 2, 3):
        archive.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    event = posted.get(timeout=10)
    assert (event.kind, event.step, event.data["checkpoint_id"]) == ("checkpoint.deleted", 3, "1-1")
    archive.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-2", "1-3"]


def test_what_is_begun_and_never_finished_goes_when_a_later_one_is_whole(
    tmp_path: Path, posted: Any, make: Make
) -> None:
    archive = make(terms(tmp_path))
    for step in (1, 3):
        written(tmp_path, step)  # 3: in the making
    archive.commit(written(tmp_path, 2))
    answers(posted, ManifestCommitted)
    archive.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-2", "1-3"]


def test_metric_rows_go_with_a_checkpoint_and_come_back_for_the_same_job(
    tmp_path: Path, posted: Any, make: Make
) -> None:
    rows = tuple(MetricRow(step, "2026-01-01T00:00:00Z", 1, 2, {"loss": 0.5}) for step in (4, 5))
    archive = make(terms(tmp_path))
    archive.commit(replace(written(tmp_path, 5), rows=rows))
    answers(posted, ManifestCommitted)
    archive.find()
    assert answers(posted, CheckpointFound)[-1] == CheckpointFound(str(tmp_path / "1-5"), 5, rows=rows)
    other = terms(tmp_path, attempt=2)
    make(replace(other, job=replace(other.job, job_id="job_2"))).find()
    found = answers(posted, CheckpointFound)[-1]
    assert (found.step, found.rows) == (5, ()), "they are another job's"


def test_what_is_begun_goes_where_nobody_has_any_state_but_not_that_of_a_later_attempt(
    tmp_path: Path, posted: Any, make: Make
) -> None:
    archive = make(terms(tmp_path))
    archive.commit(written(tmp_path, 2))
    written(tmp_path, 3)
    written(tmp_path, 3, attempt=2)
    archive.find()
    assert answers(posted, CheckpointFound)[-1] == CheckpointFound(str(tmp_path / "1-2"), 2)
    archive.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-2", "2-3"]


def test_those_that_count_no_more_are_gone_before_anybody_looks(tmp_path: Path, posted: Any, make: Make) -> None:
    archive = make(terms(tmp_path))
    for step in (5, 7):
        archive.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    archive.drop(DropCheckpoints(WRONG, "the states differ"))
    archive.find()
    event, found = answers(posted, CheckpointFound)
    assert (event.kind, event.data["checkpoint_id"]) == ("checkpoint.deleted", "1-7")
    assert "the states differ" in event.message
    assert found == CheckpointFound(str(tmp_path / "1-5"), 5)


def test_what_an_attempt_before_could_not_take_away_counts_no_more_either(
    tmp_path: Path, posted: Any, make: Make
) -> None:
    """It was killed while the storage hung, after it had told what is wrong."""
    before = make(terms(tmp_path))
    for step in (5, 7):
        before.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    successor = make(terms(tmp_path, attempt=2, distrusted=(WRONG,)))
    successor.find()
    assert answers(posted, CheckpointFound)[-1] == CheckpointFound(str(tmp_path / "1-5"), 5)
    successor.commit(written(tmp_path, 8, attempt=2))
    answers(posted, ManifestCommitted)
    last = make(terms(tmp_path, attempt=3, distrusted=(WRONG,)))
    last.find()
    assert answers(posted, CheckpointFound) == [CheckpointFound(str(tmp_path / "2-8"), 8)]


def test_a_damaged_one_is_passed_over_and_named(tmp_path: Path, posted: Any, make: Make) -> None:
    archive = make(terms(tmp_path))
    for step in (1, 2):
        archive.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    (tmp_path / "1-2" / "stripe-1").write_bytes(b"??")
    (tmp_path / "1-9").mkdir()
    archive.find()
    found = answers(posted, CheckpointFound)[-1]
    assert (found.folder, found.step) == (str(tmp_path / "1-1"), 1)
    assert [name for name, _ in found.corrupt] == ["1-2"], "one that was never finished is no damage"


def test_what_cannot_be_written_is_an_answer_too(tmp_path: Path, posted: Any, make: Make) -> None:
    archive = make(terms(tmp_path))
    order = written(tmp_path, 5)
    (tmp_path / "1-5" / "stripe-0").unlink()
    archive.commit(order)
    assert "stripe-0" in answers(posted, ManifestCommitted)[-1].error
    archive.commit(replace(order, folder="../evil"))
    assert "no folder of a checkpoint" in answers(posted, ManifestCommitted)[-1].error


def test_a_superseded_controller_changes_nothing_on_storage(
    tmp_path: Path, posted: Any, request: pytest.FixtureRequest
) -> None:
    archive = StorageArchive(terms(tmp_path, retention=Retention(1)), posted.put, lambda: True)
    request.addfinalizer(archive.close)
    archive.commit(written(tmp_path, 7))
    (answer,) = answers(posted, ManifestCommitted)
    assert "a newer attempt leads this job" in answer.error
    assert sorted(path.name for path in (tmp_path / "1-7").iterdir()) == ["stripe-0", "stripe-1"]
    archive.find()
    archive.close()
    assert posted.empty(), "it begins nothing beside its successor"
    assert (tmp_path / "1-7").exists()


def test_what_turned_out_to_be_wrong_is_not_committed_by_a_superseded_controller(
    tmp_path: Path, posted: Any, make: Make, request: pytest.FixtureRequest
) -> None:
    """Its order was on its way for long; its successor has heard since that the states differ."""
    is_superseded = threading.Event()
    late = StorageArchive(terms(tmp_path), posted.put, is_superseded.is_set)
    request.addfinalizer(late.close)
    order = written(tmp_path, 7)
    is_superseded.set()
    successor = make(terms(tmp_path, attempt=2))
    successor.drop(DropCheckpoints(replace(WRONG, attempt=2), "the states differ"))
    successor.close()
    late.commit(order)
    assert answers(posted, ManifestCommitted)[-1].error
    make(terms(tmp_path, attempt=2)).find()
    assert answers(posted, CheckpointFound) == [CheckpointFound()]


def test_another_jobs_checkpoint_is_the_origin_until_there_is_an_own_one(
    tmp_path: Path, posted: Any, make: Make
) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    make(terms(theirs)).commit(written(theirs, 30))
    answers(posted, ManifestCommitted)
    archive = make(terms(own, origin=LocalFolder(theirs / "1-30")))
    archive.find()
    assert answers(posted, CheckpointFound)[-1] == CheckpointFound(str(theirs / "1-30"), 30)
    archive.commit(written(own, 31))
    answers(posted, ManifestCommitted)
    (theirs / "1-30" / "stripe-1").write_bytes(b"??")
    archive.find()
    assert answers(posted, CheckpointFound)[-1].step == 31


@pytest.mark.parametrize("name", ["1-30", "1-31"])
def test_an_origin_that_is_not_whole_is_told_and_not_passed_over(
    tmp_path: Path, posted: Any, make: Make, name: str
) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    make(terms(theirs)).commit(written(theirs, 30))
    answers(posted, ManifestCommitted)
    (theirs / "1-30" / "stripe-1").write_bytes(b"??")
    make(terms(own, origin=LocalFolder(theirs / name))).find()
    (found,) = answers(posted, CheckpointFound)
    assert found.folder == ""
    assert name in found.unusable


def test_an_origin_that_was_made_under_other_terms_is_told(tmp_path: Path, posted: Any, make: Make) -> None:
    theirs = tmp_path / "theirs"
    make(terms(theirs)).commit(written(theirs, 30))
    answers(posted, ManifestCommitted)
    origin = LocalFolder(theirs / "1-30")
    make(terms(tmp_path / "own", origin=origin, job=replace(JOB, seed=JOB.seed + 1))).find()
    (found,) = answers(posted, CheckpointFound)
    assert found.folder == ""
    assert "it (1-30) was trained under other terms: the seed was" in found.unusable


def fail_at_first(monkeypatch: pytest.MonkeyPatch, method: str, times: int, why: str) -> list[StorageUnreachable]:
    """Let the storage not answer so many times. Returns the failures that are still to come."""
    failures = [StorageUnreachable(why)] * times
    real = getattr(LocalFolder, method)

    def call(folder: LocalFolder, name: str) -> Any:
        if failures:
            raise failures.pop()
        return real(folder, name)

    monkeypatch.setattr(LocalFolder, method, call)
    monkeypatch.setattr("rubato.launch.archive.RETRY_S", 0.01)
    return failures


def test_a_storage_that_does_not_answer_is_asked_again_instead_of_beginning_anew(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make(terms(tmp_path))
    archive.commit(written(tmp_path, 7))
    answers(posted, ManifestCommitted)
    failures = fail_at_first(monkeypatch, "read", 2, "no route to host")
    archive.find()
    *told, found = answers(posted, CheckpointFound)
    assert not failures
    assert [event.kind for event in told] == ["checkpoint.failed"], "told once a minute, however often it is asked"
    assert "no route to host" in told[0].message
    assert found == CheckpointFound(str(tmp_path / "1-7"), 7)


def test_an_origin_whose_storage_does_not_answer_is_asked_again_instead_of_failing_the_job(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    make(terms(theirs)).commit(written(theirs, 30))
    answers(posted, ManifestCommitted)
    failures = fail_at_first(monkeypatch, "read", 2, "503 Slow Down")
    make(terms(tmp_path / "own", origin=LocalFolder(theirs / "1-30"))).find()
    *told, found = answers(posted, CheckpointFound)
    assert not failures
    assert [event.kind for event in told] == ["checkpoint.failed"], "told once a minute, however often it is asked"
    assert "1-30) cannot be read, trying again every 0.01 s: 503 Slow Down" in told[0].message
    assert found == CheckpointFound(str(theirs / "1-30"), 30)


def test_nobody_begins_with_one_that_counts_no_more_while_the_storage_does_not_delete_it(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make(terms(tmp_path))
    for step in (5, 7):
        archive.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    failures = fail_at_first(monkeypatch, "remove", 3, "no route to host")
    archive.drop(DropCheckpoints(WRONG, "the states differ"))
    archive.find()
    *told, found = answers(posted, CheckpointFound)
    assert found == CheckpointFound(str(tmp_path / "1-5"), 5)
    assert [event.data["checkpoint_id"] for event in told if event.kind == "checkpoint.deleted"] == ["1-7"]
    assert not failures


def test_one_that_was_on_its_way_when_the_states_differed_counts_no_more(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage hangs while its manifest is written; a search meanwhile goes on without it."""
    archive = make(terms(tmp_path))
    archive.commit(written(tmp_path, 5))
    answers(posted, ManifestCommitted)
    returns, hangs = threading.Event(), threading.Event()
    real = LocalFolder.write_new

    def write_new(folder: LocalFolder, name: str, *arguments: Any) -> Any:
        hangs.set()
        returns.wait()
        return real(folder, name, *arguments)

    monkeypatch.setattr(LocalFolder, "write_new", write_new)
    monkeypatch.setattr("rubato.checkpoint.due.DUE_S", 0.2)
    archive.commit(written(tmp_path, 7))
    assert hangs.wait(10)
    archive.drop(DropCheckpoints(WRONG, "the states differ"))
    archive.find()
    found = answers(posted, CheckpointFound)[-1]
    assert found == CheckpointFound(str(tmp_path / "1-5"), 5)
    assert (tmp_path / "1-7").exists(), "a folder that may still be written to was deleted"
    returns.set()
    while (answer := answers(posted, ManifestCommitted)[-1]).error == "" or "storage hangs" in answer.error:
        pass
    assert "turned out to differ" in answer.error
    assert not (tmp_path / "1-7").exists()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Set once the newest is read again before older ones go; that waits for the second one."""
    begun, may_go_on = threading.Event(), threading.Event()
    real = LocalFolder.read

    def read(folder: LocalFolder, name: str) -> Iterator[bytes]:
        if threading.current_thread().name == "archive-clearing" and name != "manifest.json":
            begun.set()
            assert may_go_on.wait(30)
        yield from real(folder, name)

    monkeypatch.setattr(LocalFolder, "read", read)
    yield begun, may_go_on
    may_go_on.set()


def test_the_next_one_is_committed_while_the_one_before_is_read_again(
    tmp_path: Path, posted: Any, make: Make, reading: tuple[threading.Event, threading.Event]
) -> None:
    archive = make(terms(tmp_path, retention=Retention(1)))
    for step in (5, 7, 9):
        archive.commit(written(tmp_path, step))
        event, answer = answers(posted, ManifestCommitted)
        assert (event.kind, answer) == ("checkpoint.committed", ManifestCommitted(f"1-{step}", step, 4))
    assert reading[0].wait(10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-5", "1-7", "1-9"]
    reading[1].set()
    assert {posted.get(timeout=10).data["checkpoint_id"] for _ in range(2)} == {"1-5", "1-7"}


def test_what_is_found_is_not_deleted_by_what_was_asked_for_before(
    tmp_path: Path, posted: Any, make: Make, reading: tuple[threading.Event, threading.Event]
) -> None:
    """The newest is damaged right after it was read again; the search does not wait for that."""
    archive = make(terms(tmp_path, retention=Retention(1)))
    for step in (5, 7):
        archive.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    assert reading[0].wait(10)
    stripe = tmp_path / "1-7" / "stripe-1"
    content = stripe.read_bytes()
    stripe.write_bytes(b"??")
    archive.find()
    assert answers(posted, CheckpointFound)[-1].step == 5
    stripe.write_bytes(content)
    reading[1].set()
    archive.finish()
    assert (tmp_path / "1-5").exists()


def test_where_the_newest_turns_out_wrong_the_one_before_is_not_deleted_for_it(
    tmp_path: Path, posted: Any, make: Make, reading: tuple[threading.Event, threading.Event]
) -> None:
    archive = make(terms(tmp_path, retention=Retention(1)))
    for step in (5, 7):
        archive.commit(written(tmp_path, step))
        answers(posted, ManifestCommitted)
    assert reading[0].wait(10)
    archive.drop(DropCheckpoints(WRONG, "the states differ"))
    assert posted.get(timeout=10).data["checkpoint_id"] == "1-7"
    reading[1].set()
    archive.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["1-5"]


def test_nothing_is_cleared_away_while_somebody_looks(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make(terms(tmp_path, retention=Retention(1)))
    archive.commit(written(tmp_path, 5))
    answers(posted, ManifestCommitted)
    looks, may_go_on = threading.Event(), threading.Event()

    def find_latest(*asked: Any) -> Any:
        looks.set()
        assert may_go_on.wait(30)
        return manifest.find_latest(*asked)

    monkeypatch.setattr("rubato.launch.archive.find_latest", find_latest)
    archive.find()
    assert looks.wait(10)
    archive.commit(written(tmp_path, 7))
    answers(posted, ManifestCommitted)
    archive.finish()
    may_go_on.set()
    answers(posted, CheckpointFound)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-5", "1-7"]


@pytest.mark.parametrize("is_told_by_the_service", [True, False])
def test_a_storage_that_holds_nothing_of_what_was_saved_is_not_believed(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch, is_told_by_the_service: bool
) -> None:
    """A mount point without its mount: to begin afresh there would throw away all that was trained."""
    monkeypatch.setattr("rubato.launch.archive.RETRY_S", 0.05)
    root, mount = tmp_path / "root", tmp_path / "mount"
    archive = make(terms(root))
    archive.commit(written(root, 7))
    answers(posted, ManifestCommitted)
    root.rename(mount)
    root.mkdir()
    if is_told_by_the_service:
        archive = make(terms(root, attempt=2, newest="1-7"))
    archive.find()
    told = posted.get(timeout=10)
    assert "1-7 was saved there: is the storage mounted?" in told.message
    time.sleep(0.5)
    assert posted.empty(), "it is told once, however often it is looked for"
    root.rmdir()
    mount.rename(root)
    assert posted.get(timeout=10) == CheckpointFound(str(root / "1-7"), 7)


def test_what_was_found_to_be_wrong_need_not_be_there(tmp_path: Path, posted: Any, make: Make) -> None:
    archive = make(terms(tmp_path, attempt=2, newest="1-7", distrusted=(WRONG,)))
    archive.find()
    assert posted.get(timeout=10) == CheckpointFound()


def test_a_search_that_fails_in_no_foreseen_way_is_an_answer_too(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_latest(*_: Any) -> None:
        raise RecursionError("maximum depth exceeded")

    monkeypatch.setattr("rubato.launch.archive.find_latest", find_latest)
    make(terms(tmp_path)).find()
    found = answers(posted, CheckpointFound)[-1]
    assert found.folder == ""
    assert f"Checkpoints in {tmp_path} cannot be looked for: RecursionError: maximum depth" in found.unusable


def test_going_on_under_other_terms_is_refused(tmp_path: Path, posted: Any, make: Make) -> None:
    make(terms(tmp_path)).commit(written(tmp_path, 7))
    answers(posted, ManifestCommitted)
    (tmp_path / "1-9").mkdir()
    root = LocalFolder(tmp_path)
    check_terms(root, JOB)
    with pytest.raises(UserError, match=r"checkpoint 1-7 in .*: the seed was 3, now it is 4\. Go on with the same"):
        check_terms(root, replace(JOB, seed=4))
    assert next_attempt(root) == 2


def test_terms_are_not_taken_for_equal_where_the_storage_does_not_answer(
    tmp_path: Path, posted: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(terms(tmp_path)).commit(written(tmp_path, 7))
    answers(posted, ManifestCommitted)

    def read(folder: LocalFolder, name: str) -> Iterator[bytes]:
        raise StorageUnreachable("no route to host")

    monkeypatch.setattr(LocalFolder, "read", read)
    with pytest.raises(StorageUnreachable, match="no route"):
        check_terms(LocalFolder(tmp_path), replace(JOB, seed=4))
