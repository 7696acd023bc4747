"""What holds for one method alone."""

from __future__ import annotations

import pytest
import torch
from groups import fake_group, on_ranks
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recall import alone, planted
from rubato.strategies.cast import Cast
from rubato.strategies.compressor import Compressor, State
from rubato.strategies.gtopk import merge
from rubato.strategies.hierarchical import HierarchicalTopK
from rubato.strategies.layout import Layout, layout_of
from rubato.strategies.onebit import OneBit
from rubato.strategies.powersgd import PowerSGD
from rubato.strategies.selection import largest
from rubato.strategies.sizes import columns_for, count_of
from rubato.strategies.sketch import CountSketch, Sketch
from rubato.strategies.threshold import Threshold
from rubato.strategies.topk import TopK
from rubato.wire.aggregation import MAX_ROWS


def flat(rows: int, columns: int) -> Layout:
    """One matrix, and nothing else."""
    return layout_of(rows * columns, [("weight", 0, (rows, columns))])


def exchange(compressor: Compressor, vectors: torch.Tensor, states: list[State] | None = None) -> list:
    """By rank, the sum and the state after it."""
    group = fake_group(len(vectors))
    states = states or [compressor.start(vectors[0]) for _ in vectors]
    return on_ranks(len(vectors), lambda rank: compressor.exchange(group[rank], vectors[rank].clone(), states[rank], 0))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- selection --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 30))
def test_of_equal_elements_the_first_are_the_largest(values: list[int], k: int) -> None:
    expected = sorted(sorted(range(len(values)), key=lambda place: (-values[place], place))[:k])
    assert largest(torch.tensor(values), min(k, len(values))).tolist() == expected


def test_at_least_one_element_travels() -> None:
    assert [count_of(density, 100) for density in (0.0001, 0.014, 0.5, 1.0)] == [1, 1, 50, 100]


# --- 16 bits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize(("dtype", "digits"), [(torch.float16, 1e-3), (torch.bfloat16, 1e-2)])
def test_16_bits_are_near_whatever_the_scale(dtype: torch.dtype, digits: float, scale: float) -> None:
    vectors = random(3, 64) * scale
    for total, _ in exchange(Cast(flat(8, 8), dtype), vectors):
        torch.testing.assert_close(total, vectors.sum(0), rtol=0, atol=4 * digits * float(vectors.abs().max()))


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1e-36, torch.float32), (1e-44, torch.float32), (1e-60, torch.float64), (1e60, torch.float64)]
)
def test_float16_has_a_power_of_two_beyond_the_range_of_float32(scale: float, dtype: torch.dtype) -> None:
    """The power of two that brings 1e-44 near to 2**15 is itself no float32."""
    vectors = (random(3, 64).double() * scale).to(dtype)
    assert vectors.any()
    for total, _ in exchange(Cast(flat(8, 8), torch.float16), vectors):
        assert total.dtype == dtype
        torch.testing.assert_close(total, vectors.sum(0), rtol=0, atol=4e-3 * float(vectors.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_not_finite_is_not_hidden(dtype: torch.dtype) -> None:
    vectors = random(2, 64)
    vectors[1, 7], vectors[0, 40] = torch.nan, torch.inf
    for total, _ in exchange(Cast(flat(8, 8), dtype), vectors):
        assert torch.isnan(total[7])
        assert not torch.isfinite(total[40])


# --- top-k ------------------------------------------------------------------------------------------------------------


def test_with_momentum_correction_an_element_that_waits_gains_momentum() -> None:
    """Lin et al., section 3.1: what is sent at last is what momentum SGD would have moved it by, over all its steps."""
    compressor, m = TopK(flat(1, 2), 0.5, momentum=0.5), 0.5
    states = [compressor.start(torch.zeros(2))]
    small = []
    for _ in range(3):
        ((total, state),) = exchange(compressor, torch.tensor([[9.0, 1.0]]), states)
        states = [state]
        small.append(float(total[1]))
    assert small == [0.0, 0.0, 0.0]
    assert float(states[0]["residual"][1]) == 1 + (1 + m) + (1 + m + m * m)
    ((total, state),) = exchange(compressor, torch.tensor([[0.0, 0.0]]), states)
    assert float(total[1]) == 1 + (1 + m) + (1 + m + m * m) + m * (1 + m + m * m)
    assert [float(state[name][1]) for name in ("residual", "momentum")] == [0.0, 0.0], "factor masking"


WHOLE: dict[str, Compressor] = {
    "topk": TopK(flat(5, 8), 1.0, momentum=0.9),
    "sketch": Sketch(flat(5, 8), 1.0, momentum=0.9),
    "sketch, central": Sketch(flat(5, 8), 1.0, momentum=0.9, is_central=True),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_where_all_travels_factor_masking_cancels_the_momentum(world: int, name: str) -> None:
    """Lin et al., section 5.3. Of a sketch all elements are candidates then, and are looked at exactly."""
    compressor = WHOLE[name]
    states = None
    for step in range(3):
        vectors = random(world, 40, seed=step)
        done = exchange(compressor, vectors, states)
        states = [state for _, state in done]
        for total, state in done:
            torch.testing.assert_close(total, vectors.sum(0))
            assert not state["momentum"].any()


def test_a_merge_keeps_the_largest_and_gives_back_the_rest() -> None:
    residual = torch.zeros(10)
    mine = torch.tensor([1, 4, 6]), torch.tensor([3.0, -1.0, 2.0])
    other = torch.tensor([4, 6, 9]), torch.tensor([-1.5, -2.0, 2.5])
    places, values = merge(mine, other, 3, residual)
    assert (places.tolist(), values.tolist()) == ([1, 4, 9], [3.0, -2.5, 2.5])
    assert residual.tolist() == [0] * 10, "6 cancelled out: nothing to give back"
    places, values = merge(mine, other, 2, residual)
    assert (places.tolist(), values.tolist()) == ([1, 4], [3.0, -2.5])
    assert residual.tolist() == [0] * 9 + [2.5]


@pytest.mark.parametrize("nodes", ["aabb", "abab", "aaab", "abc", "a", "aaa"])
def test_between_nodes_less_travels_than_within(nodes: str) -> None:
    layout = flat(40, 50)
    compressor = HierarchicalTopK(layout, 0.01, nodes)
    group = fake_group(len(nodes))
    vectors = random(len(nodes), 2000)
    between = [0] * len(nodes)

    def play(rank: int) -> None:
        line = group[rank].start_messages

        def counted(received, sent):
            far = [one for other, one in sent if nodes[other] != nodes[rank]]
            between[rank] += sum(one.numel() * one.element_size() for one in far)
            return line(received, sent)

        group[rank].start_messages = counted
        compressor.compress(group[rank], vectors[rank].clone(), compressor.start(vectors[0]), 0)

    on_ranks(len(nodes), play)
    assert between == [compressor.bytes_between_nodes(rank, 4) for rank in range(len(nodes))]
    a_dense_sum = 4 * 2000 * 2 * (len(nodes) - 1) / len(nodes)
    assert all(told <= a_dense_sum / 10 for told in between)


# --- bits and thresholds ----------------------------------------------------------------------------------------------


def test_one_bit_tells_two_values_a_column() -> None:
    vectors = torch.tensor([[1.0, 3.0, -2.0, -4.0, -4.0, 5.0, 7.0, 9.0]])
    ((total, state),) = exchange(OneBit(flat(2, 4)), vectors)
    assert total.tolist() == [2.0, 2.0, -3.0, -3.0, -4.0, 7.0, 7.0, 7.0]
    assert state["residual"].tolist() == [-1.0, 1.0, 1.0, -1.0, 0.0, -2.0, 0.0, 2.0]
    assert not state["stripe"].any(), "what was told exactly leaves nothing"


def test_long_columns_take_a_thirtieth() -> None:
    layout = flat(16, 4096)
    dense = 2 * 4 * layout.numel * 3 // 4
    assert OneBit(layout).compressed_bytes(0, 4, 4, 0) < dense / 30


def test_a_threshold_tells_signs_only_and_no_more_than_it_may() -> None:
    ((total, state),) = exchange(Threshold(flat(1, 5), 1.0, most=1.0), torch.tensor([[0.5, -2.5, 1.0, -1.0, 0.0]]))
    assert total.tolist() == [0.0, -1.0, 1.0, -1.0, 0.0]
    assert state["residual"].tolist() == [0.5, -1.5, 0.0, 0.0, 0.0]
    ((total, _),) = exchange(Threshold(flat(1, 5), 1.0, most=0.2), torch.tensor([[0.5, -2.5, 1.0, -1.0, 0.0]]))
    assert total.tolist() == [0.0, -1.0, 0.0, 0.0, 0.0]


# --- low rank ---------------------------------------------------------------------------------------------------------


def test_a_sum_of_low_rank_is_found_and_kept() -> None:
    left, right = random(12, 2), random(2, 9, seed=1)
    vectors = torch.stack([(left @ right).flatten(), (left @ right).flatten() * 2])
    compressor, states = PowerSGD(flat(12, 9), 2), None
    for _ in range(2):
        done = exchange(compressor, vectors, states)
        states = [state for _, state in done]
        torch.testing.assert_close(done[0][0], vectors.sum(0), rtol=1e-4, atol=1e-4)


def test_a_warm_start_finds_what_is_largest() -> None:
    matrix = random(30, 20) + 20 * torch.outer(random(30, seed=1), random(20, seed=2))
    compressor, states, errors = PowerSGD(flat(30, 20), 1), None, []
    for _ in range(4):
        ((total, state),) = exchange(compressor, matrix.flatten()[None], states)
        errors.append(float((total - matrix.flatten()).norm()))
        states = [{"residual": torch.zeros_like(state["residual"]), "q": state["q"]}]
    best = float(torch.linalg.svdvals(matrix)[1:].norm())
    assert errors[-1] < 1.01 * best
    assert errors[-1] <= errors[0]


# --- sketches ---------------------------------------------------------------------------------------------------------


def test_a_sketch_is_linear() -> None:
    sketch = CountSketch(500, 5, 40, seed=3)
    left, right = random(500).double(), random(500, seed=1).double()
    torch.testing.assert_close(sketch.of(left) + 2 * sketch.of(right), sketch.of(left + 2 * right))
    again = CountSketch(500, 5, 40, seed=3)
    assert torch.equal(sketch.of(left), again.of(left)), "the seed alone says which tables"
    assert not torch.equal(sketch.of(left), CountSketch(500, 5, 40, seed=4).of(left))


def test_a_sketch_in_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    vector = random(1000)
    whole = CountSketch(1000, 3, 50, seed=0)
    table = whole.of(vector)
    estimates = whole.estimate(table)
    monkeypatch.setattr("rubato.strategies.sketch._BLOCK", 77)
    torch.testing.assert_close(whole.of(vector), table, rtol=1e-5, atol=1e-5)
    assert torch.equal(whole.estimate(table), estimates)


def test_hashes_are_even_and_signs_are_balanced() -> None:
    count, columns = 100_000, 50
    ones = CountSketch(count, 5, columns, seed=1)
    for row in range(5):
        places, signs = ones._hash(row, 0, torch.empty(count))
        counts = torch.bincount(places, minlength=columns)
        assert counts.min() > 0.9 * count / columns
        assert counts.max() < 1.1 * count / columns
        assert abs(float(signs.mean())) < 0.02


DENSITIES = (0.0002, 0.001, 0.003, 0.01, 0.02, 0.05)


def test_heavy_elements_are_recalled() -> None:
    """As measured for the design: a sketch of 5 % of the elements, and a second look at four times as many."""
    numel, heavy = 200_000, 200
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(8, numel, generator=generator)
    places = torch.randperm(numel, generator=generator)[:heavy]
    vectors[:, places] += 10 * torch.sign(torch.randn(heavy, generator=generator))
    sketch = CountSketch(numel, 5, numel // 20 // 5, seed=0)
    total = torch.stack([sketch.of(one) for one in vectors]).sum(0)
    found = largest(sketch.estimate(total).abs(), 4 * heavy)
    truth = largest(vectors.sum(0).abs(), heavy)
    assert torch.isin(truth, found).double().mean() > 0.9


@pytest.mark.parametrize("has_noise", [True, False])
@pytest.mark.parametrize(
    ("numel", "density", "seeds"),
    [
        *((10_000, density, 20) for density in DENSITIES),
        *((100_000, density, 4) for density in DENSITIES),
        *((1_000_000, density, 1) for density in (0.001, 0.05)),
    ],
)
def test_a_sketch_of_columns_auto_applies_the_heavy_elements(
    numel: int, density: float, seeds: int, has_noise: bool
) -> None:
    """95 of 100, as the docstrings say: up to the density at which the table is as large as it may be."""
    heavy, recalled = count_of(density, numel), 0.0
    for seed in range(seeds):
        vector = (planted if has_noise else alone)(numel, heavy, seed)
        ((applied, _),) = exchange(Sketch(flat(1, numel), density, seed=seed), vector[None])
        truth = largest(vector.abs(), heavy)
        assert int(applied.count_nonzero()) <= heavy
        recalled += float(applied[truth].count_nonzero()) / heavy / seeds
    assert recalled >= 0.95


@given(numel=st.integers(1, 10**9), density=st.floats(1e-6, 1), rows=st.integers(1, MAX_ROWS))
def test_the_table_of_columns_auto_is_no_more_than_half_of_all(numel: int, density: float, rows: int) -> None:
    columns = columns_for(count_of(density, numel), numel, rows)
    assert columns >= 1
    assert rows * (columns - 1) <= numel / 2
    assert rows * columns >= min(numel / 2, numel / 16 + 16 * count_of(density, numel))
