"""Packages that no job has any more are removed, and none that somebody needs."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest

from service import uploads
from tests.integration.service.test_backup import packed
from tests.integration.service.test_removal import remove, sweep_all

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio

DAY_S = 86_400


@functools.cache
def package(text: str) -> tuple[str, bytes]:
    """Its address and its bytes: those of a zip tell when it was made."""
    return packed(text)


async def upload(bench: Bench, text: str) -> str:
    sha256, data = package(text)
    stored = await bench.client.put(f"/api/v1/packages/{sha256}", content=data)
    assert stored.status_code in (200, 201), stored.text
    return sha256


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

            async def take_away(sha256: str = sha256, before: object = before) -> bool:
                async with bench.context.database.write() as session:
                    return await uploads.remove_unused(bench.context, session, sha256, before)  # type: ignore[arg-type]

            wish = with_package(sha256, f"wish-{number}")
            if number % 2:
                gone, answer = await asyncio.gather(take_away(), bench.client.post("/api/v1/jobs", json=wish))
                assert answer.status_code == (422 if gone else 201), answer.text
                assert await is_there(bench, sha256) is not gone
            else:
                await asyncio.gather(upload(bench, f"contested {number}"), take_away())
                # Whoever came last: it is whole, or whoever asks is told that it is not there.
                if not await is_there(bench, sha256):
                    await upload(bench, f"contested {number}")
                await bench.post("/jobs", 201, wish)
