"""Packages and checkpoints: what is stored, and what is refused."""

from __future__ import annotations

import hashlib
import io
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec  # type: ignore[import-untyped]
import pytest

from rubato.wire.cluster import Outcome, Result
from service.errors import ServiceError
from service.packages import inspect_zip
from tests.simulated_controller import bearer

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(make_bench: MakeBench, database_url: str) -> AsyncIterator[Bench]:
    async with make_bench(database_url, max_package_bytes=2_000_000) as running:
        yield running


def _zip(*entries: tuple[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def _entry(name: str, mode: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = mode << 16
    return entry


def _raw_name(name: str, other: str) -> bytes:
    """A zip whose stored name `name` is replaced by one that zipfile would not write."""
    assert len(name) == len(other)
    return _zip((name, b"x")).replace(name.encode(), other.encode("latin-1"))


GOOD = _zip(("train.py", b"def train(run): print('hi')"), ("pkg/", b""), ("pkg/data.txt", b"1"))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def test_a_package_is_stored_once_and_found_by_its_hash(bench: Bench) -> None:
    sha = _sha(GOOD)
    assert (await bench.client.head(f"/api/v1/packages/{sha}")).status_code == 404
    first = await bench.client.put(f"/api/v1/packages/{sha}", content=GOOD)
    assert (first.status_code, first.json()) == (201, {"sha256": sha, "bytes": len(GOOD)})
    assert (await bench.client.put(f"/api/v1/packages/{sha}", content=GOOD)).status_code == 200
    assert (await bench.client.head(f"/api/v1/packages/{sha}")).status_code == 200
    assert (bench.settings.home / "packages" / f"{sha}.zip").read_bytes() == GOOD


async def test_an_attempt_fetches_its_own_package_only(bench: Bench) -> None:
    other = _zip(("train.py", b"print('other')"))
    for package in (GOOD, other):
        await bench.client.put(f"/api/v1/packages/{_sha(package)}", content=package)
    controller = await bench.start(recipe=None, entrypoint="train.py", package=_sha(GOOD))
    assert controller.acquired is not None
    token = bearer(controller.acquired.token)
    got = await bench.client.get(f"/cluster/v1/packages/{_sha(GOOD)}", headers=token)
    assert (got.status_code, got.content) == (200, GOOD)
    assert (await bench.client.get(f"/cluster/v1/packages/{_sha(other)}", headers=token)).status_code == 403
    assert (await bench.client.get("/cluster/v1/packages/..%2ftoken", headers=token)).status_code == 404


EVIL: dict[str, Callable[[], bytes]] = {
    "parent": lambda: _zip(("../evil.py", b"x")),
    "parent inside": lambda: _zip(("pkg/../../evil.py", b"x")),
    "absolute": lambda: _zip(("/etc/passwd", b"x")),
    "drive": lambda: _zip(("C:/evil.py", b"x")),
    "backslash": lambda: _raw_name("aaevil.py", "..\\il.py" + "x"),
    "NUL in the name": lambda: _raw_name("trainXpy", "train\x00py"),
    "newline in the name": lambda: _zip(("tr\nain.py", b"x")),
    "empty name": lambda: _raw_name("a", "."),
    "symbolic link": lambda: _zip((_entry("link", stat.S_IFLNK | 0o777), b"/etc/passwd")),
    "device": lambda: _zip((_entry("null", stat.S_IFCHR | 0o666), b"")),
    "pipe": lambda: _zip((_entry("pipe", stat.S_IFIFO | 0o666), b"")),
    "no zip": lambda: b"PK is how zips begin, not how they end",
    "empty": lambda: b"",
    "cut": lambda: GOOD[:-30],
    "name of 2000 bytes": lambda: _zip(("x" * 2000, b"x")),
    "bomb": lambda: _zip(("zeros", b"\0" * 200_000_000)),
    "LZMA": lambda: _zip(("train.py", b"x"), method=zipfile.ZIP_LZMA),
    "bzip2": lambda: _zip(("train.py", b"x"), method=zipfile.ZIP_BZIP2),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", [*EVIL, "twice"])
async def test_evil_zips_are_refused_and_nothing_stays(bench: Bench, name: str) -> None:
    data = _zip(("a.py", b"1"), ("a.py", b"2")) if name == "twice" else EVIL[name]()
    response = await bench.client.put(f"/api/v1/packages/{_sha(data)}", content=data)
    assert (response.status_code, response.json()["code"]) == (422, "package_invalid"), response.text
    assert list((bench.settings.home / "packages").iterdir()) == []
    assert (await bench.client.head(f"/api/v1/packages/{_sha(data)}")).status_code == 404


async def test_a_directory_that_lies_about_sizes_is_refused(bench: Bench) -> None:
    data = bytearray(_zip(("train.py", b"x" * 100)))
    directory = data.index(b"PK\x01\x02")
    struct.pack_into("<I", data, directory + 24, 600_000_000)
    response = await bench.client.put(f"/api/v1/packages/{_sha(bytes(data))}", content=bytes(data))
    assert response.json()["code"] == "package_too_large"


async def test_caps_on_bytes_and_entries(bench: Bench) -> None:
    large = b"x" * 2_000_001
    refused = await bench.client.put(f"/api/v1/packages/{_sha(large)}", content=large)
    assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(21):
            yield b"x" * 100_000

    streamed = await bench.client.put(f"/api/v1/packages/{'0' * 64}", content=chunks())
    assert (streamed.status_code, streamed.json()["code"]) == (413, "package_too_large")
    many = _zip(*((f"{index}", b"") for index in range(10_001)), method=zipfile.ZIP_STORED)
    refused = await bench.client.put(f"/api/v1/packages/{_sha(many)}", content=many)
    assert (refused.status_code, refused.json()["code"]) == (413, "package_too_large")
    assert list((bench.settings.home / "packages").iterdir()) == []


@pytest.mark.parametrize("told", [0, 100_000], ids=["count that lies", "count that holds"])
def test_an_overlong_directory_is_refused_before_it_is_read(tmp_path: Path, told: int) -> None:
    entry = struct.Struct("<4s6H3L5H2L5s")
    listed = b"".join(
        entry.pack(b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, b"%05d" % number)
        for number in range(100_000)
    )
    count = min(told, 0xFFFF)
    path = tmp_path / "many.zip"
    path.write_bytes(listed + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(listed), 0, 0))
    tracemalloc.start()
    try:
        with pytest.raises(ServiceError, match="its directory is longer"):
            inspect_zip(path, path.stat().st_size)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(listed)
    finally:
        tracemalloc.stop()


async def test_wrong_hashes_are_refused(bench: Bench) -> None:
    for address in ("0" * 64, "zz", _sha(GOOD).upper()):
        response = await bench.client.put(f"/api/v1/packages/{address}", content=GOOD)
        assert (response.status_code, response.json()["code"]) == (422, "package_invalid"), address


async def test_checkpoints_are_listed_downloaded_and_forgotten(bench: Bench) -> None:
    controller = await bench.start()
    folder = Path(bench.settings.storage_uri.path) / controller.job_id / "1-300"
    folder.mkdir(parents=True)
    (folder / "stripe-0.safetensors").write_bytes(b"weights")
    (folder / "secret.txt").write_bytes(b"not listed")
    (folder / "link").symlink_to(bench.settings.home / "token")
    files = [
        {"name": "stripe-0.safetensors", "bytes": 7, "sha256": _sha(b"weights")},
        {"name": "link", "bytes": 1, "sha256": ""},
        {"name": "../../../token", "bytes": 1, "sha256": ""},
        {"name": "..", "bytes": 1, "sha256": ""},
        {"name": "gone.bin", "bytes": 1, "sha256": ""},
    ]
    committed = {"checkpoint_id": "1-300", "bytes": 7, "seconds": 0.1, "metrics": {"loss": 0.2}, "files": files}
    evil = {"checkpoint_id": "../../x", "bytes": 7, "files": files}
    await controller.report(
        step=300,
        events=(
            controller.event("checkpoint.committed", step=300, **committed),
            controller.event("checkpoint.committed", step=300, **evil),
        ),
    )
    listed = (await bench.get("/jobs/digits/checkpoints"))["items"]
    assert len(listed) == 1
    checkpoint = await bench.get(f"/checkpoints/{listed[0]['id']}")
    assert checkpoint == listed[0]
    assert (checkpoint["checkpoint_id"], checkpoint["step"], checkpoint["metrics"]) == ("1-300", 300, {"loss": 0.2})
    assert [item["name"] for item in checkpoint["files"]] == ["stripe-0.safetensors", "link", "gone.bin"]

    base = f"/api/v1/checkpoints/{checkpoint['id']}/files"
    got = await bench.client.get(f"{base}/stripe-0.safetensors")
    assert (got.status_code, got.content) == (200, b"weights")
    for name in ("secret.txt", "link", "gone.bin", "..%2f..%2f..%2ftoken", "%2e%2e", "stripe-0.safetensors%00"):
        assert (await bench.client.get(f"{base}/{name}")).status_code == 404, name

    await controller.report(events=(controller.event("checkpoint.deleted", checkpoint_id="1-300"),))
    assert (await bench.get("/jobs/digits/checkpoints"))["items"] == []
    assert (await bench.client.get(f"{base}/stripe-0.safetensors")).status_code == 404


async def test_checkpoints_in_an_object_store_are_downloaded_too(make_bench: MakeBench, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000  # more than one request
    async with make_bench(storage=f"memory://{tmp_path.name}") as bench:
        controller = await bench.start()
        assert controller.acquired is not None
        assert controller.acquired.storage == f"memory://{tmp_path.name}"
        store = fsspec.filesystem("memory")
        store.pipe_file(f"/{tmp_path.name}/{controller.job_id}/1-300/stripe-0.safetensors", data)
        files = [{"name": name, "bytes": 1, "sha256": ""} for name in ("stripe-0.safetensors", "gone.bin")]
        committed = {"checkpoint_id": "1-300", "bytes": 7, "seconds": 0.1, "metrics": {}, "files": files}
        await controller.report(step=300, events=(controller.event("checkpoint.committed", step=300, **committed),))
        (listed,) = (await bench.get("/jobs/digits/checkpoints"))["items"]
        base = f"/api/v1/checkpoints/{listed['id']}/files"
        got = await bench.client.get(f"{base}/stripe-0.safetensors")
        assert (got.status_code, got.headers["content-length"]) == (200, str(len(data)))
        assert got.headers["content-disposition"] == 'attachment; filename="1-300-stripe-0.safetensors"'
        assert got.content == data
        assert (await bench.client.get(f"{base}/gone.bin")).status_code == 404


async def test_a_job_starts_from_a_checkpoint_of_another(bench: Bench) -> None:
    controller = await bench.start("first")
    await controller.report(
        step=300,
        events=(controller.event("checkpoint.committed", step=300, checkpoint_id="1-300", bytes=1, files=[]),),
        outcome=Outcome(state="succeeded", result=Result(step=300, digest="d" * 64)),
    )
    origin = (await bench.get("/jobs/first/checkpoints"))["items"][0]["id"]
    unknown = await bench.client.post(
        "/api/v1/jobs", json={"name": "x", "recipe": "image-classifier", "checkpoint": {"resume_from": "ckpt_no"}}
    )
    assert unknown.json()["errors"][0]["path"] == "checkpoint.resume_from"
    second = await bench.start("second", checkpoint={"resume_from": origin})
    assert second.acquired is not None
    assert second.acquired.spec["checkpoint"]["resume_from"] == f"{controller.job_id}/1-300"
    assert (await bench.job("second"))["spec"]["checkpoint"]["resume_from"] == origin


async def test_a_checkpoint_that_is_made_again_after_it_was_deleted_is_listed(bench: Bench) -> None:
    """The job went back to an older one, and came to the same step once more."""
    controller = await bench.start()
    await controller.report(state="running", phase="training", step=10)
    sizes = (100, 200)
    for size in sizes:
        file = {"name": "state-0123456789abcdef.json", "bytes": size, "sha256": "ab" * 32}
        told = {"checkpoint_id": "1-10", "bytes": size, "files": [file]}
        await controller.report(step=10, events=(controller.event("checkpoint.committed", step=10, **told),))
        (listed,) = (await bench.get("/jobs/digits/checkpoints"))["items"]
        assert listed["bytes"] == size
        if size != sizes[-1]:
            gone = controller.event("checkpoint.deleted", checkpoint_id="1-10")
            await controller.report(step=10, events=(gone,))
            assert (await bench.get("/jobs/digits/checkpoints"))["items"] == []
    assert (await bench.get(f"/checkpoints/{listed['id']}"))["files"] == [file]
