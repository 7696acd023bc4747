"""Reductions by a strategy: ranks are threads, the oracle is the sum of their vectors."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from groups import fake_group, on_ranks, outcomes
from torch import nn

from rubato.data.order import BatchPlan
from rubato.engine.aggregated import AggregatedExchange
from rubato.engine.aggregation import aggregation_of
from rubato.engine.flat import FlatLayout
from rubato.engine.header import Header, Leaving, header_bytes
from rubato.engine.reduction import Reduced
from rubato.engine.tree import AnyOrder, Partials, balanced_owners
from rubato.errors import ProtocolError
from rubato.wire.aggregation import AggregationSpec, CompressionSpec

MICROBATCHES, WORLD, STEP = 4, 3, 5
OWNERS = balanced_owners(MICROBATCHES, WORLD)
INTEGERS = b"12345"
FLAT = FlatLayout(list(nn.Linear(5, 6).named_parameters()), [])


def vectors(world: int) -> torch.Tensor:
    """By rank."""
    told = torch.randn(world, FLAT.length, generator=torch.Generator().manual_seed(world))
    told[:, FLAT.flags.start :] = 1.0
    return told


def header(rank: int, step: int = STEP) -> Header:
    slots = tuple((1.0, 2.0) if owner == rank else (0.0, 0.0) for owner in OWNERS)
    return Header(1, 1, step, 1, 1, Leaving.NO, 0, is_finite=True, digest=None, compute_ns=rank, slots=slots)


def reduce(
    told: torch.Tensor,
    steps: Sequence[int] = (STEP,) * WORLD,
    weights: Sequence[float] = (4.0, 4.0, 8.0),
    chosen: CompressionSpec = CompressionSpec("topk", density=1.0),  # noqa: B008 - frozen
) -> list[Reduced | BaseException]:
    """One step of all ranks, of 16 samples; density 1: nothing is left out."""
    group = fake_group(WORLD)

    def play(rank: int) -> Reduced:
        made = aggregation_of(AggregationSpec(compression=chosen), seed=0)
        assert made is not None
        made.unit, made.weight = 16, weights[rank]
        made.prepare(FLAT, BatchPlan(32, 16, MICROBATCHES, 0))
        exchange = AggregatedExchange(group[rank], made, FLAT, header_bytes(MICROBATCHES), len(INTEGERS))
        partials: Partials[torch.Tensor] = Partials(AnyOrder(), range(MICROBATCHES), lambda left, right: left + right)
        mine = [leaf for leaf, owner in enumerate(OWNERS) if owner == rank]
        partials.put(partials.order.node_of(mine), told[rank].clone())
        integers = INTEGERS if OWNERS[0] == rank else b""  # who has not computed the lowest microbatch tells none
        return exchange.reduce(partials, OWNERS, header(rank, steps[rank]), integers)

    return outcomes(WORLD, play)


def test_all_have_the_sum_the_headers_and_the_integers_of_the_lowest_microbatch() -> None:
    told = vectors(WORLD)
    for result in reduce(told):
        assert isinstance(result, Reduced)
        torch.testing.assert_close(result.chunks[0], told.sum(0))
        assert [one.compute_ns for one in result.headers] == list(range(WORLD))
        assert all(one.is_finite for one in result.headers)
        assert result.integers == INTEGERS


@pytest.mark.parametrize("rank", range(WORLD))
def test_where_one_gradient_is_not_finite_all_add_them_up_whole(rank: int) -> None:
    """Were they to differ in that, they would wait for each other's messages forever."""
    told = vectors(WORLD)
    told[rank, 7] = float("inf")
    for result in reduce(told):
        assert isinstance(result, Reduced)
        torch.testing.assert_close(result.chunks[0], told.sum(0))
        assert not any(one.is_finite for one in result.headers)
        assert all(one.kept == 0 for one in result.headers)


def test_a_sum_that_overflows_is_told() -> None:
    told = vectors(WORLD)
    told[:, 7] = 3e38
    for result in reduce(told):
        assert isinstance(result, Reduced)
        assert not any(one.is_finite for one in result.headers)


def test_who_is_at_another_step_is_found_before_anything_is_exchanged() -> None:
    results = reduce(vectors(WORLD), steps=(STEP, STEP, STEP + 1))
    assert all(isinstance(result, ProtocolError) for result in results)


def test_a_threshold_is_in_units_of_the_mean_where_the_program_weighs_by_something_else() -> None:
    """By tokens, say, of which this step has 40 times as many as samples."""
    told, chosen = 1e-3 * vectors(WORLD), CompressionSpec("threshold", threshold=1e-3)
    tokens = [160.0, 160.0, 320.0]
    weighed = told.clone()
    weighed[:, : FLAT.gradients] *= 40
    results = zip(reduce(told, chosen=chosen), reduce(weighed, weights=tokens, chosen=chosen), strict=True)
    for by_sample, by_token in results:
        assert isinstance(by_sample, Reduced)
        assert isinstance(by_token, Reduced)
        expected = by_sample.chunks[0][: FLAT.gradients]
        assert 0 < (expected == 0).sum() < FLAT.gradients
        torch.testing.assert_close(by_token.chunks[0][: FLAT.gradients] / 40, expected)
        assert [one.kept for one in by_token.headers] == pytest.approx([one.kept for one in by_sample.headers])


def test_alone_there_is_nobody_to_tell() -> None:
    made = aggregation_of(AggregationSpec(algorithm="ring"), seed=0)
    assert made is not None
    made.prepare(FLAT, BatchPlan(32, 16, MICROBATCHES, 0))
    exchange = AggregatedExchange(None, made, FLAT, header_bytes(MICROBATCHES), len(INTEGERS))
    partials: Partials[torch.Tensor] = Partials(AnyOrder(), range(MICROBATCHES), lambda left, right: left + right)
    vector = vectors(1)[0]
    partials.put(partials.order.node_of(range(MICROBATCHES)), vector.clone())
    result = on_ranks(1, lambda _: exchange.reduce(partials, (0,) * MICROBATCHES, header(0), INTEGERS))[0]
    assert torch.equal(result.chunks[0], vector)
    assert result.integers == INTEGERS


def test_alone_a_worker_compresses_all_the_same() -> None:
    """As `planner.methods.codec_s` has it."""
    made = aggregation_of(AggregationSpec(compression=CompressionSpec("topk", density=0.1)), seed=0)
    assert made is not None
    made.prepare(FLAT, BatchPlan(32, 16, MICROBATCHES, 0))
    exchange = AggregatedExchange(None, made, FLAT, header_bytes(MICROBATCHES), len(INTEGERS))
    partials: Partials[torch.Tensor] = Partials(AnyOrder(), range(MICROBATCHES), lambda left, right: left + right)
    partials.put(partials.order.node_of(range(MICROBATCHES)), vectors(1)[0])
    result = exchange.reduce(partials, (0,) * MICROBATCHES, header(0), INTEGERS)
    assert result.headers[0].kept > 0
