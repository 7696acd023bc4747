from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.data import randomness

pytestmark = pytest.mark.usefixtures("generators")


def draw() -> tuple[float, float, float, float, float]:
    # gauss and normal keep half of what they draw for the next call: seeding must drop that too
    return (
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.normal()),
        float(torch.randn(1)),
    )


def test_the_key_alone_decides_every_generator() -> None:
    randomness.seed_all(1, 5, 2)
    first = draw()
    draw()
    randomness.seed_all(1, 5, 2)
    assert draw() == first


def test_other_keys_give_other_numbers_in_every_generator() -> None:
    keys: list[tuple[int | str, ...]] = [(), (1,), ("1",), (1, 2), (12,), ("update", 1), (1, "update"), ("1, 2",)]
    draws = []
    for seed in (0, 1, 2**63 - 1):
        for key in keys:
            randomness.seed_all(seed, *key)
            draws.append(draw())
    for generator in zip(*draws, strict=True):
        assert len(set(generator)) == len(draws)


@given(st.integers(0, 2**63 - 1), st.lists(st.integers(-(2**70), 2**70) | st.text(), max_size=4))
def test_any_key_is_accepted(seed: int, key: list[int | str]) -> None:
    randomness.seed_all(seed, *key)


def test_restore_goes_back_to_where_capture_was() -> None:
    randomness.seed_all(4)
    draw()
    state = randomness.capture()
    expected = [draw() for _ in range(3)]
    randomness.seed_all(9)
    for _ in range(2):
        randomness.restore(state)
        assert [draw() for _ in range(3)] == expected
