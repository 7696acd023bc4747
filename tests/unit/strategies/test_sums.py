"""Ranks are threads; the oracle is the sum in twice as many digits."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from groups import FakeCommunicator, fake_group, on_posted_ranks, on_ranks
from hypothesis import given
from hypothesis import strategies as st

from rubato.strategies.sizes import Pattern, elements_sent
from rubato.strategies.sums import LARGE, sum_over

PATTERNS: tuple[Pattern, ...] = tuple(one for one in get_args(Pattern) if one != "native")
"""The backend's own is no pattern of messages: `tests/unit/engine/test_all_reduce.py` has it."""


SIZE = 1e3
"""Of what is summed, about."""


def vectors(world: int, numel: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(world, numel, generator=torch.Generator().manual_seed(seed)) * SIZE


def summed(
    pattern: Pattern, parts: torch.Tensor, servers: int = 1
) -> tuple[list[torch.Tensor], list[FakeCommunicator]]:
    group = fake_group(len(parts))
    return on_ranks(len(parts), lambda rank: sum_over(group[rank], parts[rank], pattern, servers)), group


@given(st.sampled_from(PATTERNS), st.integers(1, 9), st.integers(1, 70), st.integers(0, 100))
def test_the_sum_is_the_sum_on_all_ranks_and_costs_what_is_said(
    pattern: Pattern, world: int, numel: int, seed: int
) -> None:
    parts = vectors(world, numel, seed)
    before = parts.clone()
    sums, group = summed(pattern, parts)
    expected = parts.double().sum(0)
    for rank, one in enumerate(sums):
        assert torch.equal(one, sums[0]), "the same bits everywhere"
        torch.testing.assert_close(one.double(), expected, rtol=0, atol=1e-6 * world * SIZE)
        assert group[rank].sent_bytes == 4 * elements_sent(pattern, rank, world, numel)
    assert torch.equal(parts, before), "what went in is as it was"


@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 40))
def test_some_servers_add_up_a_part_each(world: int, servers: int, numel: int) -> None:
    parts = vectors(world, numel)
    group = fake_group(world)
    sums = on_ranks(world, lambda rank: sum_over(group[rank], parts[rank], "server", servers))
    in_order = parts[0].clone()
    for part in parts[1:]:
        in_order = in_order + part
    for rank, one in enumerate(sums):
        assert torch.equal(one, in_order), "in the order of ranks, whatever the servers"
        assert group[rank].sent_bytes == 4 * elements_sent("server", rank, world, numel, servers)
        assert elements_sent("server", rank, world, numel, world) == elements_sent("direct", rank, world, numel)


@given(
    pattern=st.sampled_from(PATTERNS),
    world=st.integers(2, 9),
    numel=st.sampled_from([1, 7, 70, LARGE // 4 + 1]),
    servers=st.integers(1, 4),
    seeds=st.lists(st.integers(0, 2**32), min_size=2, max_size=3),
)
def test_in_whatever_order_messages_arrive_the_bits_are_the_same(
    pattern: Pattern, world: int, numel: int, servers: int, seeds: list[int]
) -> None:
    parts = vectors(world, numel)
    expected = summed(pattern, parts, servers)[0][0]
    for seed in seeds:
        sums = on_posted_ranks(world, seed, lambda comm: sum_over(comm, parts[comm.rank], pattern, servers))
        assert all(torch.equal(one, expected) for one in sums)


@pytest.mark.parametrize("world", [2, 4, 8])
def test_tree_and_halving_doubling_are_one_balanced_tree(world: int) -> None:
    parts = vectors(world, 37)
    level = list(parts)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    for pattern in ("tree", "halving_doubling"):
        assert torch.equal(summed(pattern, parts)[0][0], level[0])


def test_a_sum_in_float64_stays_one() -> None:
    parts = torch.randn(3, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for pattern in PATTERNS:
        torch.testing.assert_close(summed(pattern, parts)[0][0], parts.sum(0), rtol=1e-15, atol=1e-15)
