"""Ranks are threads; the oracle is the reduction of one worker that holds all microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from groups import fake_group, gloo_group, on_posted_ranks, on_ranks, outcomes
from hypothesis import given, settings
from hypothesis import strategies as st

from rubato.engine.buckets import cut
from rubato.engine.buffers import UNDER_WAY, Buffers
from rubato.engine.comm import Communicator
from rubato.engine.exchange import Exchange
from rubato.engine.flat import BUCKET_BYTES
from rubato.engine.header import Header, Leaving, decide, header_bytes
from rubato.engine.reduction import Reduced, bytes_of_parts, frontiers
from rubato.engine.tree import AnyOrder, Order, Partials, Tree, balanced_owners, radices_of
from rubato.errors import GenerationLost, ProtocolError
from rubato.planner.links import sent_by
from rubato.planner.methods import vectors_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """A step to reduce: gradients (V, L), those that exist, and who holds which."""

    values: torch.Tensor
    present: list[int]
    owners: tuple[int, ...]
    world: int
    integer_bytes: int = 5
    step: int = 3
    gradients: int | None = None
    is_free: bool = False
    """Whether the order of the sum is."""

    @property
    def num_microbatches(self) -> int:
        return len(self.values)

    def partials(self, leaves: Sequence[int]) -> Partials[torch.Tensor]:
        order: Order = AnyOrder() if self.is_free else Tree.of(self.num_microbatches)
        held: Partials[torch.Tensor] = Partials(order, self.present, lambda left, right: left.add_(right))
        for leaf in leaves:
            held.put(order.node_of([leaf]), self.values[leaf].clone())
        return held

    def mine(self, rank: int) -> list[int]:
        return [leaf for leaf in self.present if self.owners[leaf] == rank]

    def header(self, leaves: Sequence[int], step: int) -> Header:
        slots = tuple((leaf + 0.5, 2.0) if leaf in leaves else (0.0, 0.0) for leaf in range(self.num_microbatches))
        return Header(1, 1, step, 1, 1, Leaving.NO, 0, is_finite=True, digest=None, compute_ns=7, slots=slots)

    def exchange(self, comm: Communicator | None) -> Exchange:
        header = header_bytes(self.num_microbatches)
        return Exchange(comm, self.values[0], header, self.integer_bytes, CPU, self.gradients)

    def reduce(self, exchange: Exchange, rank: int, step: int | None = None) -> Reduced:
        mine = self.mine(rank)
        header = self.header(mine, self.step if step is None else step)
        return exchange.reduce(self.partials(mine), self.owners, header, self.integers(rank))

    def integers(self, rank: int) -> bytes:
        """Only the worker of the lowest microbatch has any."""
        return bytes([rank + 1] * self.integer_bytes) if self.owners[self.present[0]] == rank else b""

    def alone(self) -> Reduced:
        header = self.header(self.present, self.step)
        integers = self.integers(self.owners[self.present[0]])
        return self.exchange(None).reduce(self.partials(self.present), self.owners, header, integers)


def case(num_microbatches: int, world: int, length: int = 100, num_present: int | None = None) -> Case:
    values = torch.randn(num_microbatches, length, generator=torch.Generator().manual_seed(length)) * 1e3
    present = list(range(num_microbatches if num_present is None else num_present))
    return Case(values, present, balanced_owners(num_microbatches, world), world)


def whole(result: Reduced) -> torch.Tensor:
    return torch.cat(result.chunks)


def check(one: Case, results: Sequence[Reduced]) -> None:
    expected = one.alone()
    for result in results:
        assert whole(result).numpy().tobytes() == whole(expected).numpy().tobytes()
        assert result.integers == expected.integers
        assert result.headers == results[0].headers
    assert decide(results[0].headers) == decide(expected.headers)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_microbatches, world = draw(st.integers(1, 24)), draw(st.integers(2, 6))
    length = draw(st.sampled_from([1, 16, 17, 48, 97, 333]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    values = (torch.randn(num_microbatches, length, generator=generator) * 1e3).to(dtype)
    present = sorted(draw(st.sets(st.integers(0, num_microbatches - 1), min_size=1)))
    owners = draw(st.lists(st.integers(0, world - 1), min_size=num_microbatches, max_size=num_microbatches))
    return Case(values, present, tuple(owners), world, draw(st.sampled_from([0, 1, 64, 65])))


@settings(max_examples=settings.default.max_examples * 3 // 2)
@given(cases())
def test_any_ownership_gives_the_bits_of_one_worker(one: Case) -> None:
    group = fake_group(one.world)
    check(one, on_ranks(one.world, lambda rank: one.reduce(one.exchange(group[rank]), rank)))


@given(cases(), st.integers(0, 2**32))
def test_in_whatever_order_messages_arrive_the_bits_are_those_of_one_worker(one: Case, seed: int) -> None:
    check(one, on_posted_ranks(one.world, seed, lambda comm: one.reduce(one.exchange(comm), comm.rank)))


@given(cases())
def test_any_ownership_in_any_order_gives_the_sum_and_equal_results(one: Case) -> None:
    one, group = replace(one, is_free=True), fake_group(one.world)
    results = on_ranks(one.world, lambda rank: one.reduce(one.exchange(group[rank]), rank))
    for result in results:
        assert torch.equal(whole(result), whole(results[0]))
        torch.testing.assert_close(whole(result), one.values[one.present].sum(0), rtol=1e-5, atol=1e-2)
        assert decide(result.headers) == decide(one.alone().headers)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("num_present", [12, 5, 1])
def test_real_groups_too(world: int, num_present: int) -> None:
    """With 5 or 1 of 12 microbatches (the tail of an epoch) some ranks have nothing to give."""
    one = case(12, world, num_present=num_present)
    with gloo_group(world) as group:
        check(one, on_ranks(world, lambda rank: one.reduce(one.exchange(group[rank]), rank)))


@pytest.mark.parametrize("num_microbatches", [4, 8, 12, 16])
@pytest.mark.parametrize("world", [2, 3, 4, 5, 6])
def test_the_planner_knows_what_is_sent(num_microbatches: int, world: int) -> None:
    """A worker whose microbatches are no whole part of the tree sends several vectors."""
    one, group = case(min(num_microbatches, 4 * world), world, length=38_400), fake_group(world)
    vectors = vectors_of(one.num_microbatches, world)
    on_ranks(world, lambda rank: one.reduce(one.exchange(group[rank]), rank))
    for rank in range(world):
        planned = sent_by("direct", rank, world, 4 * 38_400, vectors=vectors[rank])
        assert group[rank].sent_bytes == pytest.approx(planned, rel=0.03), f"rank {rank} of {vectors}"


def test_the_last_result_stays_readable_while_the_next_is_made() -> None:
    one, other = case(6, 3), case(6, 3)
    other.values.mul_(-1)
    group = fake_group(3)

    def play(rank: int) -> tuple[Reduced, Reduced]:
        exchange = one.exchange(group[rank])
        return one.reduce(exchange, rank), other.reduce(exchange, rank)

    played = on_ranks(3, play)
    check(one, [first for first, _ in played])
    check(other, [second for _, second in played])


def test_integers_come_from_the_lowest_microbatch_that_exists() -> None:
    one = Case(torch.ones(4, 20), [1, 2, 3], (0, 2, 1, 0), 3)
    group = fake_group(3)
    results = on_ranks(3, lambda rank: one.reduce(one.exchange(group[rank]), rank))
    assert {result.integers for result in results} == {bytes([3] * 5)}


def test_another_step_is_refused() -> None:
    one, group = case(4, 2), fake_group(2)
    results = outcomes(2, lambda rank: one.reduce(one.exchange(group[rank]), rank, step=3 + rank))
    assert all(isinstance(result, ProtocolError) and "another step" in str(result) for result in results)


def test_a_microbatch_that_two_have_computed_is_refused() -> None:
    one, group = case(4, 2), fake_group(2)
    swapped = Case(one.values, one.present, (0, 1, 0, 1), 2)
    believes = [swapped, Case(one.values, one.present, (1, 0, 0, 1), 2)]
    results = outcomes(2, lambda rank: believes[rank].reduce(one.exchange(group[rank]), rank))
    assert all(isinstance(result, ProtocolError) and "other nodes" in str(result) for result in results)


@pytest.mark.parametrize("leaves", [[0], [0, 1, 2], []])
def test_parts_that_are_not_what_the_owners_say_are_refused_before_anything_is_sent(leaves: list[int]) -> None:
    one, group = case(4, 2), fake_group(2)

    def play(rank: int) -> Reduced:
        if rank == 1:
            return one.reduce(one.exchange(group[1]), 1)
        try:
            return one.exchange(group[0]).reduce(one.partials(leaves), one.owners, one.header(leaves, 3), bytes(5))
        finally:
            group[0].bury()

    wrong, other = outcomes(2, play)
    assert isinstance(wrong, ProtocolError)
    assert "should hold" in str(wrong)
    assert isinstance(other, GenerationLost)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_one_element_that_is_not_finite_is_seen_by_all(world: int, bad: float) -> None:
    one = case(6, world)
    one.values[4, 99] = bad
    if world == 1:
        results = [one.alone()]
    else:
        group = fake_group(world)
        results = on_ranks(world, lambda rank: one.reduce(one.exchange(group[rank]), rank))
    for result in results:
        assert not decide(result.headers).is_finite
        assert [header.is_finite for header in result.headers].count(False) == 1


@pytest.mark.parametrize("world", [1, 3, 4])
@pytest.mark.parametrize("place", [40, 41, 99])
def test_only_gradients_must_be_finite(world: int, place: int) -> None:
    one = replace(case(12, world), gradients=41)
    one.values[2, place] = float("nan")
    group = fake_group(world)
    results = on_ranks(world, lambda rank: one.reduce(one.exchange(group[rank] if world > 1 else None), rank))
    assert {decide(result.headers).is_finite for result in results} == {place != 40}


def test_a_sum_that_overflows_is_no_gradient_that_does() -> None:
    one = Case(torch.full((1, 64), 3e38), [0], (0,), 1)
    assert decide(one.alone().headers).is_finite


def test_a_lost_member_leaves_the_parts_untouched() -> None:
    one, group = case(4, 2), fake_group(2)
    group[1].bury()
    held = one.partials(one.mine(0))
    before = {node: vector.clone() for node, vector in held.nodes.items()}
    with pytest.raises(GenerationLost):
        one.exchange(group[0]).reduce(held, one.owners, one.header(one.mine(0), 3), bytes(5))
    assert held.nodes.keys() == before.keys()
    assert all(torch.equal(held.nodes[node], vector) for node, vector in before.items())


def vector(result: Reduced) -> list[float]:
    return torch.cat([chunk.reshape(-1) for chunk in result.chunks]).tolist()


def memory(result: Reduced) -> int:
    return result.chunks[0].untyped_storage().data_ptr()


@pytest.mark.parametrize("keeps", [False, True])
def test_two_results_share_memory_in_turns_unless_somebody_keeps_one(keeps: bool) -> None:
    one = case(12, 3, length=1000)
    group = fake_group(3)

    def play(rank: int) -> None:
        exchange, kept, places = one.exchange(group[rank]), [], []
        for step in range(3, 11):
            result = one.reduce(exchange, rank, step=step)
            places.append(memory(result))
            if keeps:
                kept.append(result.chunks[0][:4])
        assert len(set(places)) == (8 if keeps else 2)
        assert all(piece.tolist() == vector(result)[:4] for piece in kept)

    on_ranks(3, play)


@pytest.mark.parametrize("worlds", [(2, 3), (3, 2), (4, 3), (2, 5)])
def test_a_generation_takes_over_the_memory_of_the_one_before_but_its_last_result(worlds: tuple[int, int]) -> None:
    cases = [case(12, world, length=1000) for world in worlds]
    groups = [fake_group(world) for world in worlds]

    def play(rank: int) -> None:
        old, places = None, []
        former = cases[0].exchange(groups[0][rank]) if rank < worlds[0] else None
        if former is not None:
            for step in (3, 4):
                old = cases[0].reduce(former, rank, step=step)
                places.append(memory(old))
        if rank >= worlds[1]:
            return
        exchange = cases[1].exchange(groups[1][rank])
        exchange.touch(Tree.of(12), [cases[1].owners], former)
        if former is not None:
            exchange.take_over(former)
        first = cases[1].reduce(exchange, rank, step=5)
        if old is not None:  # whoever missed step 4 can be told of it yet
            assert vector(old) == vector(cases[0].alone())
            assert memory(first) == places[0]
        old = None
        second = cases[1].reduce(exchange, rank, step=6)
        assert vector(first) == vector(second) == vector(cases[1].alone())
        if places:
            assert memory(second) == places[1]

    on_ranks(max(worlds), play)


def test_memory_that_is_too_small_is_not_taken_over() -> None:
    small, large = case(4, 2, length=100), case(4, 2, length=100_000)
    groups = [fake_group(2) for _ in range(2)]

    def play(rank: int) -> None:
        former = small.exchange(groups[0][rank])
        olds = [small.reduce(former, rank, step=step) for step in (3, 4)]
        exchange = large.exchange(groups[1][rank])
        exchange.touch(Tree.of(4), [large.owners], former)
        exchange.take_over(former)
        result = large.reduce(exchange, rank, step=5)
        assert memory(result) not in {memory(old) for old in olds}
        assert vector(result) == vector(large.alone())

    on_ranks(2, play)


@given(count=st.integers(1, 48), data=st.data())
def test_what_comes_in_takes_no_more_memory_than_the_documents_say(count: int, data: st.DataObject) -> None:
    """The bound on a worker's memory that docs/benchmarks.md states."""
    world = data.draw(st.integers(2, 8))
    owners = data.draw(
        st.one_of(
            st.just(balanced_owners(count, world)),
            st.lists(st.integers(0, world - 1), min_size=count, max_size=count).map(sorted),
        )
    )
    most = BUCKET_BYTES // 4
    like = torch.empty(4 * most + 64, device="meta")
    buffers = Buffers(
        data.draw(st.integers(0, world - 1)), world, like, 0, 0, CPU, cut([0], 4 * most, 4 * most + 64, most)
    )
    held = frontiers(Tree.of(count), range(count), owners, world)
    came = sum(sorted(bytes_of_parts(buffers, one, held) for one in buffers.sections)[-UNDER_WAY:])
    parts = max(1, 2 * sum(radix - 1 for radix in radices_of(count)))
    chunk_bytes = BUCKET_BYTES / world + 64  # rounded up to 16 elements
    assert came <= UNDER_WAY * chunk_bytes * (world - 1) * parts
    if count.bit_count() == world.bit_count() == 1 and owners == balanced_owners(count, world):
        assert came <= UNDER_WAY * (BUCKET_BYTES + 64 * world)
