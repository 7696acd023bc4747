"""Pages of checkpoints, attempts and generations; pins and deletions, and storages that do not answer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec  # type: ignore[import-untyped]
import pytest
from sqlalchemy import update

from rubato.wire.cluster import Outcome, Result
from rubato.wire.storage import StorageUri
from service import storage
from service import stored as folders
from service.models import Checkpoint
from service.stored import LocalStored, StoredFolder
from tests.integration.service.test_people import make_user

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench
    from tests.simulated_controller import SimulatedController

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no storage that hangs."""
    monkeypatch.setattr(storage, "LOOK_S", 60.0)


async def commit(controller: SimulatedController, *steps: int) -> None:
    """Checkpoints as their events tell, without files."""
    events = tuple(
        controller.event("checkpoint.committed", step=step, checkpoint_id=f"1-{step}", bytes=1, files=[])
        for step in steps
    )
    await controller.report(events=events, step=max(steps))


def make_files(bench: Bench, controller: SimulatedController, *steps: int) -> dict[int, Path]:
    """Their folders, as workers and controller would have left them."""
    folders = {step: Path(bench.settings.storage_uri.path) / controller.job_id / f"1-{step}" for step in steps}
    for folder in folders.values():
        folder.mkdir(parents=True)
        (folder / "stripe-0.safetensors").write_bytes(b"weights")
        (folder / "manifest.json").write_text("{}")
    return folders


async def end(controller: SimulatedController) -> None:
    await controller.report(outcome=Outcome(state="succeeded", result=Result(step=1, digest="d")))


async def by_step(bench: Bench) -> dict[int, dict[str, Any]]:
    return {item["step"]: item for item in (await bench.get("/jobs/digits/checkpoints"))["items"]}


async def collect(bench: Bench, path: str, limit: int) -> list[dict[str, Any]]:
    """All items, page by page."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await bench.get(path, limit=limit, **cursor)
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


async def test_pages_join(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20, 30)
    events = tuple(controller.event("generation.formed", generation=number) for number in range(1, 6))
    await controller.report(events=events)
    await controller.acquire()
    await controller.report()
    await commit(controller, 40)
    for limit in (1, 2, 10):
        steps = [item["step"] for item in await collect(bench, "/jobs/digits/checkpoints", limit)]
        assert steps == [40, 30, 20, 10], "newest first"
        attempts = await collect(bench, "/jobs/digits/attempts", limit)
        assert [item["attempt"] for item in attempts] == [1, 2]
        generations = await collect(bench, "/jobs/digits/generations", limit)
        assert [item["generation"] for item in generations] == [1, 2, 3, 4, 5]
        assert {item["attempt"] for item in generations} == {1}
    for path in ("checkpoints", "attempts", "generations"):
        for key in ("x", "-1", "1-", "9" * 40, "1-x", ""):
            problem = await bench.get(f"/jobs/digits/{path}", 422, cursor=f"{path}:{key}")
            assert problem["code"] == "invalid_request"


async def test_a_pin_is_a_file_beside_the_checkpoint_and_nothing_else(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    folders = make_files(bench, controller, 10, 20)
    found = await by_step(bench)
    assert (found[10]["pinned"], found[20]["pinned"]) == (False, False)
    response = await bench.client.patch(f"/api/v1/checkpoints/{found[10]['id']}", json={"pinned": True})
    assert (response.status_code, response.json()["pinned"]) == (200, True)
    assert (folders[10] / "pinned").is_file()
    again = await bench.client.patch(f"/api/v1/checkpoints/{found[10]['id']}", json={"pinned": True})
    assert again.json() == response.json()
    # By hand, or by `rubato pin FOLDER`: the service sees it at once, because it remembers nothing.
    (folders[20] / "pinned").write_text("by hand")
    (folders[10] / "pinned").unlink()
    found = await by_step(bench)
    assert (found[10]["pinned"], found[20]["pinned"]) == (False, True)
    assert (await bench.get(f"/checkpoints/{found[20]['id']}"))["pinned"] is True
    response = await bench.client.patch(f"/api/v1/checkpoints/{found[20]['id']}", json={"pinned": False})
    assert response.json()["pinned"] is False
    assert not (folders[20] / "pinned").exists()
    kinds = [event["kind"] for event in (await bench.get("/jobs/digits/events"))["items"]]
    assert kinds[-2:] == ["checkpoint.pinned", "checkpoint.unpinned"]


async def test_what_the_retention_took_cannot_be_pinned(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    make_files(bench, controller, 20)
    checkpoint = (await by_step(bench))[10]
    response = await bench.client.patch(f"/api/v1/checkpoints/{checkpoint['id']}", json={"pinned": True})
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert (await bench.client.patch("/api/v1/checkpoints/ckpt_x", json={"pinned": True})).status_code == 404
    for body in ({}, {"pinned": "yes"}, {"pinned": True, "step": 3}):
        refused = await bench.client.patch(f"/api/v1/checkpoints/{checkpoint['id']}", json=body)
        assert refused.status_code == 422, body


async def test_an_old_checkpoint_is_deleted_with_its_files(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    folders = make_files(bench, controller, 10, 20)
    path = f"/api/v1/checkpoints/{(await by_step(bench))[10]['id']}"
    assert (await bench.client.delete(path)).status_code == 204
    assert not folders[10].exists()
    assert folders[20].is_dir()
    assert list(await by_step(bench)) == [20]
    assert (await bench.client.delete(path)).status_code == 404
    event = (await bench.get("/jobs/digits/events"))["items"][-1]
    assert (event["kind"], event["data"]) == ("checkpoint.deleted", {"checkpoint_id": "1-10", "by": "admin"})


async def test_what_a_job_may_need_is_not_deleted(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    folders = make_files(bench, controller, 10, 20)
    found = await by_step(bench)

    async def refused(step: int, why: str) -> None:
        response = await bench.client.delete(f"/api/v1/checkpoints/{found[step]['id']}")
        assert (response.status_code, response.json()["code"]) == (409, "conflict")
        assert why in response.json()["detail"]
        assert (folders[step] / "stripe-0.safetensors").is_file()
        assert (folders[step] / "manifest.json").is_file()

    await refused(20, "newest of digits")
    (folders[10] / "pinned").write_text("x")
    await refused(10, "pinned")
    (folders[10] / "pinned").unlink()
    await bench.submit("heir", checkpoint={"resume_from": found[10]["id"]})
    await refused(10, "heir begins from")
    await bench.post("/jobs/heir/cancel", 202)
    assert (await bench.client.delete(f"/api/v1/checkpoints/{found[10]['id']}")).status_code == 204
    await end(controller)
    assert (await bench.client.delete(f"/api/v1/checkpoints/{found[20]['id']}")).status_code == 204


@asynccontextmanager
async def deletion_under_way(bench: Bench, path: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Its needs were looked at, and its files are about to go."""
    delete = storage.delete
    began, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def delete_later(folder: StoredFolder) -> bool:
        loop.call_soon_threadsafe(began.set)
        released.wait(60)
        return delete(folder)

    monkeypatch.setattr(storage, "delete", delete_later)
    deletion = asyncio.create_task(bench.client.delete(path))
    try:
        await asyncio.wait_for(began.wait(), 60)
        yield
    finally:
        released.set()
        assert (await deletion).status_code == 204


async def test_no_job_begins_from_a_checkpoint_that_is_going(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    make_files(bench, controller, 10, 20)
    await end(controller)
    found = await by_step(bench)
    path = f"/api/v1/checkpoints/{found[20]['id']}"
    spec = {"name": "heir", "recipe": "image-classifier", "checkpoint": {"resume_from": found[20]["id"]}}
    async with deletion_under_way(bench, path, monkeypatch):
        for where, body in (("/jobs", spec), ("/jobs/digits/clone", {"from_checkpoint": found[20]["id"]})):
            refused = await bench.post(where, 422, body)
            assert refused["errors"][0]["path"] == "checkpoint.resume_from"
            assert "is being deleted" in refused["errors"][0]["message"]
        clone = await bench.post("/jobs/digits/clone", 201, {"from_checkpoint": "latest"})
        assert clone["spec"]["checkpoint"]["resume_from"] == found[10]["id"]
    assert "there is no checkpoint" in (await bench.post("/jobs", 422, spec))["errors"][0]["message"]


async def test_a_deletion_that_was_cut_short_is_sent_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    folders = make_files(bench, controller, 10, 20)
    checkpoint = (await by_step(bench))[10]["id"]

    def fail(_folder: StoredFolder) -> bool:
        raise OSError("gone")

    with monkeypatch.context() as broken:
        broken.setattr(storage, "delete", fail)
        assert (await bench.client.delete(f"/api/v1/checkpoints/{checkpoint}")).status_code == 503
    spec = {"name": "heir", "recipe": "image-classifier", "checkpoint": {"resume_from": checkpoint}}
    assert "is being deleted" in (await bench.post("/jobs", 422, spec))["errors"][0]["message"]
    assert list(await by_step(bench)) == [20, 10]
    assert (await bench.client.delete(f"/api/v1/checkpoints/{checkpoint}")).status_code == 204
    assert not folders[10].exists()


async def test_what_is_made_again_can_be_begun_from_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    make_files(bench, controller, 10, 20)
    checkpoint = (await by_step(bench))[10]["id"]
    async with deletion_under_way(bench, f"/api/v1/checkpoints/{checkpoint}", monkeypatch):
        pass
    await commit(controller, 10)
    await bench.submit("heir", checkpoint={"resume_from": (await by_step(bench))[10]["id"]})


async def test_a_refusal_does_not_name_a_foreign_job(bench: Bench) -> None:
    controller = await bench.start()
    await commit(controller, 10, 20)
    make_files(bench, controller, 10, 20)
    path = f"/api/v1/checkpoints/{(await by_step(bench))[10]['id']}"
    await bench.post("/projects", 201, {"name": "secret"})
    await bench.submit("secret-heir", project="secret", checkpoint={"resume_from": path.rpartition("/")[2]})
    async with await make_user(bench, "ada", default="editor") as ada:
        refused = await ada.delete(path)
        assert refused.status_code == 409
        assert refused.json()["detail"] == "A job of another project begins from checkpoint 1-10 and has not ended."
    assert "secret-heir begins from" in (await bench.client.delete(path)).json()["detail"]


@pytest.fixture
async def one(make_bench: MakeBench) -> AsyncIterator[Bench]:
    async with make_bench() as running:
        yield running


async def test_of_a_storage_that_hangs_nothing_is_known(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await one.start()
    await commit(controller, 10, 20)
    make_files(one, controller, 10, 20)
    released = threading.Event()
    asked = threading.Semaphore(0)

    def hang(_folder: LocalStored, _name: str) -> bool:
        asked.release()
        released.wait()
        return False

    monkeypatch.setattr(LocalStored, "exists", hang)
    monkeypatch.setattr(storage, "LOOK_S", 0.05)
    monkeypatch.setattr(storage, "CHANGE_S", 0.05)
    monkeypatch.setattr(storage, "SILENCE_S", 600.0)
    try:
        checkpoint = (await by_step(one))[10]
        assert checkpoint["pinned"] is None
        assert asked.acquire(timeout=60)
        assert (await by_step(one))[10]["pinned"] is None
        assert not asked.acquire(blocking=False), "a storage that hung a moment ago is not asked for show"
        for _ in range(storage.MAX_ASKING + 1):
            refused = await one.client.patch(f"/api/v1/checkpoints/{checkpoint['id']}", json={"pinned": True})
            assert (refused.status_code, refused.json()["code"]) == (503, "storage_unreachable")
            assert refused.headers["retry-after"]
        assert "too many requests" in refused.json()["detail"]
        deleted = await one.client.delete(f"/api/v1/checkpoints/{checkpoint['id']}")
        assert deleted.status_code == 503
    finally:
        released.set()
    assert list(await by_step(one)) == [20, 10]


async def test_a_download_does_not_wait_on_a_storage_that_hangs(one: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = await one.start()
    await commit(controller, 10)
    make_files(one, controller, 10)
    checkpoint = (await by_step(one))[10]
    listed = [{"name": "model.pt", "bytes": 1, "sha256": ""}]
    async with one.context.database.write() as session:
        await session.execute(update(Checkpoint).values(files=listed))
    released, hung = threading.Event(), threading.Event()

    def hang(*_where: object) -> None:
        hung.set()
        released.wait(60)

    monkeypatch.setattr(storage, "find_stored", hang)
    monkeypatch.setattr(storage, "FIND_S", 0.05)
    try:
        refused = await one.client.get(f"/api/v1/checkpoints/{checkpoint['id']}/files/model.pt")
        assert hung.is_set()
        assert (refused.status_code, refused.json()["code"]) == (503, "storage_unreachable")
    finally:
        released.set()


async def test_pins_in_an_object_store(make_bench: MakeBench, tmp_path: Path) -> None:
    async with make_bench(storage=f"memory://{tmp_path.name}") as bench:
        controller = await bench.start()
        await commit(controller, 10, 20)
        store = fsspec.filesystem("memory")
        folder = f"/{tmp_path.name}/{controller.job_id}/1-10"
        for name in ("stripe-0.safetensors", "manifest.json"):
            store.pipe_file(f"{folder}/{name}", b"{}")
        path = f"/api/v1/checkpoints/{(await by_step(bench))[10]['id']}"
        assert (await bench.client.patch(path, json={"pinned": True})).json()["pinned"] is True
        assert store.isfile(f"{folder}/pinned")
        assert (await by_step(bench))[10]["pinned"] is True
        assert (await bench.client.delete(path)).status_code == 409
        assert (await bench.client.patch(path, json={"pinned": False})).json()["pinned"] is False
        assert (await bench.client.delete(path)).status_code == 204
        assert not store.exists(folder)


class Racing(LocalStored):
    """Somebody does something right after a file was removed, or written."""

    def __init__(self, path: Path, after: str, do: Any) -> None:
        super().__init__(path.parent, path.name)
        self._after, self._do = after, do

    def remove(self, name: str) -> None:
        super().remove(name)
        if name == self._after:
            self._do()

    def write(self, name: str, data: bytes) -> None:
        super().write(name, data)
        if name == self._after:
            self._do()


def whole(path: Path) -> LocalStored:
    path.mkdir()
    for name in ("a", "manifest.json"):
        (path / name).write_bytes(b"{}")
    return LocalStored(path.parent, path.name)


def test_a_pin_that_comes_while_the_manifest_goes_wins(tmp_path: Path) -> None:
    folder = tmp_path / "1-10"
    whole(folder)
    racing: StoredFolder = Racing(folder, "manifest.json", lambda: (folder / "pinned").write_bytes(b""))
    assert storage.delete(racing) is False
    assert {path.name for path in folder.iterdir()} == {"a", "manifest.json", "pinned"}


def test_a_pin_that_comes_too_late_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "1-10"
    whole(folder)
    racing: StoredFolder = Racing(folder, "pinned", lambda: (folder / "manifest.json").unlink(missing_ok=True))
    assert storage.pin(racing) is False
    assert {path.name for path in folder.iterdir()} == {"a"}


def test_nothing_is_done_behind_a_link(tmp_path: Path) -> None:
    """A program of a job can leave one in the place of its folder, or of a checkpoint's."""
    secrets, root = tmp_path / "home", tmp_path / "root"
    (secrets / "1-10").mkdir(parents=True)
    for name in ("a", "manifest.json", "pinned"):
        for folder in (secrets, secrets / "1-10"):
            (folder / name).write_bytes(b"secret")
    (root / "job_b").mkdir(parents=True)
    (root / "job_a").symlink_to(secrets)
    (root / "job_b" / "1-10").symlink_to(secrets)
    uri = StorageUri("file", str(root))
    before = sorted(secrets.rglob("*"))
    for job_id in ("job_a", "job_b"):
        stored = folders.open_stored(uri, job_id, "1-10")
        assert folders.find_stored(uri, job_id, "1-10", "a") is None
        assert not stored.exists("pinned")
        assert storage.pin(stored) is False
        for change, given in {"write": ("pinned", b""), "remove": ("a",)}.items():
            with pytest.raises(OSError, match="directory"):
                getattr(stored, change)(*given)
        with pytest.raises(OSError, match="no plain file"):
            stored.read("a")
    job = folders.open_stored(uri, "job_a")
    assert job.folders() == []
    job.remove_if_empty()
    with pytest.raises(OSError, match="directory"):
        folders.open_stored(uri, "job_a", "1-10").remove_all()
    folders.open_stored(uri, "job_b", "1-10").remove_all()
    assert list((root / "job_b").iterdir()) == [], "the link is removed, and not what it leads to"
    assert sorted(secrets.rglob("*")) == before


def test_what_was_planted_where_a_file_is_to_be_written_is_not_written_to(tmp_path: Path) -> None:
    stored = folders.open_stored(StorageUri("file", str(tmp_path)))
    os.mkfifo(tmp_path / ".pinned.part")  # to open it would wait for a reader
    stored.write("pinned", b"by a person")
    assert stored.read("pinned") == b"by a person"
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(folders.MOST_BYTES + 1)
    with pytest.raises(OSError, match="too large"):
        stored.read("manifest.json")


async def test_a_checkpoint_that_is_a_link_is_not_handed_out(one: Bench) -> None:
    controller = await one.start()
    listed = [{"name": "token", "bytes": 1, "sha256": ""}]
    told = {"checkpoint_id": "1-1", "bytes": 1, "seconds": 0.1, "metrics": {}, "files": listed}
    await controller.report(step=1, events=(controller.event("checkpoint.committed", step=1, **told),))
    job = Path(one.settings.storage_uri.path) / controller.job_id
    job.mkdir()
    (job / "1-1").symlink_to(one.settings.home)
    path = f"/api/v1/checkpoints/{(await by_step(one))[1]['id']}/files/token"
    assert (await one.client.get(path)).status_code == 404
    (job / "1-1").unlink()
    (job / "1-1").mkdir()
    (job / "1-1" / "token").write_bytes(b"weights")
    assert (await one.client.get(path, headers={"Range": "bytes=2-4"})).content == b"igh"
