"""The code of a job, read on the page: whole, and nothing else."""

from __future__ import annotations

import hashlib
import io
import struct
import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

from rubato.recipes import RECIPES
from service.code import MAX_SHOWN_BYTES

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

FILES = {
    "train.py": b"def train(run): ...\n",
    "my/deep/module.py": b"train = 'gr\xc3\xbc\xc3\x9fe'\n",
    "weights.bin": b"\0\1\2" * 100,
    "long.txt": b"a" * (MAX_SHOWN_BYTES + 7),
}

RECIPE = RECIPES["image-classifier"].path
SOURCE = RECIPE.read_text()


async def upload(bench: Bench) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("my/", b"")
        for path, data in FILES.items():
            archive.writestr(path, data)
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    stored = await bench.client.put(f"/api/v1/packages/{sha256}", content=packed.getvalue())
    assert stored.status_code == 201, stored.text
    return sha256


async def text_of(bench: Bench, job: str, path: str, expect: int = 200) -> dict[str, Any]:
    response = await bench.client.get(f"/api/v1/jobs/{job}/code/text", params={"path": path})
    assert response.status_code == expect, response.text
    return response.json()


async def test_the_files_of_a_package_are_listed_and_read(bench: Bench) -> None:
    sha256 = await upload(bench)
    await bench.submit("own", recipe=None, entrypoint="my.deep.module:train", package=sha256)
    code = await bench.get("/jobs/own/code")
    assert (code["source"], code["name"], code["entrypoint"]) == ("package", sha256, "my.deep.module:train")
    assert {item["path"]: item["bytes"] for item in code["items"]} == {path: len(data) for path, data in FILES.items()}
    assert [item["path"] for item in code["items"] if item["is_entrypoint"]] == ["my/deep/module.py"]

    text = await text_of(bench, "own", "my/deep/module.py")
    assert (text["text"], text["is_cut"]) == ("train = 'grüße'\n", False)
    assert (await text_of(bench, "own", "weights.bin"))["text"] is None
    long = await text_of(bench, "own", "long.txt")
    assert (len(long["text"]), long["bytes"], long["is_cut"]) == (MAX_SHOWN_BYTES, MAX_SHOWN_BYTES + 7, True)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("entrypoint", "told"),
    [
        ("trian.py:train", "there is no file trian.py in the working folder; did you mean 'train.py'?"),
        ("train.py:trian", "train.py has no function 'trian'; did you mean 'train'?"),
        ("./train.py:other", "./train.py has no function 'other'; its functions are train; the entrypoint is"),
    ],
)
async def test_a_program_that_is_not_in_the_package_is_refused(
    bench: Bench, entrypoint: str, told: str, dry_run: bool
) -> None:
    spec = {"name": "own", "entrypoint": entrypoint, "package": await upload(bench)}
    (finding,) = (await bench.post("/jobs", 422, spec, dry_run=dry_run))["errors"]
    assert (finding["path"], finding["message"][: len(told)]) == ("entrypoint", told)
    elsewhere = {**spec, "entrypoint": "installed.elsewhere:train"}
    await bench.post("/jobs", 200, elsewhere, dry_run=True)


async def test_a_path_leads_nowhere_else(bench: Bench) -> None:
    await bench.submit("own", recipe=None, entrypoint="train.py:train", package=await upload(bench))
    await bench.submit("digits")
    token = bench.settings.home / "token"
    assert token.is_file()
    outside = [str(token), "../token", "my/../train.py", "./train.py", "my/", "train.py\0", "", "..%2ftoken"]
    for job in ("own", "digits"):
        for path in outside:
            await text_of(bench, job, path, 404)
    for path in ("__init__.py", "char_lm.py"):
        await text_of(bench, "digits", path, 404)


async def test_a_recipe_shows_its_source_and_other_jobs_say_that_there_is_none(bench: Bench) -> None:
    await bench.submit("digits")
    code = await bench.get("/jobs/digits/code")
    assert (code["source"], code["name"]) == ("recipe", "image-classifier")
    assert code["items"] == [{"path": RECIPE.name, "bytes": len(SOURCE.encode()), "is_entrypoint": True}]
    assert (await text_of(bench, "digits", RECIPE.name))["text"] == SOURCE

    await bench.submit("elsewhere", recipe=None, entrypoint="train.py:train")
    assert await bench.get("/jobs/elsewhere/code") == {
        "source": "none",
        "name": "",
        "entrypoint": "train.py:train",
        "items": [],
    }
    bench.context.packages.path(sha256 := await upload(bench)).rename(bench.settings.home / "moved")
    await bench.submit("gone", recipe=None, entrypoint="train.py:train", package=sha256)
    gone = await bench.get("/jobs/gone/code")
    assert (gone["source"], gone["name"]) == ("none", sha256)


async def test_a_damaged_file_of_a_package_is_told(bench: Bench) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.py", bytes(range(256)) * 40)
        offset = archive.infolist()[0].header_offset + 30 + len("train.py")
    data = bytearray(packed.getvalue())
    data[offset + 9 : offset + 40] = b"\xff" * 31
    sha256 = hashlib.sha256(data).hexdigest()
    await bench.client.put(f"/api/v1/packages/{sha256}", content=bytes(data))
    await bench.submit("own", recipe=None, entrypoint="train.py:train", package=sha256)
    assert (await text_of(bench, "own", "train.py", 422))["code"] == "package_invalid"


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
async def test_a_stored_bomb_is_not_unpacked_to_be_shown(bench: Bench, method: int) -> None:
    """Such a zip may be there since a release that took it; its directory says less than it unpacks to."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("train.py", b"\0" * 50_000_000)
    data = bytearray(packed.getvalue())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, 1_000)
    sha256 = await upload(bench)
    bench.context.packages.path(sha256).write_bytes(data)
    await bench.submit("own", recipe=None, entrypoint="train.py:train", package=sha256)
    assert [item["bytes"] for item in (await bench.get("/jobs/own/code"))["items"]] == [1_000]
    tracemalloc.start()
    try:
        refused = await text_of(bench, "own", "train.py", 422)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert refused["code"] == "package_invalid"
    assert refused["detail"].endswith(f"'train.py' is compressed by method {method}; use stored or deflated.")
