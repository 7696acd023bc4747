"""What is recommended, and what is said against the rest."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.errors import SpecError
from rubato.planner.choose import Plan, plan
from rubato.planner.counts import MOST, doubled, some_of, useful_counts
from rubato.planner.links import Link
from rubato.planner.profile import Layer
from tests.unit.planner.two_layers import FAST, MODEL, SLOW, planned, spec_of


def test_separated_layers_are_planned_where_the_profile_tells_what_goes_over_the_cut() -> None:
    separated: dict[str, Any] = {
        "reproducible": False,
        "batch": {"global_size": 2048, "num_microbatches": 16},
        "local_updates": {"method": "layer_separation", "sync_every": 8, "cut": "last"},
    }
    old = planned(FAST, **separated)
    (refused,) = [one for one in old.refused if one.name == "layer_separation"]
    assert refused.reason.endswith("`rubato profile` measures it anew")
    assert old.sentences[0].startswith("The spec has layer_separation, which is not predicted: the profile does not ")
    first, last = (replace(one, inputs=512, outputs=512) for one in MODEL.layers)
    wide = replace(MODEL, layers=(first, replace(last, forward_s=1e-6, backward_s=2e-6)))
    found = planned(FAST, wide, **separated)
    assert {one.name for one in found.best} == {"layer_separation"}
    assert "the layers behind the cut on some of them" in found.sentences[0]
    assert found.by_workers[0].sent_bytes == 0
    assert all(one.sent_bytes >= 4 * 2048 * 1024 for one in found.by_workers[1:]), "what the keeper tells"
    assert not any("keepers" in one for one in found.sentences)
    slow_back = replace(MODEL, layers=(first, replace(last, forward_s=1e-3, backward_s=2e-3)))
    separated["workers"] = {"max": 8}
    (advice,) = [one for one in planned(FAST, slow_back, **separated).sentences if "keepers" in one]
    told = re.fullmatch(r"8 workers, (\d) of them with the layers behind the cut .* would be .+ fast.", advice)
    assert told is not None
    separated["local_updates"]["keepers"] = int(told[1])
    assert int(told[1]) > 1
    assert not any("keepers" in one for one in planned(FAST, slow_back, **separated).sentences)
    del separated["local_updates"]["keepers"]


@pytest.mark.parametrize(
    ("cut", "layers", "message"),
    [
        ("head", ("first", "last"), "no module 'head' with parameters; it has {1}, {0}: take the one with most"),
        ("body.2", ("body.0", "body.1"), "no module 'body.2' with parameters; it has {1}, {0}: take the one"),
        ("body", ("body.0", "body.1"), "no module outside of 'body' has parameters: take a part of it"),
        ("body", ("model.body.0", "model.body.1"), "no module outside of 'body' has parameters: take a part of it"),
    ],
)
def test_a_cut_that_separates_nothing_is_an_error(cut: str, layers: tuple[str, str], message: str) -> None:
    named = replace(
        MODEL, layers=tuple(replace(one, name=name) for one, name in zip(MODEL.layers, layers, strict=True))
    )
    told = message.format(*(f"{one.name} \\({one.parameters:,} parameters\\)" for one in named.layers))
    with pytest.raises(SpecError, match=f"local_updates.cut: .*{told}"):
        planned(FAST, named, reproducible=False, local_updates={"method": "layer_separation", "cut": cut})


def test_what_a_delay_hides_is_told() -> None:
    def told(link: Link, fewest: int = 8) -> str:
        local = {"method": "streaming_diloco", "sync_every": 8, "fragments": 2}
        batch, workers = {"global_size": 512, "num_microbatches": 8}, {"initial": 8, "min": fewest, "max": 8}
        found = planned(link, reproducible=False, batch=batch, local_updates=local, workers=workers)
        (sentence,) = [one for one in found.sentences if "local_updates.delay" in one]
        return sentence

    slow = re.fullmatch(
        r"The exchange of a fragment takes .+ ms, and an update .+ ms: local_updates.delay: (\d) would make a step "
        r"(.+) times as fast as none.",
        told(Link(1e-4, 1e7)),
    )
    assert slow is not None
    assert 1 <= int(slow[1]) <= 7
    assert float(slow[2]) > 1
    assert told(Link(0.0, 1e15)).endswith("would save next to nothing (local_updates.delay).")
    of_several = told(Link(1.0, 1e5), fewest=1)
    assert re.match(r"The exchange of a fragment takes .+ s, and an update .+ ms with [2-8] workers: ", of_several)


def test_on_a_fast_link_many_workers_pay_and_on_a_slow_one_none_does() -> None:
    fast, slow = planned(FAST), planned(SLOW)
    assert (fast.recommended.workers, slow.recommended.workers) == (8, 1)
    assert fast.recommended.speedup > 5
    assert "8 workers with whole gradients" in fast.sentences[0]
    assert slow.sentences[0].startswith("One worker: ")
    assert any("do not pay on it" in one for one in slow.sentences)


def test_what_changes_what_is_learned_is_told_and_not_chosen() -> None:
    slow = planned(Link(1e-4, 2e7), reproducible=False)
    assert slow.recommended.is_whole
    (told,) = [one for one in slow.sentences if "leaves out a part of each gradient" in one]
    assert told.startswith(f"{slow.best[0].name} with ")
    assert not slow.best[0].is_whole
    assert not any("leaves out" in one for one in planned(FAST, reproducible=False).sentences)


def test_what_the_spec_has_chosen_is_planned_for() -> None:
    link = Link(1e-3, 1e7)
    chosen = planned(link, reproducible=False, aggregation={"compression": {"method": "topk", "density": 0.001}})
    assert {option.name for option in chosen.by_workers} == {"topk"}
    assert chosen.recommended.name == "topk"
    assert "gradients as topk" in chosen.sentences[0]


def test_where_the_specs_strategy_is_not_predicted_another_one_stands_for_it_and_it_is_said() -> None:
    for method, more in (("threshold", {"threshold": 0.1}), ("hierarchical_topk", {"density": 0.01})):
        answer = planned(FAST, reproducible=False, aggregation={"compression": {"method": method, **more}})
        (reason,) = [one.reason for one in answer.refused if one.name == method]
        assert answer.sentences[0] == (
            f"The spec has {method}, which is not predicted: {reason}. What follows is for auto."
        )
        assert "8 workers with whole gradients" in answer.sentences[1]


def test_more_servers_are_advised_where_few_bind() -> None:
    def told(servers: int, link: Link) -> list[str]:
        answer = planned(link, reproducible=False, aggregation={"algorithm": "server", "servers": servers})
        advice = [one for one in answer.sentences if "(aggregation.servers)" in one]
        assert {one.name for one in answer.by_workers} == {"auto" if advice else "server"}
        return advice

    narrow = Link(1e-6, 1e9)
    (advice,) = told(1, narrow)
    count = re.fullmatch(
        r"8 workers, (\d) of them adding up for all .* would be [\d.]+ times as fast as what the spec has.", advice
    )
    assert count is not None
    assert int(count[1]) > 1
    assert not told(int(count[1]), narrow)
    assert not told(1, Link(1e-6, 1e15))


def test_a_sketch_is_planned_as_the_spec_has_it() -> None:
    def sent(algorithm: str = "auto", **sketch: Any) -> float:
        aggregation = {"algorithm": algorithm, "compression": {"method": "sketch", **sketch}}
        return planned(FAST, reproducible=False, aggregation=aggregation).by_workers[-1].sent_bytes

    dense = 2 * 4 * (512 + 2048) * 7 / 8
    compressed = 512 * 256 + 2048 * 512
    chosen = round(0.001 * compressed)
    assert sent("ring") == pytest.approx(2 * 7 / 8 * 4 * (compressed / 16 + (16 + 4) * chosen) + dense, rel=0.01)
    large = compressed / 2 + 4 * 0.05 * compressed
    assert sent("ring", density=0.05) == pytest.approx(2 * 7 / 8 * 4 * large + dense, rel=0.01)
    assert sent(columns=100_000) == pytest.approx(3 * 4 * (5 * 100_000 + 4 * chosen) + dense, rel=0.01)


def test_the_order_of_the_sum_costs_vectors_where_shares_are_no_whole_parts_of_the_tree() -> None:
    """Of 16 microbatches a third is 0-5, 6-10, 11-15: the second worker tells three nodes of the tree."""
    three, four = (
        planned(FAST, workers={"initial": one, "min": one, "max": one}).by_workers[0].sent_bytes for one in (3, 4)
    )
    vector = 4 * MODEL.parameters
    assert three == pytest.approx((3 + 1) * vector * 2 / 3, rel=0.01)
    assert four == pytest.approx((1 + 1) * vector * 3 / 4, rel=0.01)


def test_a_batch_is_recommended_where_the_noise_is_known() -> None:
    """Far below the noise scale the samples of a larger batch are worth as much, and it is exchanged as seldom."""
    noisy = plan(MODEL, Link(1e-4, 5e8), spec_of(), noise_scale=1e7)
    assert [one.global_size for one in noisy.batches] == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    mine = next(one for one in noisy.batches if one.global_size == 256)
    assert (mine.worth, mine.progress) == (1.0, 1.0)
    assert all(
        one.progress == pytest.approx(one.worth * one.samples_per_s / mine.samples_per_s) for one in noisy.batches
    )
    assert re.search(
        r"At a noise scale of 10,000,000 samples a batch of \d+ with 8 workers would learn", noisy.sentences[-1]
    )
    assert re.search(r"microbatches are \d+ times as large, and what their activations take is", noisy.sentences[-1])
    quiet = plan(MODEL, Link(1e-4, 5e8), spec_of(), noise_scale=0.1)
    assert quiet.recommended_batch is not None
    times = f"{quiet.recommended_batch.progress:.2g}"
    assert quiet.sentences[-1].endswith(f"learns {times} times as fast as one of 256, from fewer samples.")
    unequal = spec_of(reproducible=False, batch={"global_size": 256, "num_microbatches": 24})
    assert [one.global_size for one in plan(MODEL, FAST, unequal, noise_scale=0.1).batches][:4] == [32, 64, 128, 256]
    assert planned(FAST).batches == ()
    for answer in (noisy, quiet):
        (told,) = re.findall(r"samples a batch of (\d+)", answer.sentences[-1])
        assert answer.recommended_batch is not None
        assert answer.recommended_batch in answer.batches
        assert answer.recommended_batch.global_size == int(told)
    assert planned(FAST).recommended_batch is None


@pytest.mark.parametrize(
    ("fields", "of_update"), [({}, 256), ({"local_updates": {"method": "diloco", "sync_every": 4}}, 256 / 64)]
)
def test_what_a_sample_is_worth_goes_by_an_update(fields: dict[str, Any], of_update: float) -> None:
    """With local updates a step is many: each replica learns from 1/(V H) of its samples at a time."""
    found = plan(MODEL, FAST, spec_of(**fields), noise_scale=100.0).batches
    base, double = (next(one for one in found if one.global_size == size) for size in (256, 512))
    assert base.worth == 1.0
    assert double.worth == pytest.approx((100 + of_update) / (100 + 2 * of_update))


def test_an_asynchronous_update_learns_from_a_ticket() -> None:
    led: dict[str, Any] = {"reproducible": False, "local_updates": {"method": "asynchronous", "sync_every": 8}}
    found = plan(MODEL, FAST, spec_of(**led), noise_scale=100.0)
    double = next(one for one in found.batches if one.global_size == 512)
    assert double.worth == pytest.approx((100 + 32) / (100 + 64))
    assert not any("lr_scaling" in one for one in found.sentences), "which a spec with local updates may not have"


def test_no_batch_is_compared_that_no_spec_may_have() -> None:
    huge = {"global_size": 100_000_000, "num_microbatches": 16}
    found = plan(MODEL, FAST, spec_of(batch=huge), noise_scale=1e12)
    assert max(one.global_size for one in found.batches) == 800_000_000


def test_where_one_worker_leads_any_number_of_others_is_useful() -> None:
    led = {"method": "asynchronous", "sync_every": 16}
    spec = spec_of(reproducible=False, local_updates=led)
    assert useful_counts(spec) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert useful_counts(spec_of(batch={"global_size": 256, "num_microbatches": 8})) == [1, 2, 3, 4, 8]


def test_what_the_spec_does_not_ask_for_is_named_with_the_way_to_it() -> None:
    reasons = {one.name: one.reason for one in planned(FAST, reproducible=False).refused}
    assert {"local_sgd", "diloco", "asynchronous", "layer_separation"} <= reasons.keys()
    assert "say it in the spec, as local_updates" in reasons["diloco"]
    assert len(planned(FAST, reproducible=False).best) == 14, "one of each that was considered"


@pytest.mark.parametrize("method", ["local_sgd", "diloco", "streaming_diloco", "synchronous", "asynchronous"])
def test_with_local_updates_the_method_of_the_spec_is_predicted_and_nothing_else(method: str) -> None:
    batch = {"global_size": 2048, "num_microbatches": 16}
    local = {"method": method, "sync_every": 8}
    answer = planned(FAST, reproducible=False, batch=batch, local_updates=local)
    assert {one.name for one in (*answer.best, *answer.by_workers)} == {method}
    assert {"topk", "threshold", "ring"} <= {one.name for one in answer.refused}


def test_equal_bits_allow_one_strategy_and_the_rest_has_a_reason() -> None:
    answer = planned(FAST)
    assert [option.name for option in answer.best] == ["auto"]
    reasons = {one.name: one.reason for one in answer.refused}
    assert "reproducible: true" in reasons["topk"]
    assert "depends on the training" in reasons["threshold"]
    assert "topk" not in {one.name for one in planned(FAST, reproducible=False).refused}


def test_memory_is_told_where_the_profile_knows_it() -> None:
    whole, kept = (
        planned(FAST, reproducible=False, aggregation={"compression": {"method": method}}).by_workers[-1]
        for method in ("fp16", "topk")
    )
    assert kept.memory_bytes - whole.memory_bytes == 2 * 4 * MODEL.parameters
    assert planned(FAST, replace(MODEL, state_bytes=0)).recommended.memory_bytes == 0


def test_what_is_kept_is_told_by_how_often() -> None:
    def held(**compression: Any) -> int:
        aggregation = {"compression": compression}
        return planned(FAST, reproducible=False, aggregation=aggregation).by_workers[-1].memory_bytes

    vector = 4 * MODEL.parameters
    assert held(method="onebit") - held(method="fp16") == 4 * vector, "two parts, own and pending"
    assert held(method="topk", momentum=0.9) - held(method="topk") == 2 * vector


def test_what_does_not_fit_into_memory_is_refused() -> None:
    pinned: dict[str, Any] = {"reproducible": False, "workers": {"initial": 4, "min": 4, "max": 4}}

    def asked(memory: int, **fields: Any) -> Plan:
        return planned(FAST, resources_per_worker={"memory": memory}, **pinned, **fields)

    plain = planned(FAST, **pinned)
    by_name = {one.name: one.memory_bytes for one in plain.best}
    between = (by_name["auto"] + by_name["onebit"]) // 2
    answer = asked(between, aggregation={"compression": {"method": "onebit"}})
    assert "onebit" not in {one.name for one in answer.best}
    assert all(one.memory_bytes <= between for one in (*answer.best, *answer.by_workers))
    (reason,) = [one.reason for one in answer.refused if one.name == "onebit"]
    assert "resources_per_worker.memory is" in reason
    assert answer.sentences[0] == f"The spec has onebit, which is not predicted: {reason}. What follows is for auto."
    with pytest.raises(SpecError, match=r"resources_per_worker.memory: a worker would hold [\d.]+ MB at least"):
        asked(1 << 20)
    on_gpu = replace(MODEL, device="cuda")
    few: dict[str, Any] = {"reproducible": False, "resources_per_worker": {"memory": 1 << 20}}
    assert planned(FAST, on_gpu, **few).recommended.workers > 1, "a GPU's memory is another"


def test_numbers_of_workers_that_do_not_fit_are_named() -> None:
    """A server has two vectors for each of the others."""
    led: dict[str, Any] = {"reproducible": False, "local_updates": {"method": "asynchronous", "sync_every": 16}}
    every = planned(FAST, **led).by_workers
    limit = (every[4].memory_bytes + every[5].memory_bytes) // 2
    answer = planned(FAST, **led, resources_per_worker={"memory": limit})
    assert [one.workers for one in answer.by_workers] == [1, 2, 3, 4, 5]
    assert any("With 6, 7, 8 workers asynchronous does not fit" in one for one in answer.sentences)


def test_a_method_that_was_not_measured_does_not_cost_nothing() -> None:
    known = replace(MODEL, codec_s={"fp16": 1e-9})
    answer = planned(FAST, known, reproducible=False, aggregation={"compression": {"method": "topk"}})
    reasons = {one.name: one.reason for one in answer.refused}
    assert reasons["topk"].endswith("`rubato profile` measures it anew")
    assert "fp16" in {one.name for one in answer.best}
    assert answer.sentences[0].startswith("The spec has topk, which is not predicted")


def test_a_worker_more_is_compared_with_one_that_compresses_too() -> None:
    """With a codec of 0.3 of a pass two workers bring 1.25 / 0.77 of what one does, and not 1.25 / 1."""
    slow_codec = replace(MODEL, codec_s=dict.fromkeys(MODEL.codec_s, 4e-8))
    sketch = {"compression": {"method": "sketch"}}
    answer = planned(FAST, slow_codec, reproducible=False, aggregation=sketch)
    one, two, *_ = answer.by_workers
    assert one.codec_s == two.codec_s == pytest.approx(4e-8 * MODEL.compressed)
    assert one.speedup == pytest.approx(1 / 1.3, rel=0.05)
    assert answer.recommended.workers == 2


def test_of_one_worker_only_strategies_that_compute_the_same_are_one() -> None:
    far = planned(Link(1.0, 1e3), reproducible=False)
    alone = [one for one in far.best if one.workers == 1]
    assert [one.name for one in alone if one.is_whole] == ["auto"]
    assert {one.name for one in alone} == {"auto", *MODEL.codec_s}
    slow_sketch = replace(MODEL, codec_s={**MODEL.codec_s, "sketch": 1e-6})
    sketch = {"compression": {"method": "sketch"}}
    told = planned(Link(1.0, 1e3), slow_sketch, reproducible=False, aggregation=sketch)
    assert told.recommended.workers == 1
    assert not any("leaves out" in one for one in told.sentences), "nothing is to be gained from others that compress"


def test_times_of_other_settings_are_told() -> None:
    measured = replace(MODEL, codec_settings={"density": 0.001, "rank": 4, "rows": 5, "columns": 0})

    def told(**fields: Any) -> list[str]:
        return [one for one in planned(FAST, measured, **fields).sentences if "was measured with" in one]

    dense = {"compression": {"method": "topk", "density": 0.25}}
    (one,) = told(reproducible=False, aggregation=dense)
    assert one.startswith("What compression takes was measured with density 0.001, not")
    assert not told(reproducible=False)


def test_what_checkpoints_settle_is_told() -> None:
    link = Link(1e-4, 1e6)
    topk: dict[str, Any] = {"reproducible": False, "aggregation": {"compression": {"method": "topk"}}}
    pinned: dict[str, Any] = {"workers": {"initial": 4, "min": 4, "max": 4}}

    def told(**fields: Any) -> list[str]:
        return [one for one in planned(link, **topk, **pinned, **fields).sentences if "checkpoint.every" in one]

    (one,) = told()
    assert re.match(r"Each checkpoint has all workers tell each other what they keep, whole: 7.1 s of every 30 s", one)
    assert not told(checkpoint={"every": "10m"})
    with_more = planned(link, **topk, **pinned).by_workers[0]
    without = planned(link, **topk, **pinned, checkpoint={"every": "10m"}).by_workers[0]
    assert with_more.step_s > 1.2 * without.step_s


def test_what_the_lemmas_say_is_told() -> None:
    fast = planned(Link(1e-6, 1e9))
    told = next(one for one in fast.sentences if "Amdahl" in one)
    found = re.search(r"So (\d+)% of their time is gained; at least half of it with up to (\d+) workers", told)
    assert found is not None
    assert int(found[1]) == round(100 * fast.recommended.speedup / fast.recommended.workers)
    assert int(found[2]) >= fast.recommended.workers
    assert not any("Amdahl" in one for one in planned(SLOW).sentences), "of one worker"
    served = planned(Link(1e-6, 1e9), reproducible=False, aggregation={"algorithm": "server"})
    assert any(
        re.match(r"\d+ servers.* would take no longer to add up than 8 workers to comp", one)
        for one in served.sentences
    )


def test_a_plan_for_thousands_of_workers_is_made_soon() -> None:
    """In a thread of the service that nobody can cancel."""
    batch = {"global_size": 1 << 20, "num_microbatches": 1 << 16}
    layers = tuple(Layer(str(number), ((64, 64), (64,)), 1e-6, 1e-6) for number in range(500))
    deep = replace(MODEL, layers=layers, modules={"head": (64, 64)})
    for fields in (
        {},
        {"reproducible": False},
        {"reproducible": False, "aggregation": {"algorithm": "server", "servers": 1}},
        {"reproducible": False, "aggregation": {"compression": {"method": "topk"}}},
        {"reproducible": False, "local_updates": {"method": "asynchronous", "sync_every": 16}},
    ):
        began = time.process_time()
        answer = planned(FAST, deep, workers={"max": 4096}, batch=batch, **fields)
        assert time.process_time() - began < 5
        assert len(answer.by_workers) <= MOST
        assert (answer.by_workers[0].workers, answer.by_workers[-1].workers) == (1, 4096)
        (told,) = [one for one in answer.sentences if "were looked at" in one]
        assert f"{len(answer.by_workers)} were looked at" in told
    assert not any("were looked at" in one for one in planned(FAST).sentences)


@given(st.lists(st.integers(1, 4096), min_size=1, unique=True), st.integers(2, 40))
def test_of_many_counts_some_are_looked_at(counts: list[int], most: int) -> None:
    counts.sort()
    found = some_of(counts, most)
    assert len(found) <= most
    assert set(found) <= set(counts)
    assert (found[0], found[-1]) == (counts[0], counts[-1])
    assert found == counts or len(counts) > most


@given(st.integers(0, 300))
def test_counts_are_doubled_up_to_the_most(most: int) -> None:
    found = doubled(most)
    assert all(count & (count - 1) == 0 or count == most for count in found)
    assert (found[0], found[-1]) == (1, most) if most else not found


@given(
    count=st.integers(1, 64),
    low=st.integers(1, 8),
    more=st.integers(0, 16),
)
def test_a_useful_count_has_less_to_do_than_any_smaller_one(count: int, low: int, more: int) -> None:
    count = max(count, low + more)
    batch, workers = {"global_size": 256, "num_microbatches": count}, {"initial": low, "min": low, "max": low + more}
    found = useful_counts(spec_of(batch=batch, workers=workers))
    assert found[0] == low
    shares = [ceil(count / workers_) for workers_ in found]
    assert shares == sorted(set(shares), reverse=True)
    assert shares[-1] == ceil(count / (low + more))


@given(latency=st.floats(0, 0.1), bandwidth=st.floats(1e4, 1e12), reproducible=st.booleans())
def test_a_plan_holds_together(latency: float, bandwidth: float, reproducible: bool) -> None:
    answer = planned(Link(latency, bandwidth), reproducible=reproducible)
    speeds = [option.samples_per_s for option in answer.best]
    assert speeds == sorted(speeds, reverse=True)
    assert answer.recommended in answer.by_workers
    assert answer.by_workers[0].speedup == pytest.approx(1.0)
    assert set(answer.best) | set(answer.by_workers) <= set(answer.options)
    assert answer.by_workers == tuple(one for one in answer.options if one.name == answer.recommended.name)
    counts = [one.workers for one in answer.by_workers]
    for name in {one.name for one in answer.options}:
        mine = [one for one in answer.options if one.name == name]
        assert [one.workers for one in mine] == counts
        assert name in {one.name for one in answer.best} or (mine[0] == max(mine, key=lambda one: one.samples_per_s))
    for option in answer.options:
        assert option.step_s == pytest.approx(option.compute_s + option.exposed_s + option.codec_s + option.update_s)
        assert option.speedup <= option.workers * 1.01
