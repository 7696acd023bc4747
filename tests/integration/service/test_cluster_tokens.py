"""A cluster's token that is bound to its cluster speaks for no other one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from rubato.wire import WIRE_VERSION
from rubato.wire.cluster import ControllerSeen, SyncRequest
from rubato.wire.codec import to_json
from service.models import Attempt
from tests.simulated_controller import SimulatedController, bearer

if TYPE_CHECKING:
    import httpx

    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio


async def make_token(bench: Bench, cluster: str | None) -> str:
    made = await bench.post("/tokens", 201, {"name": f"agent of {cluster}", "role": "cluster", "cluster": cluster})
    assert (made["role"], made["user"], made["cluster"]) == ("cluster", None, cluster)
    return str(made["token"])


async def sync(bench: Bench, token: str, cluster: str, *seen: ControllerSeen) -> httpx.Response:
    view = SyncRequest("agent of a test", WIRE_VERSION, bench.agent.nodes, seen, 0, 0)
    return await bench.client.post(f"/cluster/v1/clusters/{cluster}/sync", json=to_json(view), headers=bearer(token))


async def clusters_of(bench: Bench) -> set[str]:
    return {one["id"] for one in (await bench.get("/cluster"))["clusters"]}


async def test_it_speaks_for_its_cluster_only(bench: Bench) -> None:
    edge, anywhere = await make_token(bench, "edge"), await make_token(bench, None)
    assert (await sync(bench, edge, "edge")).json()["acting"]
    refused = await sync(bench, edge, "core")
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "--cluster edge" in refused.json()["detail"]
    assert await clusters_of(bench) == {"edge"}, "nothing of the other one was made"
    for cluster in ("edge", "core"):
        assert (await sync(bench, anywhere, cluster)).status_code == 200
    listed = {item["name"]: item["cluster"] for item in (await bench.get("/tokens"))["items"]}
    assert (listed["agent of edge"], listed["agent of None"]) == ("edge", None)
    (entry, _) = (await bench.get("/audit", action="token.created"))["items"]
    assert entry["detail"]["cluster"] is None


async def is_confirmed_gone(bench: Bench, controller: SimulatedController) -> bool:
    async with bench.context.database.read() as session:
        statement = select(Attempt.is_confirmed_gone).where(Attempt.job_id == controller.job_id)
        return bool((await session.scalars(statement)).one())


async def test_it_ends_no_attempt_of_another_cluster(bench: Bench) -> None:
    """Else two controllers would count: the lease of the one that lives protects nothing once it is called gone."""
    controller = await bench.start()
    gone = ControllerSeen(controller.job_id, "gone", 1)
    edge, home = await make_token(bench, "edge"), await make_token(bench, "default")
    assert (await sync(bench, edge, "edge", gone)).status_code == 200
    assert not await is_confirmed_gone(bench, controller)
    bench.clock.advance(20)  # the lease of the agent that was there before
    assert (await sync(bench, home, "default", gone)).json()["acting"]
    assert await is_confirmed_gone(bench, controller)


@pytest.mark.parametrize(
    "wrong", [{"role": "user", "user": "ada"}, {"role": "scraper"}, {"cluster": "no such name"}, {"cluster": ""}]
)
async def test_no_other_token_is_bound_and_to_no_other_name(bench: Bench, wrong: dict[str, Any]) -> None:
    await bench.post("/users", 201, {"name": "ada"})
    await bench.post("/tokens", 422, {"name": "agent", "role": "cluster", "cluster": "edge", **wrong})
