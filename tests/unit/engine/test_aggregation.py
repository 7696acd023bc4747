"""What workers keep of their gradients, over steps that count or do not, members that come, go or die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from aggregating import KEEPING, PLAN, SIDES, Job, flat, spec_of
from groups import fake_group, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rubato.data.stream import StreamPlan
from rubato.engine.aggregation import Aggregation, aggregation_of
from rubato.engine.flat import FlatLayout
from rubato.errors import ModelError, ProtocolError
from rubato.wire.aggregation import AggregationSpec, Method

ROUNDED = 1 + 1e-9
"""Against a norm that was added up in another order."""


@pytest.mark.parametrize("method", KEEPING)
@settings(max_examples=settings.default.max_examples // 3)  # of each method
@given(
    story=st.lists(
        st.one_of(
            st.sampled_from(["step", "lost step", "settle", "not finite", "untouched", "scaled"]), st.integers(1, 5)
        ),
        max_size=12,
    )
)
def test_nothing_is_lost_or_counted_twice(method: Method, story: Sequence[str | int]) -> None:
    job = Job(method, 3)
    job.begin()
    for event in story:
        match event:
            case "step":
                job.exchange(counts=True)
            case "lost step":
                job.exchange(counts=False)
            case "settle":
                job.settle()
            case "not finite":
                job.exchange(counts=True, are_finite=False)
            case "untouched":
                job.exchange(counts=True, untouched={"weight"})
            case "scaled":
                job.rescale(job.scale / 2)
                job.exchange(counts=True)
            case int():
                job.resize(event)
    assert job.missing().abs().max() < 1e-9


@pytest.mark.parametrize("method", KEEPING)
def test_who_dies_takes_along_what_is_told_and_behind_a_settlement_nothing(method: Method) -> None:
    job = Job(method, 3)
    job.begin()
    for _ in range(3):
        job.exchange(counts=True)
    lost = job.told["2"]
    job.lose()
    assert [worker.is_disturbed for worker in job.workers] == [True, True]
    told = [worker.lost({"0", "1"}) for worker in job.workers]
    assert told[0] == told[1] == (pytest.approx(lost), pytest.approx(told[0][1]))
    assert 0 < told[0][1] < 1
    assert job.workers[0].lost({"0", "1"}) == (0.0, 0.0), "it is told once"
    job.exchange(counts=True)
    job.settle()
    missing = job.missing()
    assert 0 < float(torch.linalg.vector_norm(missing)) <= lost * ROUNDED
    job.lose()
    assert not job.workers[0].is_disturbed
    job.exchange(counts=True)
    torch.testing.assert_close(job.missing(), missing)


@pytest.mark.parametrize("method", KEEPING)
@pytest.mark.parametrize("are_alike", [False, True])
def test_of_several_that_die_at_once_no_more_is_missing_than_is_told(method: Method, are_alike: bool) -> None:
    job = Job(method, 4)
    job.are_alike = are_alike
    job.begin()
    for _ in range(3):
        job.exchange(counts=True)
    job.lose(2)
    lost, share = job.workers[0].lost({"0", "1"})
    assert 0 < share < 1
    missing = float(torch.linalg.vector_norm(job.missing()))
    assert 0 < missing <= lost * ROUNDED
    if are_alike and method in ("topk", "threshold", "powersgd"):
        assert missing == pytest.approx(lost), "what all kept is the same"
        assert share == pytest.approx(0.5)


def test_both_parts_of_what_a_method_keeps_count_where_they_add_up() -> None:
    job = Job("onebit", 1)
    part = torch.arange(30.0, dtype=torch.float64)
    job.workers[0].load_state_dict({"settled": {"residual": part, "stripe": part}, "unit": "mean"})
    job.begin()
    job.exchange(counts=False, are_finite=False)
    assert job.workers[0].kept == pytest.approx(float(torch.linalg.vector_norm(part + part)))


def test_a_joiner_follows_without_a_part_of_its_own_and_has_its_share_of_what_is_settled() -> None:
    job = Job("topk", 2)
    job.begin()
    job.exchange(counts=True)
    joiner = job.new()
    joiner.load_state_dict(job.workers[0].state_dict())
    job.exchange(counts=True)
    joiner.count(1, follows=True)
    assert not joiner.is_settled
    with pytest.raises(ProtocolError, match="not heard what is kept"):
        joiner.exchange(fake_group(1)[0], job.flat.empty(), 2, are_finite=True)
    assert joiner.state_dict() == job.workers[0].state_dict() == {"settled": None, "unit": "mean"}
    group = fake_group(2)
    rows = on_ranks(2, lambda rank: job.workers[rank].settle(group[rank]))
    for worker in (*job.workers, joiner):
        worker.take(rows[0])
    job.workers.append(joiner)
    job.begin()
    job.exchange(counts=True)
    assert job.missing().abs().max() < 1e-9


def test_a_step_that_was_not_exchanged_here_does_not_count() -> None:
    job = Job("topk", 1)
    job.begin()
    with pytest.raises(ProtocolError, match="step 0 counts, but this worker has not exchanged it"):
        job.workers[0].count(0, follows=False)


@pytest.mark.parametrize("method", ["fp16", "bf16"])
def test_a_method_that_keeps_nothing_is_always_settled(method: Method) -> None:
    job = Job(method, 2)
    job.begin()
    job.exchange(counts=True)
    assert job.workers[0].is_settled
    job.lose()
    assert job.workers[0].lost({"0"}) == (0.0, 0.0)
    job.exchange(counts=True)


def test_methods_begin_gently() -> None:
    """Whole sums at first, then by epoch."""
    job = Job("topk", 2, start_step=1, warmup_densities=(0.5,))
    job.begin()
    travelled = []
    for _ in range(4):
        before = job.applied.clone()
        job.exchange(counts=True)
        travelled.append(int((job.applied - before)[: SIDES[0] * SIDES[1]].count_nonzero()))
    assert PLAN.steps_per_epoch == 2
    assert travelled[0] == 30
    assert 15 <= travelled[1] <= 30
    assert travelled[2] <= 6
    assert travelled[3] <= 6
    assert job.missing().abs().max() < 1e-9


def test_a_stream_has_no_epochs_to_begin_gently_with() -> None:
    made = aggregation_of(spec_of("topk", warmup_densities=(0.5,)), seed=0)
    assert made is not None
    with pytest.raises(ModelError, match="a stream has no epochs"):
        made.prepare(flat(), StreamPlan.of(16, 4, 0))


@pytest.mark.parametrize("start_step", [0, 3, 100])
@pytest.mark.parametrize("method", ["topk", "sketch"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_what_goes_whole_has_the_momentum_of_an_optimizer(world: int, method: Method, start_step: int) -> None:
    """Biases always, all parameters in the first steps, and with nothing left out; whoever comes and goes."""
    job = Job(method, world, momentum=0.5, start_step=start_step)
    job.begin()
    weight, bias = (slice(piece.start, piece.start + piece.numel) for piece in job.flat.pieces[:2])
    expected = torch.zeros(job.flat.length, dtype=torch.float64)
    for size in (world, world, world % 5 + 1, world % 5 + 1, world, (world + 1) % 5 + 1):
        if size != job.world:
            job.resize(size)
        before = job.applied.clone()
        expected = 0.5 * expected + job.vectors(()).sum(0)
        is_whole = job.step < start_step
        job.exchange(counts=True)
        applied = job.applied - before
        torch.testing.assert_close(applied[bias], expected[bias])
        assert torch.allclose(applied[weight], expected[weight]) is is_whole


def test_momentum_counts_once() -> None:
    weights = [torch.zeros(2, requires_grad=True)]
    made = aggregation_of(spec_of("topk", momentum=0.9), seed=0)
    assert made is not None
    made.check_optimizers([torch.optim.SGD(weights, lr=0.1)])
    for optimizer in (torch.optim.SGD(weights, lr=0.1, momentum=0.9), torch.optim.AdamW(weights)):
        with pytest.raises(ModelError, match=f"{type(optimizer).__name__} would once more behind it"):
            made.check_optimizers([optimizer])
    cast(Aggregation, aggregation_of(spec_of("topk"), seed=0)).check_optimizers([torch.optim.AdamW(weights)])


def test_members_agree_whether_they_are_disturbed_where_some_have_not_counted_yet() -> None:
    """The third one dies when the first one has the headers of the step, and the second one has not."""
    job = Job("topk", 3)
    job.begin()
    job.exchange(counts=False)
    job.count([0])
    job.workers.pop()
    job.workers[1].hear(job.told)  # it was brought up to date
    job.begin(counts=[1])
    assert [worker.is_disturbed for worker in job.workers] == [True, True]
    assert job.workers[0].lost({"0", "1"}) == job.workers[1].lost({"0", "1"}) != (0.0, 0.0)
    job.workers[1].count(0, follows=False)
    assert [worker.is_settled for worker in job.workers] == [False, False]
    job.step = 1
    job.exchange(counts=True)
    job.settle()
    assert [worker.is_disturbed for worker in job.workers] == [False, False]


@pytest.mark.parametrize("method", KEEPING)
def test_what_is_kept_of_a_parameter_waits_until_it_is_touched(method: Method) -> None:
    job = Job(method, 2)
    job.begin()
    job.exchange(counts=True)
    job.settle()
    before = job.workers[0].state_dict()["settled"]
    for _ in range(3):
        job.exchange(counts=True, untouched={"weight"})
    job.settle()
    after = job.workers[0].state_dict()["settled"]
    for name in {"residual", "stripe"} & before.keys():
        torch.testing.assert_close(after[name], before[name])
    assert job.missing().abs().max() < 1e-9


@pytest.mark.parametrize("method", KEEPING)
def test_another_scale_of_the_loss_changes_nothing(method: Method) -> None:
    plain, scaled = Job(method, 2), Job(method, 2)
    for job in (plain, scaled):
        job.begin()
        for power in range(4):
            if job is scaled:
                job.rescale(2.0 ** (8 - 2 * power))
            job.exchange(counts=True)
        job.settle()
    assert torch.equal(plain.applied, scaled.applied)
    assert plain.workers[0].state_dict()["settled"].keys() == scaled.workers[0].state_dict()["settled"].keys()


@pytest.mark.parametrize("method", KEEPING)
def test_what_is_kept_has_the_unit_of_the_mean_whatever_the_weights(method: Method) -> None:
    """And `threshold` the same meaning, where steps have other numbers of tokens."""
    plain, weighed = Job(method, 2), Job(method, 2)
    for job in (plain, weighed):
        job.begin()
        for whole in (128.0, 32.0, 0.25, 64.0):  # powers of two, so that no digit changes
            if job is weighed:
                job.reweigh(whole)
            job.exchange(counts=True)
        job.settle()
    assert torch.equal(plain.applied, weighed.applied)
    assert plain.told == weighed.told
    settled = [job.workers[0].state_dict()["settled"] for job in (plain, weighed)]
    assert all(torch.equal(settled[0][name], settled[1][name]) for name in settled[0])


def test_where_nothing_counts_what_was_kept_travels_on() -> None:
    job = Job("threshold", 2)
    job.begin()
    job.exchange(counts=True)
    job.reweigh(0.0)
    group, flags = fake_group(2), job.flat.empty()
    flags[job.flat.flags.start :] = 1.0
    for total, stays_finite in on_ranks(
        2, lambda rank: job.workers[rank].exchange(group[rank], flags.clone(), 1, are_finite=True)
    ):
        assert stays_finite
        assert total[: job.flat.gradients].any()


def test_gradients_that_are_huge_for_once_are_forgotten() -> None:
    """The basis of PowerSGD has grown with them: a product that overflows would never end."""
    made = aggregation_of(spec_of("powersgd"), seed=0)
    assert made is not None
    torch.manual_seed(0)
    flat = FlatLayout(list(nn.Linear(SIDES[1], SIDES[0]).named_parameters()), [])
    made.prepare(flat, PLAN)
    (group,) = fake_group(1)
    finite = []
    for step, size in enumerate([1.0, 1e30, 3e38, 1.0, 1.0]):
        vector = size * torch.rand(flat.length)
        vector[flat.gradients :] = 1.0
        total, stays_finite = made.exchange(group, vector, step, are_finite=True)
        assert stays_finite == bool(torch.isfinite(total[: flat.gradients]).all())
        made.count(step, follows=False)
        finite.append(stays_finite)
    assert finite[-2:] == [True, True]


def test_the_default_is_the_engines_own() -> None:
    assert aggregation_of(AggregationSpec(), seed=0) is None
