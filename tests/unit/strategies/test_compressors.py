"""What holds for every compressor. Ranks are threads; the oracle is the dense sum in twice as many digits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from groups import FakeCommunicator, fake_group, on_ranks
from hypothesis import given, settings
from hypothesis import strategies as st

from rubato.strategies.cast import Cast
from rubato.strategies.compressor import Compressor, State
from rubato.strategies.gtopk import GlobalTopK
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.layout import Layout, layout_of
from rubato.strategies.onebit import OneBit
from rubato.strategies.powersgd import PowerSGD
from rubato.strategies.sizes import elements_sent
from rubato.strategies.sketch import Sketch
from rubato.strategies.threshold import Threshold
from rubato.strategies.topk import TopK

LAYOUT = layout_of(
    160, [("a.weight", 16, (6, 9)), ("a.bias", 80, (6,)), ("b.weight", 96, (3, 4, 2)), ("c", 128, (1, 5))]
)
"""With gaps, a bias and something behind the parameters, as the engine's vectors have."""
Make = Callable[[Layout, int], Compressor]
"""For a layout and so many workers."""


def nodes(world: int) -> list[str]:
    """Two nodes; the second one is the smaller."""
    return ["a" if rank < (world + 1) // 2 else "b" for rank in range(world)]


COMPRESSORS: dict[str, Make] = {
    "fp16": lambda layout, _: Cast(layout, torch.float16),
    "bf16": lambda layout, _: Cast(layout, torch.bfloat16),
    "topk": lambda layout, _: TopK(layout, 0.1),
    "dgc": lambda layout, _: TopK(layout, 0.1, momentum=0.9),
    "gtopk": lambda layout, _: GlobalTopK(layout, 0.1),
    "hierarchical": lambda layout, world: HierarchicalTopK(layout, 0.1, nodes(world)),
    "threshold": lambda layout, _: Threshold(layout, 0.5),
    "onebit": lambda layout, _: OneBit(layout),
    "powersgd": lambda layout, _: PowerSGD(layout, 2),
    "sketch": lambda layout, _: Sketch(layout, 0.1),
    "sketch, central": lambda layout, _: Sketch(layout, 0.1, is_central=True),
    "sketch with momentum": lambda layout, _: Sketch(layout, 0.1, momentum=0.9),
}
LOSSY = {"fp16", "bf16"}
WITH_MOMENTUM = {"dgc", "sketch with momentum"}
COUNT_BYTES = 8
"""In which a worker says how many words follow."""
EXACT = sorted(COMPRESSORS.keys() - LOSSY - WITH_MOMENTUM)
EVERY = sorted(COMPRESSORS)


class Workers:
    """Some workers that exchange steps."""

    def __init__(self, make: Make, world: int, layout: Layout = LAYOUT, dtype: torch.dtype = torch.float64) -> None:
        self.make, self.world, self.layout = make, world, layout
        self.compressor = make(layout, world)
        like = torch.zeros(layout.length, dtype=dtype)
        self.states: list[State] = [self.compressor.start(like) for _ in range(world)]
        self.step = 0

    def exchange(self, vectors: torch.Tensor) -> tuple[torch.Tensor, list[FakeCommunicator]]:
        """What all take for the sum (L,) of the vectors (P, L); fails where they do not take the same."""
        group = fake_group(self.world)
        before = [{name: part.clone() for name, part in state.items()} for state in self.states]
        done = on_ranks(
            self.world,
            lambda rank: self.compressor.exchange(group[rank], vectors[rank].clone(), self.states[rank], self.step),
        )
        for old, state in zip(before, self.states, strict=True):
            assert all(torch.equal(old[name], state[name]) for name in old), "an exchange changes no state"
        self.states = [state for _, state in done]
        self.step += 1
        assert all(torch.equal(one, done[0][0]) for one, _ in done), "equal bits on all ranks"
        return done[0][0], group

    def kept(self) -> torch.Tensor:
        """The sum of what all have kept (D,)."""
        total = torch.zeros(self.layout.numel, dtype=torch.float64)
        for state in self.states:
            for name in self.compressor.own:
                total += state[name].double() if name != "momentum" else 0
        return total

    def resize(self, world: int) -> None:
        """Settle, and go on with so many."""
        group = fake_group(self.world)
        settled = on_ranks(self.world, lambda rank: self.compressor.settle(group[rank], self.states[rank]))
        assert all(torch.equal(one[name], settled[0][name]) for one in settled for name in one)
        self.world, self.compressor = world, self.make(self.layout, world)
        self.states = [self.compressor.adopt(settled[0], rank, world) for rank in range(world)]


def gradients(world: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(world, LAYOUT.length, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=settings.default.max_examples // 3)  # of each method
@given(worlds=st.lists(st.integers(1, 5), min_size=1, max_size=4), seed=st.integers(0, 1000))
def test_over_steps_and_resizes_nothing_is_lost_or_counted_twice(name: str, worlds: Sequence[int], seed: int) -> None:
    workers = Workers(COMPRESSORS[name], worlds[0])
    applied = torch.zeros(LAYOUT.length, dtype=torch.float64)
    given = torch.zeros_like(applied)
    for number, world in enumerate(worlds):
        if number:
            workers.resize(world)
        for step in range(3):
            vectors = gradients(world, seed + 10 * number + step)
            given += vectors.sum(0)
            applied += workers.exchange(vectors)[0]
        torch.testing.assert_close(LAYOUT.take(applied) + workers.kept(), LAYOUT.take(given), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(LAYOUT.take_dense(applied), LAYOUT.take_dense(given), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_it_sends_what_it_says(name: str, world: int) -> None:
    workers = Workers(COMPRESSORS[name], world, dtype=torch.float32)
    for step in range(2):
        _, group = workers.exchange(gradients(world, step, torch.float32))
        for rank, comm in enumerate(group):
            said = workers.compressor.sent_bytes(rank, world, 4, step)
            assert said is None or comm.sent_bytes == said, f"rank {rank}"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_nothing_is_made_of_nothing_and_what_is_sent_of_it_is_what_is_sent_of_anything(name: str, world: int) -> None:
    """But of a threshold, which nothing reaches: how many words follow, and what goes dense (ADR 63)."""
    workers = Workers(COMPRESSORS[name], world, dtype=torch.float32)
    total, group = workers.exchange(torch.zeros(world, LAYOUT.length))
    assert not total.any()
    assert not any(state[part].any() for state in workers.states for part in workers.compressor.own)
    sent = [comm.sent_bytes for comm in group]
    if name == "threshold":
        dense = [4 * elements_sent("direct", rank, world, LAYOUT.dense_numel) for rank in range(world)]
        assert sent == [COUNT_BYTES * (world - 1) + one for one in dense]
    else:
        assert sent == [workers.compressor.sent_bytes(rank, world, 4, 0) for rank in range(world)]
        _, of_any = Workers(COMPRESSORS[name], world, dtype=torch.float32).exchange(gradients(world, 0, torch.float32))
        assert sent == [comm.sent_bytes for comm in of_any]


@pytest.mark.parametrize("name", EVERY)
def test_a_step_that_is_exchanged_again_gives_the_same_bits(name: str) -> None:
    """After a loss: the state is that before the step."""
    results = []
    for _ in range(2):
        workers = Workers(COMPRESSORS[name], 3, dtype=torch.float32)
        workers.exchange(gradients(3, 1, torch.float32))
        results.append(workers.exchange(gradients(3, 2, torch.float32))[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("name", EVERY)
def test_a_model_of_nothing_but_biases_goes_dense(name: str) -> None:
    layout = layout_of(32, [("bias", 0, (20,))])
    workers = Workers(COMPRESSORS[name], 3, layout, torch.float32)
    vectors = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(workers.exchange(vectors)[0], vectors[0] + vectors[1] + vectors[2])


ALL_OF_IT: dict[str, Make] = {
    "topk": lambda layout, _: TopK(layout, 1.0),
    "gtopk": lambda layout, _: GlobalTopK(layout, 1.0),
    "hierarchical": lambda layout, world: HierarchicalTopK(layout, 1.0, nodes(world)),
    "sketch": lambda layout, _: Sketch(layout, 1.0),
    "sketch, central": lambda layout, _: Sketch(layout, 1.0, is_central=True),
    "powersgd": lambda layout, _: PowerSGD(layout, 99),
}


@pytest.mark.parametrize("name", sorted(ALL_OF_IT))
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_where_nothing_is_left_out_it_is_the_dense_sum(name: str, world: int) -> None:
    workers = Workers(ALL_OF_IT[name], world)
    for step in range(3):
        vectors = gradients(world, step)
        torch.testing.assert_close(workers.exchange(vectors)[0], vectors.sum(0), rtol=1e-9, atol=1e-9)
