"""Storages that are not there, and what counts as gone then; and how much they are asked."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec  # type: ignore[import-untyped]
import pytest

from rubato.wire.storage import StorageUri
from service import storage, stored, sweep
from service.stored import LocalStored
from tests.integration.service.test_checkpoints import by_step, commit, end, make_files
from tests.integration.service.test_removal import checkpoints_of, finished, left_of, remove, rows_of, sweep_all

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no storage that hangs."""
    monkeypatch.setattr(storage, "LOOK_S", 60.0)


def unmount(bench: Bench, *, leaves_folder: bool) -> Callable[[], None]:
    """The storage is not there any more; gives what brings it back."""
    root = Path(bench.settings.storage_uri.path)
    elsewhere = root.rename(root.with_name("elsewhere"))
    if leaves_folder:
        root.mkdir()

    def put_back() -> None:
        if leaves_folder:
            root.rmdir()
        elsewhere.rename(root)

    return put_back


async def test_readiness_asks_for_the_newest_checkpoint(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look() -> tuple[str, bool, str]:
        bench.clock.advance(2)  # the same look answers all within a second
        await bench.agent.sync()
        await bench.schedule()
        told = (await bench.client.get("/readyz")).json()
        (check,) = [one for one in told["checks"] if one["name"] == "storage"]
        return told["status"], check["ok"], check["detail"]

    assert await look() == ("ok", True, "no checkpoint was told of yet")
    controller = await bench.start()
    await commit(controller, 10)
    make_files(bench, controller, 10)
    assert await look() == ("ok", True, "holds the newest checkpoint")
    put_back = unmount(bench, leaves_folder=True)
    differs = "the newest checkpoint is not there: service and workers must see the same RUBATO_STORAGE"
    assert await look() == ("degraded", False, differs)
    put_back()
    assert await look() == ("ok", True, "holds the newest checkpoint")

    def fail(_folder: LocalStored) -> list[str]:
        raise OSError(errno.EIO, "a broken disk at /somewhere")

    with monkeypatch.context() as broken:
        broken.setattr(LocalStored, "folders", fail)
        status, is_ok, detail = await look()
    assert (status, is_ok) == ("degraded", False)
    assert detail.startswith("does not answer: ")
    assert "somewhere" not in detail, "everybody may ask"


@pytest.mark.parametrize("what", ["missing", "empty"])
async def test_a_storage_that_is_not_mounted_has_lost_nothing(bench: Bench, what: str) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    made = make_files(bench, controller, 10, 20)
    (made[10] / "pinned").write_bytes(b"")
    put_back = unmount(bench, leaves_folder=what == "empty")
    seen = await by_step(bench)
    assert [one["pinned"] for one in seen.values()] == [None, None], "nobody can know"
    await end(controller)
    path = f"/api/v1/checkpoints/{seen[20]['id']}"
    for method, at, body in (
        ("PATCH", path, {"pinned": True}),
        ("PATCH", path, {"pinned": False}),
        ("DELETE", path, None),
        ("DELETE", "/api/v1/jobs/digits", None),
    ):
        refused = await bench.client.request(method, at, json=body)
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_unreachable"), (method, at)
        assert "is it mounted?" in refused.json()["detail"]
    assert list(await by_step(bench)) == [20, 10]
    put_back()
    assert (await bench.client.delete("/api/v1/jobs/digits")).status_code == 409, "one is pinned"
    assert (await bench.client.delete(path)).status_code == 204
    assert not made[20].exists()


async def test_a_storage_that_the_service_emptied_is_believed(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    (folder,) = make_files(bench, controller, 10).values()
    await end(controller)
    checkpoints = await by_step(bench)
    assert (await bench.client.delete(f"/api/v1/checkpoints/{checkpoints[10]['id']}")).status_code == 204
    folder.parent.rmdir()
    assert [one["pinned"] for one in (await by_step(bench)).values()] == [False]
    assert (await bench.client.delete(f"/api/v1/checkpoints/{checkpoints[20]['id']}")).status_code == 204
    assert [one.name for one in folder.parent.parent.iterdir()] == [storage.MARK_NAME]


@pytest.fixture
def closed_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be made in the root, and nothing removed from it. Modes would not hold off who is root."""
    write, remove_if_empty = LocalStored.write, LocalStored.remove_if_empty

    def refuse_write(folder: LocalStored, name: str, data: bytes) -> None:
        if not folder._parts:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        write(folder, name, data)

    def refuse_remove(folder: LocalStored) -> None:
        if len(folder._parts) > 1:
            remove_if_empty(folder)

    monkeypatch.setattr(LocalStored, "write", refuse_write)
    monkeypatch.setattr(LocalStored, "remove_if_empty", refuse_remove)


@pytest.mark.usefixtures("closed_root")
async def test_where_the_root_may_not_be_written_to_checkpoints_are_pinned_and_deleted(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    made = make_files(bench, controller, 10, 20)
    await end(controller)
    paths = {step: f"/api/v1/checkpoints/{seen['id']}" for step, seen in (await by_step(bench)).items()}
    for is_pinned in (True, False):
        response = await bench.client.patch(paths[10], json={"pinned": is_pinned})
        assert (response.status_code, (made[10] / "pinned").exists()) == (200, is_pinned), response.text
    assert (await bench.client.delete(paths[20])).status_code == 204
    assert not made[20].exists()
    await remove(bench, "digits", 204)
    await sweep_all(bench)
    kept = checkpoints_of(bench, controller.job_id)
    assert await left_of(bench, controller.job_id) == [str(kept)], "by which the root is known to be there"
    assert list(kept.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_on_a_full_disk_what_is_deleted_makes_room_for_the_mark(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    controller = await bench.start()
    await commit(controller, 10)
    (folder,) = make_files(bench, controller, 10).values()
    await end(controller)
    write = LocalStored.write

    def refuse(root: LocalStored, name: str, data: bytes) -> None:
        if folder.exists():
            raise OSError(number, os.strerror(number), name)
        write(root, name, data)

    monkeypatch.setattr(LocalStored, "write", refuse)
    (seen,) = (await by_step(bench)).values()
    assert (await bench.client.delete(f"/api/v1/checkpoints/{seen['id']}")).status_code == 204
    assert not folder.exists()
    assert (folder.parent.parent / storage.MARK_NAME).exists()


def test_an_object_store_that_the_service_could_empty_without_a_mark_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_store: stored.ObjectStored, name: str, _data: bytes) -> None:
        raise PermissionError(errno.EACCES, "Access Denied", name)

    root = StorageUri("memory", f"/{tmp_path.name}")
    fsspec.filesystem("memory").pipe_file(f"/{tmp_path.name}/job_a/1-10/manifest.json", b"{}")
    monkeypatch.setattr(stored.ObjectStored, "write", refuse)
    with pytest.raises(PermissionError), storage.marked(root):
        pytest.fail("it was left to be emptied")


class CountingStore:
    """Of an object store what is asked for pins."""

    def __init__(self, *pinned: str, fault: Exception | None = None) -> None:
        self._pinned = pinned
        self._fault = fault
        self.requests = 0

    def _strip_protocol(self, path: str) -> str:
        return path.lstrip("/")

    def cat(self, paths: list[str], *, on_error: str) -> dict[str, bytes | Exception]:
        assert on_error == "return"
        self.requests += 1
        none = self._fault or FileNotFoundError()
        return {path: b"" if path in self._pinned else none for path in paths}


def test_all_pins_of_a_page_are_asked_for_at_once() -> None:
    store = CountingStore("bucket/job/1-7/pinned")
    found = stored.ObjectStored(store, "bucket/job").which_hold("pinned", [f"1-{step}" for step in range(200)])
    assert (sorted(name for name in found if found[name]), len(found), store.requests) == (["1-7"], 200, 1)
    assert stored.ObjectStored(store, "bucket/job").which_hold("pinned", []) == {}
    with pytest.raises(PermissionError):
        stored.ObjectStored(CountingStore(fault=PermissionError()), "bucket/job").which_hold("pinned", ["1-7"])


async def test_a_storage_that_is_not_mounted_keeps_the_rows(bench: Bench) -> None:
    job_id = await finished(bench)
    await remove(bench, job_id, 204)
    put_back = unmount(bench, leaves_folder=True)
    await sweep_all(bench)
    assert await left_of(bench, job_id) == ["jobs", "checkpoints"]
    put_back()
    bench.clock.advance(sweep.REST.total_seconds() + 1)
    await bench.app.state.running.sweeper.run_once()
    assert await left_of(bench, job_id) == []


async def test_jobs_that_fail_let_those_behind_them_come(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "JOBS", 2)
    ids = [await finished(bench, name) for name in ("first", "second", "third", "fourth")]
    for job_id in ids:
        await remove(bench, job_id, 204, keep_checkpoints=job_id == ids[3])
        bench.clock.advance(1)
    asked: list[tuple[str, ...]] = []

    def fail(folder: LocalStored) -> list[str]:
        asked.append(folder._parts)
        raise OSError("gone")

    sweeper = bench.app.state.running.sweeper
    bench.clock.advance(61)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStored, "folders", fail)
        await sweeper.run_once()
        assert asked == [(ids[0],), ()], "one that was silent, and its root, too, is not asked again in a round"
        assert (await rows_of(bench, ids[1]))["events"] == 0, "but for what needs it not"
        await sweeper.run_once()
        assert not any((await rows_of(bench, ids[3])).values())
        assert asked[2:] == [(ids[2],), ()]
        await sweeper.run_once()
        assert len(asked) == 4, "all wait"
    bench.clock.advance(sweep.REST.total_seconds() + 1)
    for _ in range(2):
        await sweeper.run_once()
    assert [await left_of(bench, job_id) for job_id in ids[:3]] == [[], [], []]


async def test_a_folder_that_cannot_be_removed_holds_up_its_own_job_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await finished(bench, "first"), await finished(bench, "second")
    await remove(bench, first, 204)
    bench.clock.advance(1)
    await remove(bench, second, 204)
    real = LocalStored.remove_all

    def fail(folder: LocalStored) -> None:
        if folder._parts[0] == first:
            raise PermissionError("not ours")
        real(folder)

    bench.clock.advance(61)
    sweeper = bench.app.state.running.sweeper
    with monkeypatch.context() as patched:
        patched.setattr(LocalStored, "remove_all", fail)
        await sweeper.run_once()
    assert await left_of(bench, second) == [], "in the same round"
    assert "jobs" in await left_of(bench, first)
    bench.clock.advance(sweep.REST.total_seconds() + 1)
    await sweeper.run_once()
    assert await left_of(bench, first) == []
