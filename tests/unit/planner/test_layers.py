"""Of a model with more layers than a profile holds neighbours are one."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.planner.layers import merged
from rubato.planner.profile import Layer, Profile
from rubato.planner.separated import cut_of


def layers_of(*names: str) -> list[Layer]:
    """Each with a matrix and a bias."""
    return [
        Layer(name, ((4, 3), (4,)), 1e-3 * number, 2e-3 * number, 10 + number, 20 + number, 2, 8)
        for number, name in enumerate(names, 1)
    ]


BLOCKS = [f"blocks.{block}.{part}" for block in range(6) for part in "qkv"]


@pytest.mark.parametrize(
    ("names", "most", "told"),
    [
        (["a", "b"], 2, ["a", "b"]),
        (["embed", *BLOCKS, "head"], 8, ["embed", *[f"blocks.{block}.q to v" for block in range(6)], "head"]),
        (["embed", *BLOCKS, "head"], 5, ["embed", "blocks.0 to 1", "blocks.2 to 3", "blocks.4 to 5", "head"]),
        ([str(number) for number in range(10)], 4, ["0 to 2", "3 to 5", "6 to 8", "9"]),
        (["front.0", "front.1", "back.0", "back.1"], 2, ["front.0 to 1", "back.0 to 1"]),
        (["front.0", "front.1", "back.0", "back.1"], 1, ["front to back"]),
    ],
)
def test_neighbours_within_a_module_become_one(names: list[str], most: int, told: list[str]) -> None:
    assert [one.name for one in merged(layers_of(*names), most)] == told


def test_one_of_several_has_what_they_have() -> None:
    first, second = merged(layers_of("front.0", "front.1", "back"), 2)
    assert first.shapes == ((4, 3), (4, 3), (8,)), "matrices are compressed one by one, all else is not"
    assert (first.forward_s, first.backward_s) == (pytest.approx(3e-3), pytest.approx(6e-3))
    assert (first.inputs, first.outputs, first.input_bytes, first.output_bytes) == (11, 22, 2, 8)
    assert [second] == layers_of("front.0", "front.1", "back")[2:]


@given(
    st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), min_size=1, unique=True),
    st.integers(1, 12),
)
def test_no_more_are_left_and_nothing_is_lost(names: list[str], most: int) -> None:
    layers = layers_of(*names)
    found = merged(layers, most)
    assert len(found) <= most
    assert sum(one.parameters for one in found) == sum(one.parameters for one in layers)
    assert sum(one.backward_s for one in found) == pytest.approx(sum(one.backward_s for one in layers))
    matrices = [shape for one in found for shape in one.shapes if len(shape) > 1]
    assert len(matrices) == len(layers)
    assert found == tuple(layers) or len(layers) > most


def test_a_module_is_separated_as_before_or_not_found() -> None:
    """Never a part of it."""
    layers = layers_of("embed", *BLOCKS, "head")
    for most in range(1, len(layers)):
        profile = Profile(merged(layers, most))
        for path in ("head", "blocks", "blocks.3", "blocks.3.q"):
            cut = cut_of(profile, path)
            behind = [one for one in layers if f"{one.name}.".startswith(f"{path}.")]
            if cut is not None:
                assert sum(one.parameters for one in cut.back) == sum(one.parameters for one in behind)
                shapes = [shape for one in cut.back for shape in one.shapes]
                assert sum(map(prod, shapes)) == 16 * len(behind)
