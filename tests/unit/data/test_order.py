from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.data.order import ORDER, BatchPlan, Permutation, check_order
from rubato.errors import CheckpointError


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    global_size = draw(st.integers(1, 40))
    return BatchPlan(
        num_samples=draw(st.integers(1, 120)),
        global_size=global_size,
        num_microbatches=draw(st.integers(1, global_size)),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@given(plans(), st.integers(0, 3))
def test_an_epoch_covers_every_sample_exactly_once(plan: BatchPlan, epoch: int) -> None:
    seen: Counter[int] = Counter()
    for step in range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch):
        assert plan.epoch_of(step) == epoch
        for v in range(plan.num_microbatches):
            seen.update(plan.samples(step, v))
    assert seen == Counter(range(plan.num_samples))


@given(plans(), st.integers(0, 200))
def test_sizes_are_even_dense_and_within_the_nominal_size(plan: BatchPlan, step: int) -> None:
    sizes = plan.sizes(step)
    assert len(sizes) == plan.num_microbatches
    assert sum(sizes) == plan.batch_size(step)
    filled = [size for size in sizes if size]
    assert sizes[: len(filled)] == tuple(filled)
    assert len(filled) == -(-plan.batch_size(step) // plan.nominal)
    assert max(filled) - min(filled) <= 1
    assert max(filled) <= plan.nominal
    assert [len(plan.samples(step, v)) for v in range(plan.num_microbatches)] == list(sizes)


@given(plans(), st.integers(0, 50))
def test_only_the_last_step_of_an_epoch_is_smaller(plan: BatchPlan, step: int) -> None:
    is_last = (step + 1) % plan.steps_per_epoch == 0
    assert plan.batch_size(step) == plan.global_size or is_last
    assert plan.batch_size(step) >= 1


@given(plans(), st.randoms(use_true_random=False))
def test_the_order_of_calls_does_not_matter(plan: BatchPlan, shuffler: random.Random) -> None:
    calls = [(step, v) for step in range(3 * plan.steps_per_epoch) for v in range(plan.num_microbatches)][:80]
    straight = {call: plan.samples(*call) for call in calls}
    shuffler.shuffle(calls)
    assert {call: plan.samples(*call) for call in calls} == straight


def test_the_returned_list_is_the_callers_own() -> None:
    plan = BatchPlan(num_samples=10, global_size=5, num_microbatches=2, seed=1)
    plan.samples(0, 0).clear()
    assert len(plan.samples(0, 0)) == 3


@given(st.integers(1, 3000), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_an_order_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed, epoch)
    assert sorted(order) == list(range(size)) == list(range(len(order)))


@given(st.integers(10**9, 10**15), st.data())
def test_no_two_positions_of_a_huge_order_meet(size: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=50, unique=True))
    order = Permutation(size, 1, 2)
    samples = [order[position] for position in positions]
    assert len(set(samples)) == len(samples)
    assert all(0 <= sample < size for sample in samples)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(Permutation(50, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    assert tuple(range(50)) not in orders


def test_orders_look_drawn_at_random() -> None:
    """Counts whose deviation from chance is known: 5 standard deviations would be an accident once in a million."""
    size, epochs = 40, 500
    orders = [list(Permutation(size, 3, epoch)) for epoch in range(epochs)]
    ascents = sum(left < right for order in orders for left, right in itertools.pairwise(order))
    expected, deviation = epochs * (size - 1) / 2, math.sqrt(epochs * (size + 1) / 12)
    assert abs(ascents - expected) < 5 * deviation
    fixed = sum(position == sample for order in orders for position, sample in enumerate(order))
    assert abs(fixed - epochs) < 5 * math.sqrt(epochs)
    for position in (0, 1, size // 2, size - 1):
        counts = Counter(order[position] for order in orders)
        chi2 = sum((counts[sample] - epochs / size) ** 2 / (epochs / size) for sample in range(size))
        assert abs(chi2 - (size - 1)) < 5 * math.sqrt(2 * (size - 1))


def test_the_order_is_the_one_that_checkpoints_name() -> None:
    """Whoever changes the order changes its name."""
    assert ORDER == "feistel-8"
    assert list(Permutation(12, 7, 3)) == [10, 8, 0, 4, 6, 7, 3, 11, 9, 2, 5, 1]


def test_the_order_neither_sees_nor_moves_the_global_generators() -> None:
    before = torch.get_rng_state()
    first = list(Permutation(20, 7, 0))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert list(Permutation(20, 7, 0)) == first


def test_a_position_out_of_range_is_refused() -> None:
    for position in (-1, 5):
        with pytest.raises(IndexError, match=rf"position {position} is not in 0\.\.4"):
            Permutation(5, 0, 0)[position]


@pytest.mark.parametrize(("versions", "named"), [({}, "torch.randperm"), ({"order": "feistel-9"}, "feistel-9")])
def test_a_checkpoint_with_another_order_is_refused(versions: dict[str, str], named: str) -> None:
    with pytest.raises(CheckpointError, match=f"1-20 was .* orders the samples by {named}"):
        check_order(versions, "1-20")
    check_order({"order": ORDER}, "1-20")


def test_another_process_draws_the_same_order() -> None:
    code = "from rubato.data.order import BatchPlan; print(BatchPlan(97, 16, 4, 2**62).samples(8, 2))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(BatchPlan(97, 16, 4, 2**62).samples(8, 2))


def test_a_plan_does_not_import_torch() -> None:
    code = (
        "import sys; from rubato.data.order import BatchPlan; BatchPlan(10, 4, 2, 0).samples(2, 0); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["num_samples", "global_size", "num_microbatches"])
def test_a_count_below_one_is_refused(name: str) -> None:
    counts = {"num_samples": 4, "global_size": 2, "num_microbatches": 1} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        BatchPlan(**counts, seed=0)


def test_a_microbatch_or_step_out_of_range_is_refused() -> None:
    plan = BatchPlan(num_samples=8, global_size=4, num_microbatches=2, seed=0)
    with pytest.raises(IndexError, match=r"microbatches 2..2 are not all in 0\.\.1"):
        plan.samples(0, 2)
    with pytest.raises(ValueError, match="counted from 0"):
        plan.samples(-1, 0)
