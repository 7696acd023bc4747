"""Jobs that scaling restarts (`backend: ray_train`): what people are told, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rubato.wire.cluster import Outcome, Result

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio
BACKEND = {
    "backend": "ray_train",
    "recipe": None,
    "entrypoint": "train.py:train_func",
    "workers": {"initial": 1, "max": 4},
}


async def test_who_scales_is_told_of_the_restart_and_the_step_it_goes_back_to(bench: Bench) -> None:
    controller = await bench.start(**BACKEND)
    await controller.report(step=3)
    shown = await bench.post("/jobs/digits/scale", 202, {"workers": 2})
    assert shown["scaling_restarts"] is True
    assert shown["message"] == "That restarts the job from its beginning: it has reported no checkpoint yet."
    saved = controller.event("checkpoint.committed", step=3, checkpoint_id="1-3", bytes=1, files=[])
    await controller.report(step=4, events=(saved,))
    told = "That restarts the job from its newest checkpoint (step 3): steps since then are computed again."
    assert (await bench.post("/jobs/digits/scale", 202, {"workers": 3}))["message"] == told
    events = (await bench.get("/jobs/digits/events"))["items"]
    asked = [event["message"] for event in events if event["kind"] == "job.scale_requested"]
    assert asked[-1] == f"admin asked for 3 workers instead of 2. {told}"


async def test_nobody_else_is(bench: Bench) -> None:
    controller = await bench.start()
    await controller.report(step=3)
    shown = await bench.post("/jobs/digits/scale", 202, {"workers": 2})
    assert shown["scaling_restarts"] is False
    assert "restarts" not in shown["message"]


async def test_its_checkpoints_are_ray_trains(bench: Bench) -> None:
    controller = await bench.start(**BACKEND)
    saved = controller.event("checkpoint.committed", step=3, checkpoint_id="1-3", bytes=1, files=[])
    await controller.report(step=3, events=(saved,))
    (found,) = (await bench.get("/jobs/digits/checkpoints"))["items"]
    path = f"/api/v1/checkpoints/{found['id']}"
    refused = await bench.client.patch(path, json={"pinned": True})
    assert refused.status_code == 409
    assert "cannot be pinned: Ray Train made it" in refused.json()["detail"]
    assert "the program alone decides" in (await bench.post("/jobs/digits/checkpoint", 409))["detail"]
    await controller.report(outcome=Outcome("succeeded", Result(3, "")))
    refused = await bench.client.delete(path)
    assert refused.status_code == 409
    assert "cannot be deleted by hand: Ray Train made it" in refused.json()["detail"]
    assert (await bench.job("digits"))["result"] == {"step": 3, "digest": ""}
    clone = await bench.post("/jobs/digits/clone", 422, {"from_checkpoint": found["id"], "overrides": {"name": "b"}})
    assert [one["path"] for one in clone["errors"]] == ["checkpoint.resume_from"]
    spec = {"name": "c", "entrypoint": "train.py", "checkpoint": {"resume_from": found["id"]}}
    other = await bench.post("/jobs", 422, spec)
    assert "only its own job goes on from" in other["errors"][0]["message"]
