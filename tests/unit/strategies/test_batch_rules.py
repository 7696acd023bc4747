from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.strategies.batch_rules import Noise, efficiency, gain, keep_of, warmed


def seen(noise_scale: float, steps: int = 400, small: int = 4, count: int = 8, numel: int = 200) -> Noise:
    """Estimates from samples whose gradients scatter with a variance of noise_scale * |G|^2 in all."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.ones(numel, dtype=torch.float64)
    noise = Noise()
    for _ in range(steps):
        scatter = torch.randn(count, numel, generator=generator, dtype=torch.float64)
        microbatches = mean + scatter * (noise_scale / small) ** 0.5
        sqrs = (microbatches**2).sum(1).tolist()
        noise = noise.after(sqrs, float((microbatches.mean(0) ** 2).sum()), small, small * count, keep=0.99)
    return noise


@pytest.mark.parametrize("noise_scale", [1.0, 30.0, 300.0])
def test_the_noise_scale_is_found(noise_scale: float) -> None:
    assert seen(noise_scale).scale == pytest.approx(noise_scale, rel=0.1)


def test_one_microbatch_tells_nothing() -> None:
    assert Noise().after([3.0], 3.0, 8, 8, keep=0.9) == Noise()
    assert Noise().scale is None


def test_the_first_step_counts_whole() -> None:
    first = Noise().after([2.0, 4.0], 2.0, 1, 2, keep=0.999)
    assert (first.gradient_sqr, first.variance) == pytest.approx((1.0, 2.0))


def test_an_estimate_forgets_by_samples_and_not_by_steps() -> None:
    assert keep_of(200, 100) == pytest.approx(keep_of(100, 100) ** 2)


@given(st.integers(1, 10_000), st.integers(1, 10_000), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_adascale_lies_between_nothing_and_linear(batch: int, base: int, variance: float, sqr: float) -> None:
    found = gain("adascale", batch, base, Noise(sqr, variance, 1.0))
    low, high = sorted((1.0, batch / base))
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


def test_gains() -> None:
    assert [gain(rule, 400, 100) for rule in ("none", "linear", "sqrt", "adascale")] == [1.0, 4.0, 2.0, 1.0]
    assert gain("adascale", 400, 100, Noise(1.0, 1e9, 1.0)) == pytest.approx(4.0, rel=1e-3)
    assert gain("adascale", 400, 100, Noise(1.0, 0.0, 1.0)) == 1.0


def test_adascale_takes_the_variance_in_the_batch_that_the_rate_was_chosen_for() -> None:
    """Of a sample 100, so of a batch of 100 as much as the gradient's square, 1: (1 + 1) / (1 / 4 + 1)."""
    assert gain("adascale", 400, 100, Noise(1.0, 100.0, 1.0)) == pytest.approx(1.6)


def test_where_noise_hides_the_gradient_a_batch_is_worth_all_its_samples() -> None:
    """The estimate of |G|^2 goes to and fro about 0 then; the learning rate must not."""
    above, below = (gain("adascale", 256, 64, Noise(sqr, 6400.0, 1.0)) for sqr in (1e-3, -1e-3))
    assert (above, below) == pytest.approx((4.0, 4.0), rel=1e-3)
    assert Noise(-1e-3, 6400.0, 1.0).scale is None


def test_a_change_is_warmed_up() -> None:
    assert [warmed(1.0, 3.0, step, 4) for step in (0, 1, 2, 4, 9)] == [1.0, 1.5, 2.0, 3.0, 3.0]
    assert warmed(1.0, 3.0, 0, 0) == 3.0


def test_a_sample_is_worth_less_in_a_batch_beyond_the_noise() -> None:
    assert efficiency(100, 100, 50) == 1.0
    assert efficiency(1_000, 100, 1e9) == pytest.approx(1.0, abs=1e-5)
    assert efficiency(1_000, 100, 0.0) == pytest.approx(0.1)
