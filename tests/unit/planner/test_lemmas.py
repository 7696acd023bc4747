from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.planner.lemmas import best_workers, efficiency_of, samples_for, servers_for, workers_for


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(1, 2**40))
def test_one_sample_more_would_not_fit(memory_bytes: int, held_bytes: int, sample_bytes: int) -> None:
    samples = int(samples_for(memory_bytes, held_bytes, sample_bytes))
    assert samples == 0 or held_bytes + samples * sample_bytes <= memory_bytes
    assert held_bytes + (samples + 1) * sample_bytes > memory_bytes


def test_samples_that_take_nothing_are_bounded_by_what_is_held() -> None:
    assert (samples_for(10, 10, 0), samples_for(9, 10, 0)) == (inf, 0)


@given(st.floats(0.05, 1.0), st.floats(1e-4, 1.0))
def test_one_worker_more_would_be_one_too_many(efficiency: float, overhead: float) -> None:
    most = int(workers_for(efficiency, overhead))
    assert efficiency_of(most, overhead) >= efficiency - 1e-6
    assert efficiency_of(most + 1, overhead) < efficiency + 1e-6


def test_nothing_lost_is_no_limit() -> None:
    assert workers_for(0.9, 0.0) == inf
    for wrong in (0.0, 1.1):
        with pytest.raises(ValueError, match="above 0 and is at most 1"):
            workers_for(wrong, 0.1)


@given(st.floats(1e6, 1e10), st.integers(1, 64), st.floats(0.01, 10))
def test_one_server_fewer_would_not_hide(model_bytes: float, workers: int, compute_s: float) -> None:
    port = 1.25e9
    servers = servers_for(model_bytes, workers, port, compute_s)
    assert 2 * model_bytes * workers / (servers * port) <= compute_s * (1 + 1e-6)
    assert servers == 1 or 2 * model_bytes * workers / ((servers - 1) * port) > compute_s * (1 - 1e-6)


def test_latency_ends_strong_scaling() -> None:
    assert best_workers(0.8, 0.0, 1e9, 0.25e-3) == pytest.approx(28, abs=0.5), "the example of the design"
    assert best_workers(0.1, 1e9, 1e9, 1e-3) == 1.0, "bandwidth decides whether to begin"
    assert best_workers(0.8, 0.0, 1e9, 0.0) == inf
