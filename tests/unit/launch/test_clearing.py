"""What a new checkpoint makes superfluous goes once the newest was read again; nobody waits for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rubato.checkpoint.manifest import JobTerms, commit_manifest
from rubato.checkpoint.retention import Retention
from rubato.checkpoint.storage import LocalFolder
from rubato.engine.coordinator.orders import CommitManifest, Emit
from rubato.launch.clearing import Clearing

TERMS = JobTerms("job_1", num_microbatches=4, radices=(2, 2), seed=0, global_batch=8)


@pytest.fixture
def posted() -> queue.SimpleQueue[Emit]:
    return queue.SimpleQueue()


@pytest.fixture
def make(tmp_path: Path, posted: queue.SimpleQueue[Emit]) -> Iterator[Callable[..., Clearing]]:
    made: list[Clearing] = []

    def build(keep: int = 1, is_superseded: Callable[[], bool] = lambda: False) -> Clearing:
        made.append(Clearing(LocalFolder(tmp_path), Retention(keep), posted.put, is_superseded))
        return made[-1]

    yield build
    for clearing in made:
        clearing.close(10.0)


def committed(root: Path, step: int) -> CommitManifest:
    """A whole checkpoint, and the order by which it became one."""
    folder = LocalFolder(root / f"1-{step}")
    files = (asdict(folder.write("a", [f"{step}".encode() * 50])),)
    commit_manifest(folder, TERMS.manifest(folder.name, step=step, generation=1, files=files, terms={}))
    return CommitManifest(folder.name, step, 1, files, {})


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def deleted(posted: queue.SimpleQueue[Emit]) -> list[tuple[int | None, str]]:
    """Who was deleted, and for the checkpoint of which step."""
    told = [posted.get() for _ in range(posted.qsize())]
    assert all(event.kind == "checkpoint.deleted" for event in told), told
    return [(event.step, event.data["checkpoint_id"]) for event in told]


class Reads:
    """Of the bytes of checkpoints; manifests are not counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.is_reading, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        real = LocalFolder.read

        def read(folder: LocalFolder, name: str) -> Iterator[bytes]:
            if name != "manifest.json":
                self.done.append(folder.name)
                self.is_reading.set()
                assert self.may_go_on.wait(30)
            yield from real(folder, name)

        monkeypatch.setattr(LocalFolder, "read", read)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    found = Reads(monkeypatch)
    yield found
    found.may_go_on.set()


def damage_file(folder: Path) -> None:
    data = bytearray((folder / "a").read_bytes())
    data[7] ^= 4
    (folder / "a").write_bytes(data)


def drop_file(folder: Path) -> None:
    (folder / "a").unlink()


def damage_manifest(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"generation": 1', '"generation": 3'))


@pytest.mark.parametrize("damage", [damage_file, drop_file, damage_manifest])
def test_nothing_is_deleted_while_the_newest_does_not_hold(
    tmp_path: Path, make: Callable[..., Clearing], damage: Callable[[Path], None]
) -> None:
    orders = [committed(tmp_path, step) for step in (10, 20, 30)]
    damage(tmp_path / "1-30")
    clearing = make()
    clearing.after(orders[-1])
    clearing.finish()
    assert names(tmp_path) == ["1-10", "1-20", "1-30"]


def test_each_checkpoint_is_read_once(tmp_path: Path, posted: Any, make: Callable[..., Clearing], reads: Reads) -> None:
    clearing = make()
    for step in (10, 20, 30):
        order = committed(tmp_path, step)
        clearing.after(order)
        clearing._lane.wait()
    committed(tmp_path, 25)  # late, and older
    clearing.after(order)
    clearing.finish()
    assert deleted(posted) == [(20, "1-10"), (30, "1-20"), (30, "1-25")]
    assert reads.done == ["1-20", "1-30"], "the first one alone makes nothing superfluous"


def test_what_was_read_by_a_search_is_not_read_again(
    tmp_path: Path, posted: Any, make: Callable[..., Clearing], reads: Reads
) -> None:
    clearing = make()
    orders = [committed(tmp_path, step) for step in (10, 20)]
    clearing.void()
    clearing.know("1-20")
    clearing.after(orders[-1])
    clearing.finish()
    assert deleted(posted) == [(20, "1-10")]
    assert reads.done == []


def test_what_waits_is_replaced_by_what_comes_later(
    tmp_path: Path, posted: Any, make: Callable[..., Clearing], reads: Reads
) -> None:
    clearing = make()
    committed(tmp_path, 10)
    reads.may_go_on.clear()
    clearing.after(committed(tmp_path, 20))
    assert reads.is_reading.wait(10)
    for step in (30, 40, 50):
        clearing.after(committed(tmp_path, step))
    reads.may_go_on.set()
    clearing.finish()
    assert deleted(posted) == [(20, "1-10"), (50, "1-20"), (50, "1-30"), (50, "1-40")]
    assert reads.done == ["1-20", "1-50"]


@pytest.mark.parametrize("end", ["void", "finish", "close"])
def test_reading_holds_nobody_up_and_what_was_asked_for_before_deletes_nothing(
    tmp_path: Path, make: Callable[..., Clearing], reads: Reads, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr("rubato.launch.clearing.FINISH_S", 0.01)
    clearing = make()
    committed(tmp_path, 10)
    reads.may_go_on.clear()
    clearing.after(committed(tmp_path, 20))
    assert reads.is_reading.wait(10)
    {"void": clearing.void, "finish": clearing.finish, "close": lambda: clearing.close(0.01)}[end]()
    reads.may_go_on.set()
    clearing.close(10.0)
    assert names(tmp_path) == ["1-10", "1-20"]


def test_what_is_deleted_is_told_before_the_end(
    tmp_path: Path, posted: Any, make: Callable[..., Clearing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is over in the middle of a deletion: that one is told of, and no other is begun."""
    monkeypatch.setattr("rubato.launch.clearing.FINISH_S", 0.2)
    clearing = make()
    orders = [committed(tmp_path, step) for step in (10, 20, 30)]
    deletes, real = threading.Event(), LocalFolder.remove_all

    def remove_all(folder: LocalFolder) -> None:
        deletes.set()
        assert clearing._is_closed.wait(10)
        real(folder)

    monkeypatch.setattr(LocalFolder, "remove_all", remove_all)
    clearing.after(orders[-1])
    assert deletes.wait(10)
    clearing.finish()
    assert deleted(posted) == [(30, "1-10")]
    assert names(tmp_path) == ["1-20", "1-30"]


def test_who_is_superseded_while_it_reads_deletes_nothing(
    tmp_path: Path, make: Callable[..., Clearing], reads: Reads
) -> None:
    clearing = make(is_superseded=lambda: bool(reads.done))
    orders = [committed(tmp_path, step) for step in (10, 20)]
    clearing.after(orders[-1])
    clearing.finish()
    assert reads.done == ["1-20"]
    assert names(tmp_path) == ["1-10", "1-20"]


def test_a_storage_that_hangs_is_told(
    tmp_path: Path, posted: Any, make: Callable[..., Clearing], reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.checkpoint.due.DUE_S", 0.01)
    clearing = make()
    committed(tmp_path, 10)
    reads.may_go_on.clear()
    clearing.after(committed(tmp_path, 20))
    told = posted.get(timeout=10)
    assert (told.kind, told.step) == ("checkpoint.failed", 20)
    assert "old checkpoints are not cleared away" in told.message
