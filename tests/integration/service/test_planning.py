"""Plans over REST: what the command line predicts, and what is refused with where it is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rubato.planner.choose import plan
from rubato.planner.links import Link
from rubato.planner.measured import link_of
from rubato.planner.profile import MAX_LAYERS, Layer, Profile
from rubato.wire.codec import to_json
from rubato.wire.spec import parse_spec
from tests.simulated_controller import metric

if TYPE_CHECKING:
    from tests.integration.service.conftest import Bench

pytestmark = pytest.mark.anyio

PROFILE = Profile((Layer("first", ((64, 32), (64,)), 1e-3, 2e-3), Layer("last", ((8, 64),), 1e-4, 2e-4)))
LINK = Link(1e-4, 1e8)
SPEC = {"name": "digits", "recipe": "image-classifier"}
BODY = {"spec": SPEC, "profile": to_json(PROFILE), "link": {"latency_s": LINK.latency_s, "bytes_per_s": 1e8}}


async def test_it_is_the_plan_of_the_command_line(bench: Bench) -> None:
    answer = await bench.post("/plan", 200, BODY)
    assert answer == to_json(plan(PROFILE, LINK, parse_spec(SPEC)))
    assert answer["recommended"]["workers"] > 1
    assert (await bench.get("/jobs"))["items"] == []


@pytest.mark.parametrize(
    ("changed", "path", "sentence"),
    [
        ({"profile": {}}, "profile.layers", ""),
        ({"profile": {"layers": []}}, "profile.layers", f"must be 1 to {MAX_LAYERS}, got 0"),
        ({"link": {"latency_s": 0, "bytes_per_s": 0}}, "link.bytes_per_s", "must lie in 1..1e+18, got 0"),
        ({"link": {"latency_s": -1, "bytes_per_s": 1e8}}, "link.latency_s", "must lie in 0..1e+06"),
        ({"noise_scale": 0}, "noise_scale", "must lie above 0"),
        ({"noise_scale": "800"}, "noise_scale", "must be a number of samples"),
        ({"noisescale": 800}, "noisescale", "unknown field; did you mean 'noise_scale'?"),
        ({"seed": 1}, "seed", "unknown field; known fields: spec, profile, link, links_of, noise_scale"),
        ({"link": {"latency_s": 0, "bytes_per_s": 1, "gbit": 1}}, "link.gbit", "unknown field"),
        ({"spec": {"name": "a"}}, "entrypoint", "give exactly one of"),
        (
            {"spec": {"name": "a", "entrypoint": "train.py:f", "backend": "ray_train", "package": "0" * 64}},
            "backend",
            "Ray Train decides itself",
        ),
    ],
)
async def test_what_is_wrong_says_where(bench: Bench, changed: dict[str, Any], path: str, sentence: str) -> None:
    refused = await bench.post("/plan", 422, {**BODY, **changed})
    told = [error["message"] for error in refused["errors"] if error["path"] == path]
    assert any(sentence in one for one in told), refused


async def test_with_a_noise_scale_batches_are_compared(bench: Bench) -> None:
    answer = await bench.post("/plan", 200, {**BODY, "noise_scale": 800})
    assert answer == to_json(plan(PROFILE, LINK, parse_spec(SPEC), noise_scale=800.0))
    assert "At a noise scale of 800 samples" in answer["sentences"][-1]
    assert len(answer["batches"]) > 3
    assert answer["recommended_batch"] in answer["batches"]
    assert (await bench.post("/plan", 200, BODY))["recommended_batch"] is None


async def test_every_strategy_is_told_with_every_number_of_workers(bench: Bench) -> None:
    answer = await bench.post("/plan", 200, {**BODY, "spec": {**SPEC, "reproducible": False}})
    told = [(one["name"], one["workers"]) for one in answer["options"]]
    assert len(told) == len(set(told))
    names, counts = ({one[part] for one in told} for part in (0, 1))
    assert len(told) == len(names) * len(counts)
    assert {"auto", "ring", "tree", "server"} <= names
    assert {1, 8} <= counts


async def test_what_no_worker_can_hold_is_refused(bench: Bench) -> None:
    small = {**SPEC, "resources_per_worker": {"memory": "1KiB"}}
    body = {**BODY, "spec": small, "profile": {**BODY["profile"], "state_bytes": 100_000}}
    (error,) = (await bench.post("/plan", 422, body))["errors"]
    assert error["path"] == "resources_per_worker.memory"
    assert "a worker would hold" in error["message"]


async def test_batches_beyond_what_a_spec_may_have_are_left_out(bench: Bench) -> None:
    spec = {**SPEC, "batch": {"global_size": 100_000_000, "num_microbatches": 16}}
    answer = await bench.post("/plan", 200, {**BODY, "spec": spec, "noise_scale": 1e9})
    assert max(one["global_size"] for one in answer["batches"]) == 800_000_000


async def test_links_are_those_that_a_job_has_measured(bench: Bench) -> None:
    controller = await bench.start("links", recipe="measure-links")
    body = {"spec": SPEC, "profile": BODY["profile"], "links_of": "links"}
    refused = await bench.post("/plan", 422, body)
    assert [(error["path"], "measured no links" in error["message"]) for error in refused["errors"]] == [
        ("links_of", True)
    ]
    values = {
        "link_workers": 4.0, "link_latency_s": 2e-4, "link_bytes_per_s": 5e7, "link_large_bytes": 1e6,
        "link_tree_small_s": 1e-3, "link_tree_large_s": 0.2,
    }  # fmt: skip
    rows = [metric(step, **{**values, "link_latency_s": step * 1e-4}) for step in (1, 2, 3)]
    await controller.report(metrics=tuple(rows), step=3)
    answer = await bench.post("/plan", 200, body)
    assert answer == to_json(plan(PROFILE, link_of([values]), parse_spec(SPEC)))
    assert answer != await bench.post("/plan", 200, BODY)
    assert "not_found" in str(await bench.post("/plan", 404, {**body, "links_of": "nobody"}))
    assert (await bench.post("/plan", 422, {**body, "links_of": 7}))["errors"][0]["path"] == "links_of"


async def test_all_three_parts_are_needed(bench: Bench) -> None:
    assert "spec, profile, link" in (await bench.post("/plan", 422, {"spec": SPEC}))["detail"]
    assert "spec, profile, link" in (await bench.post("/plan", 422, []))["detail"]
    assert "spec, profile, link" in (await bench.post("/plan", 422, {**BODY, "links_of": "links"}))["detail"]
