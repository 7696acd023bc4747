"""What a request says that no route understands is refused before anything is done, and the refusal says why."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from api.app import ROUTERS

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench, MakeBench

pytestmark = pytest.mark.anyio


async def test_no_route_ignores_a_parameter(make_bench: MakeBench) -> None:
    """On one kind of database, which has no part in it."""
    routes = [route for router in ROUTERS for route in router.routes if route.path.startswith("/api/v1/")]
    async with make_bench() as bench:
        for route in routes:
            for method in route.methods - {"HEAD"}:
                path = re.sub(r"\{[^}]+\}", "0", route.path)
                response = await bench.client.request(method, path, params={"bogus": "1"})
                told = (response.status_code, response.json()["code"], response.json()["errors"][0]["path"])
                assert told == (422, "invalid_request", "bogus"), (method, path)
    assert len(routes) > 60


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "/jobs?limits=3", "which takes created_after, cursor, history, label, limit, project, q, status; did"),
        ("DELETE", "/jobs/digits?keep_checkpoint=true", "did you mean keep_checkpoints?"),
        ("POST", "/jobs?dryrun=true", "did you mean dry_run?"),
        ("POST", "/jobs/digits/cancel?force=true", "'force' is no parameter of this route, which takes wait."),
        ("GET", "/me?whom=x&what=y", "'what' is no parameter of this route, which takes none."),
        ("GET", "/jobs/digits?For=running", "did you mean for?"),
    ],
)
async def test_an_unknown_parameter_is_named_beside_the_known_ones(
    bench: Bench, method: str, path: str, says: str
) -> None:
    job = await bench.submit()
    response = await bench.client.request(method, f"/api/v1{path}", json={"name": "other", "recipe": "char-lm"})
    assert (response.status_code, says in response.json()["detail"]) == (422, True), response.text
    (left,) = (await bench.get("/jobs", project="default", limit=2))["items"]
    assert (left["id"], left["status"]) == (job["id"], "queued")


async def test_the_page_and_clusters_may_say_more(bench: Bench) -> None:
    controller = await bench.start()
    assert controller.acquired is not None
    assert (await bench.client.get("/jobs?status=failed")).status_code == 200
    desired = f"/cluster/v1/jobs/{controller.job_id}/desired?after=0&new=1"
    headers = {"Authorization": f"Bearer {controller.acquired.token}"}
    assert (await bench.client.get(desired, headers=headers)).status_code == 200
