"""Packages that no job has any more are removed, and none that somebody needs."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete

from service import uploads
from service.models import Package
from service.packages import OLDEST_UPLOAD_S, Aside, PackageStore, Upload
from tests.integration.service.test_backup import packed
from tests.integration.service.test_removal import remove, sweep_all

if TYPE_CHECKING:
    from datetime import datetime

    import httpx

    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

DAY_S = 86_400
PATIENCE_S = 120.0


@functools.cache
def package(text: str) -> tuple[str, bytes]:
    """Its address and its bytes: those of a zip tell when it was made."""
    return packed(text)


async def put(bench: Bench, text: str) -> httpx.Response:
    sha256, data = package(text)
    return await bench.client.put(f"/api/v1/packages/{sha256}", content=data)


async def upload(bench: Bench, text: str) -> str:
    stored = await put(bench, text)
    assert stored.status_code in (200, 201), stored.text
    return package(text)[0]


async def is_there(bench: Bench, sha256: str) -> bool:
    found = (await bench.client.head(f"/api/v1/packages/{sha256}")).status_code
    assert found in (200, 404)
    assert bench.context.packages.path(sha256).is_file() is (found == 200)
    return found == 200


def with_package(sha256: str, name: str = "own-code") -> dict[str, str]:
    return {"name": name, "entrypoint": "train.py:train", "package": sha256}


async def test_a_package_goes_some_days_after_its_upload_when_no_job_has_it(
    make_bench: MakeBench, database_url: str
) -> None:
    async with make_bench(database_url, keep_packages_days=7) as bench:
        used, unused = await upload(bench, "used"), await upload(bench, "unused")
        job = await bench.post("/jobs", 201, with_package(used))
        await sweep_all(bench)
        assert await is_there(bench, used)
        assert await is_there(bench, unused)
        bench.clock.advance(7 * DAY_S + 1)
        late = await upload(bench, "late")
        await sweep_all(bench)
        assert [await is_there(bench, one) for one in (used, unused, late)] == [True, False, True]
        # Whoever submits the same code again finds out, and uploads it anew.
        refused = await bench.client.post("/api/v1/jobs", json=with_package(unused, "again"))
        assert (refused.status_code, refused.json()["code"]) == (422, "package_unknown")
        await upload(bench, "unused")
        await bench.post("/jobs", 201, with_package(unused, "again"))
        await bench.post(f"/jobs/{job['id']}/cancel", 202)
        await remove(bench, job["id"], 204)
        await sweep_all(bench)
        bench.clock.advance(3_700)
        await sweep_all(bench)
        assert [await is_there(bench, one) for one in (used, unused)] == [False, True]


async def test_an_upload_and_a_submit_that_meet_the_removal_lose_nothing(
    make_bench: MakeBench, database_url: str
) -> None:
    async with make_bench(database_url, keep_packages_days=1) as bench:
        for number in range(20):
            sha256 = await upload(bench, f"contested {number}")
            bench.clock.advance(2 * DAY_S)
            before = bench.clock()

            async def take_away(sha256: str = sha256, before: datetime = before) -> bool:
                return await uploads.remove_unused(bench.context, bench.context.database.write, sha256, before)

            wish = with_package(sha256, f"wish-{number}")
            if number % 2:
                gone, answer = await asyncio.gather(take_away(), bench.client.post("/api/v1/jobs", json=wish))
                assert answer.status_code == (422 if gone else 201), answer.text
                assert await is_there(bench, sha256) is not gone
            else:
                answer, _ = await asyncio.gather(put(bench, f"contested {number}"), take_away())
                assert answer.status_code in (200, 201, 503), answer.text
                # Whoever came last: it is whole, or whoever asks is told that it is not there.
                if not await is_there(bench, sha256):
                    await upload(bench, f"contested {number}")
                await bench.post("/jobs", 201, wish)


async def test_an_upload_beside_the_removal_of_the_same_package_keeps_it(
    make_bench: MakeBench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old row is gone, the old file not yet: the upload's own file is what is put aside."""
    async with make_bench(database_url, keep_packages_days=1) as bench:
        sha256 = await upload(bench, "contested")
        bench.clock.advance(2 * DAY_S)
        begun, goes = threading.Event(), threading.Event()
        put_aside = PackageStore.put_aside

        def late(packages: PackageStore, sha256: str) -> Aside | None:
            begun.set()
            assert goes.wait(PATIENCE_S)
            return put_aside(packages, sha256)

        monkeypatch.setattr(PackageStore, "put_aside", late)
        context = bench.context
        removal = asyncio.create_task(
            uploads.remove_unused(context, context.database.write, sha256, bench.clock() - timedelta(days=1))
        )
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        await upload(bench, "contested")
        goes.set()
        assert await removal
        assert await is_there(bench, sha256)
        assert context.packages.path(sha256).read_bytes() == package("contested")[1]
        assert context.packages.list_aside() == []


async def test_an_upload_whose_file_was_taken_along_is_asked_for_again(
    make_bench: MakeBench, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file lies there, its row not yet, as the removal looks."""
    async with make_bench(database_url, keep_packages_days=1) as bench:
        sha256 = await upload(bench, "contested")
        bench.clock.advance(2 * DAY_S)
        keep = Upload.keep

        async def keep_and_lose(received: Upload) -> None:
            await keep(received)
            await sweep_all(bench)

        with monkeypatch.context() as patched:
            patched.setattr(Upload, "keep", keep_and_lose)
            refused = await put(bench, "contested")
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready"), refused.text
        assert not bench.context.packages.path(sha256).exists()
        await upload(bench, "contested")
        assert await is_there(bench, sha256)


async def test_a_removal_that_a_crash_cut_off_is_finished(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url, keep_packages_days=1) as bench:
        packages = bench.context.packages
        wanted, unwanted = await upload(bench, "wanted"), await upload(bench, "unwanted")
        async with bench.context.database.write() as session:
            await session.execute(delete(Package).where(Package.sha256 == unwanted))
        for sha256 in (wanted, unwanted):
            assert packages.put_aside(sha256) is not None
        assert not await is_there(bench, wanted)
        bench.clock.advance(3_700)
        await sweep_all(bench)
        assert await is_there(bench, wanted)
        assert not packages.path(unwanted).exists()
        assert packages.list_aside() == []


async def test_files_that_a_crash_left_without_their_rows_are_removed(make_bench: MakeBench, database_url: str) -> None:
    async with make_bench(database_url) as bench:
        packages = bench.context.packages
        known = [await upload(bench, text) for text in ("one", "two")]
        lost, fresh = await upload(bench, "lost"), await upload(bench, "fresh")
        for sha256 in (*known, lost):
            os.utime(packages.path(sha256), (0, time.time() - OLDEST_UPLOAD_S - 60))

        async def sweep_without_rows_of(*gone: str) -> list[bool]:
            async with bench.context.database.write() as session:
                await session.execute(delete(Package).where(Package.sha256.in_(gone)))
            await uploads.finish_removals(bench.context)
            return [packages.path(one).exists() for one in (*known, lost, fresh)]

        assert await sweep_without_rows_of(lost, fresh) == [True, True, False, True]
        # A service that was pointed at another database knows none of them, or but one that both have.
        assert await sweep_without_rows_of(known[0]) == [True, True, False, True]
        assert await sweep_without_rows_of(known[1]) == [True, True, False, True]
        assert packages.list_aside() == []
