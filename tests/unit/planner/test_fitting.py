"""What a worker holds with what a pass keeps, and what would fit where that is too much."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import SpecError
from rubato.planner.batches import Batch, recommended
from rubato.planner.choose import Plan, candidates, plan
from rubato.planner.fitting import microbatches_for
from rubato.planner.links import Link
from rubato.planner.options import memory_of
from rubato.planner.profile import Layer, Profile
from rubato.wire.codec import from_json, to_json
from rubato.wire.spec import JobSpec, parse_spec

REST, SAMPLE = 1_000, 1_000_000
MODEL = Profile(
    (
        Layer("first", ((512, 256), (512,)), 1e-4, 2e-4, 256, 512),
        Layer("last", ((64, 512), (64,)), 1e-4, 2e-4, 512, 64),
    ),
    start_s=1e-4,
    update_s=1e-9,
    state_bytes=2_000_000,
    activation_bytes=(REST, SAMPLE),
)
OLD = replace(MODEL, activation_bytes=())
LINK = Link(1e-4, 5e8)
FOUR = {"initial": 4, "min": 4, "max": 4}
V = 16


def spec_of(**fields: Any) -> JobSpec:
    batch = {"global_size": 256, "num_microbatches": V}
    return parse_spec({"name": "a", "entrypoint": "train.py:train", "workers": {"max": 8}, "batch": batch, **fields})


def local(method: str, sync_every: int, **more: Any) -> dict[str, Any]:
    return {"reproducible": False, "local_updates": {"method": method, "sync_every": sync_every, **more}}


@pytest.mark.parametrize(
    ("fields", "samples"),
    [
        ({}, 256 // 16),
        ({"batch": {"global_size": 250, "num_microbatches": 16}}, 16),
        ({"reproducible": False}, 256 // 4),
        ({"reproducible": False, "aggregation": {"algorithm": "server"}}, 256 // 4),
        ({"local_updates": {"method": "diloco", "sync_every": 4}}, 256 // 16 // 4),
        (local("streaming_diloco", 4), 256 // 4 // 4),
        (local("asynchronous", 8), 256 // 8),
        (local("synchronous", 8), 11),
        (local("synchronous", 8, backups=1), 256 // 8 // 2),
        (local("layer_separation", 8, cut="last"), 256 // 8),
        (local("layer_separation", 8, cut="last", keepers=2), 256 // 8 // 2),
    ],
)
def test_a_worker_holds_what_a_pass_keeps(fields: dict[str, Any], samples: int) -> None:
    """Of four: a microbatch, all those of a worker, a part of an update, or what a keeper is asked for."""
    spec = spec_of(workers=FOUR, **fields)
    told, without = (plan(profile, LINK, spec).by_workers[0].memory_bytes for profile in (MODEL, OLD))
    assert told - without == REST + samples * SAMPLE


def test_a_profile_of_before_says_that_it_does_not_tell() -> None:
    written = to_json(MODEL)
    assert from_json(Profile, written, strict=True) == MODEL
    del written["activation_bytes"]
    old = from_json(Profile, written, strict=True)
    assert (old, old.kept_bytes(64)) == (OLD, 0)

    def told(profile: Profile) -> list[str]:
        return [one for one in plan(profile, LINK, spec_of()).sentences if "`rubato profile` measures it anew" in one]

    (sentence,) = told(old)
    assert sentence.startswith("The profile does not tell what a pass keeps for its way back, so memory is predicted")
    assert told(MODEL) == []
    assert told(replace(OLD, state_bytes=0)) == [], "nothing of memory is predicted"


@pytest.mark.parametrize("wrong", [(1,), (1, 2, 3), (-1, 2), (1, 2**61)])
def test_a_profile_has_both_numbers_or_none(wrong: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="activation_bytes"):
        replace(MODEL, activation_bytes=wrong)


@given(
    limit=st.integers(1_000_000, 110_000_000),
    workers=st.integers(1, 8),
    fields=st.sampled_from([{}, {"local_updates": {"method": "diloco", "sync_every": 2}}]),
)
def test_the_fewest_microbatches_that_fit(limit: int, workers: int, fields: dict[str, Any]) -> None:
    """Of multiples of the spec's, which a spec may have."""
    batch = {"global_size": 768, "num_microbatches": 8}
    spec = spec_of(batch=batch, resources_per_worker={"memory": limit}, **fields)
    (strategy, *_), _ = candidates(spec, MODEL)
    most = 768 // strategy.sync_every
    multiples = [count for count in range(8, most + 1, 8) if not fields or most % count == 0]
    fitting = [count for count in multiples if memory_of(MODEL, cut_into(count, spec), strategy, workers) <= limit]
    assert microbatches_for(MODEL, spec, strategy, workers) == next(iter(fitting), None)


def cut_into(count: int, spec: JobSpec) -> JobSpec:
    return replace(spec, batch=replace(spec.batch, num_microbatches=count))


def refusal(limit: int, profile: Profile = MODEL, **fields: Any) -> str:
    with pytest.raises(SpecError, match=r"resources_per_worker\.memory: a worker would hold") as caught:
        plan(profile, LINK, spec_of(resources_per_worker={"memory": limit}, **fields))
    return str(caught.value)


def test_what_does_not_fit_says_into_how_many_microbatches_it_must_be_cut() -> None:
    limit = plan(MODEL, LINK, spec_of()).by_workers[0].memory_bytes - 12 * SAMPLE
    told = re.search(
        r"MB: give it more, or cut the batch into (\d+) microbatches \(batch.num_microbatches\)", refusal(limit)
    )
    assert told is not None
    count = int(told[1])
    finer = {"batch": {"global_size": 256, "num_microbatches": count}, "resources_per_worker": {"memory": limit}}
    assert all(one.memory_bytes <= limit for one in plan(MODEL, LINK, spec_of(**finer)).by_workers)
    coarser = {**finer, "batch": {"global_size": 256, "num_microbatches": count - V}}
    with pytest.raises(SpecError, match="give it more, or cut the batch into"):
        plan(MODEL, LINK, spec_of(**coarser))
    assert refusal(1_000_000).endswith("give it more"), "what it holds besides is too large already"
    assert refusal(7_000_000).endswith("give it more"), "more microbatches have more partial sums"


def test_where_a_pass_goes_over_all_microbatches_its_samples_are_told() -> None:
    limit = min(one.memory_bytes for one in plan(OLD, LINK, spec_of(reproducible=False)).best) + REST + 20 * SAMPLE
    told = refusal(limit, reproducible=False)
    samples = re.search(r"or have it go over fewer samples at a time, (\d+) at most and not (\d+): by more", told)
    assert samples is not None
    assert int(samples[1]) <= 20 + 4 * MODEL.parameters * 4 // SAMPLE
    assert int(samples[2]) == 256 // 8


def test_what_the_profile_does_not_tell_is_said_where_nothing_fits() -> None:
    assert "besides the program and what its passes keep, which the profile does not tell, and" in refusal(1 << 20, OLD)
    assert "besides the program, and" in refusal(1 << 20)


def compared(limit: int | None, **fields: Any) -> Plan:
    more = {} if limit is None else {"resources_per_worker": {"memory": limit}}
    return plan(MODEL, Link(1e-4, 1e8), spec_of(**more, **fields), noise_scale=1e7)


def test_a_batch_that_does_not_fit_is_cut_finer() -> None:
    free = compared(None)
    assert {one.num_microbatches for one in free.batches} == {V}
    assert re.search(r"microbatches are \d+ times as large: a worker would hold [\d.]+ MB besides", free.sentences[-1])
    own = next(one for one in free.batches if one.global_size == 256)
    limit = own.memory_bytes + 40 * SAMPLE
    tight = compared(limit)
    assert [one.global_size for one in tight.batches] == [one.global_size for one in free.batches]
    assert all(one.memory_bytes <= limit for one in tight.batches)
    by_size = {one.global_size: one for one in tight.batches}
    assert by_size[512].num_microbatches == V
    assert by_size[4096].num_microbatches > 4 * V
    assert "times as large" not in tight.sentences[-1]
    count = recommended(tight.batches).num_microbatches
    assert f"In {count} microbatches (batch.num_microbatches) it fits into " in tight.sentences[-1]
    assert count > V
    asked = {"global_size": 4096, "num_microbatches": by_size[4096].num_microbatches}
    again = plan(MODEL, LINK, spec_of(batch=asked, resources_per_worker={"memory": limit}))
    assert by_size[4096].memory_bytes in {one.memory_bytes for one in again.by_workers}


def largest(told: Plan) -> Batch:
    return max(told.batches, key=lambda one: one.global_size)


def test_a_batch_that_fits_in_no_way_is_left_out() -> None:
    """A pass over all microbatches of a worker is not smaller where there are more of them."""
    limit = compared(None, reproducible=False).recommended.memory_bytes + 40 * SAMPLE
    told = compared(limit, reproducible=False)
    assert largest(told).global_size == 512
    assert all(one.memory_bytes <= limit for one in told.batches)
    assert told.sentences[-1].startswith("From 1024 samples on batches do not fit into resources_per_worker.memory")


def test_without_passes_no_batch_has_a_memory() -> None:
    told = plan(OLD, LINK, spec_of(resources_per_worker={"memory": 50_000_000}), noise_scale=1e7)
    assert {one.memory_bytes for one in told.batches} == {0}
    assert "what their activations take is not known" in told.sentences[-1]
