"""The trail of what people changed: what it tells, and how long it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from service import sweep
from tests.integration.service.test_people import make_user

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("rows", [2, sweep.ROWS])
async def test_the_audit_trail_loses_what_is_older_than_it_is_kept(
    make_bench: MakeBench, database_url: str, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(sweep, "ROWS", rows)
    async with make_bench(database_url, keep_audit_days=2) as bench:
        sweeper = bench.app.state.running.sweeper

        async def names() -> list[str]:
            await sweeper.run_once()
            return [
                entry["detail"]["project"] for entry in (await bench.get("/audit", action="project.created"))["items"]
            ]

        for name in ("a", "b", "c", "d", "e"):
            await bench.post("/projects", 201, {"name": name})
        bench.clock.advance(86_400)
        await bench.post("/projects", 201, {"name": "f"})
        bench.clock.advance(86_000)
        assert await names() == ["f", "e", "d", "c", "b", "a"]
        bench.clock.advance(500)
        assert await names() == ["f"]
        bench.clock.advance(86_400)
        assert await names() == []


async def test_the_audit_trail_is_kept_for_good_where_nothing_is_said(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "a"})
    bench.clock.advance(5_000 * 86_400)
    await bench.app.state.running.sweeper.run_once()
    assert len((await bench.get("/audit"))["items"]) == 1


async def test_the_audit_tells_what_went_with_a_project(bench: Bench) -> None:
    await bench.post("/projects", 201, {"name": "vision"})
    await make_user(bench, "ada", vision="editor")
    secret = await bench.client.put("/api/v1/projects/vision/secrets/TOKEN", json={"value": "a long canary"})
    assert secret.status_code in (200, 201), secret.text
    assert (await bench.client.delete("/api/v1/projects/vision")).status_code == 204
    newest = (await bench.get("/audit?action=project.deleted"))["items"][0]
    assert newest["detail"] == {"project": "vision", "secrets": ["TOKEN"], "webhooks": [], "members": ["ada"]}
