"""More is to be decided than one transaction has time for: each round does some of it, and nothing is given twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from service.notify import SCHEDULER
from service.scheduling import apply, lapses
from tests.simulated_controller import one_node, training

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

ONE = {"initial": 1, "min": 1, "max": 1}


async def statuses(bench: Bench) -> Counter[str]:
    return Counter(job["status"] for job in (await bench.get("/jobs"))["items"])


async def test_a_round_that_runs_out_of_time_is_gone_on_with_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "APPLY_FOR_S", 0.0)
    bench.agent.nodes = one_node(3)
    for index in range(5):
        await bench.submit(f"job-{index}", workers=ONE)
    await bench.agent.sync()
    with bench.context.hub.subscribe(SCHEDULER) as subscription:
        for count in (1, 2, 3):
            await bench.loop.run_once()
            assert (await statuses(bench))["starting"] == count
            assert await subscription.wait(0), "the loop goes on without waiting for its turn"
        for _ in range(9):  # then the sentences: of those that wait, and of those that were started
            await bench.loop.run_once()
            if not await subscription.wait(0):
                break
        else:
            pytest.fail("it goes on although nothing is left to be done")
    told = (await bench.get("/jobs"))["items"]
    assert [item["position"] for item in (await bench.get("/queue"))["items"]] == [1, 2]
    monkeypatch.undo()
    await bench.loop.run_once()
    assert (await bench.get("/jobs"))["items"] == told, "nothing was left to be told"


async def test_slots_are_taken_back_before_any_are_given(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.agent.nodes = one_node(4)
    spec = {"initial": 1, "min": 1, "max": 4, "autoscale": "capacity"}
    elastic = await bench.start("elastic", workers=spec)
    await elastic.report(**training(4))
    await bench.submit("waits", workers={"initial": 2, "min": 2, "max": 2})
    monkeypatch.setattr(apply, "APPLY_FOR_S", 0.0)
    await bench.loop.run_once()
    assert (await elastic.desired()).workers == 2
    assert (await bench.job("waits"))["queue"]["position"] is None, "its sentence comes after that"
    await bench.loop.run_once()
    assert (await bench.job("waits"))["queue"]["position"] == 1


async def test_of_many_that_fall_silent_some_are_noted_in_each_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lapses, "AT_ONCE", 2)
    bench.agent.nodes = one_node(8)
    for index in range(5):
        await (await bench.start(f"job-{index}", workers=ONE)).report()
    bench.clock.advance(bench.context.settings.lease.total_seconds() + 1)
    for recovering in (2, 4, 5):
        await bench.loop.run_once()
        assert (await statuses(bench))["recovering"] == recovering
