"""What goes over a cut in fewer bytes: how far off it arrives, and how many bytes it takes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.strategies.cut_format import FORMATS, empty_packed, pack, unpack
from rubato.strategies.sizes import cut_bytes, cut_format
from rubato.wire.local_updates import CutFormat

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = st.lists(st.integers(1, 5), min_size=0, max_size=4).map(torch.Size)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape, dtype = draw(SHAPES), draw(st.sampled_from(DTYPES))
    numbers = st.floats(-60000, 60000, width=16)
    listed = draw(st.lists(numbers, min_size=shape.numel(), max_size=shape.numel()))
    return torch.tensor(listed, dtype=torch.float64).view(shape).to(dtype)


def travelled(tensor: torch.Tensor, used: CutFormat) -> torch.Tensor:
    packed = pack(tensor, used)
    room = empty_packed(tensor.shape, tensor.dtype, used)
    assert (room.shape, room.dtype) == (packed.shape, packed.dtype)
    return unpack(room.copy_(packed), tensor.shape, tensor.dtype, used)


@given(tensors(), st.sampled_from(FORMATS))
def test_it_has_its_shape_and_type_again_and_is_no_further_off_than_told(tensor: torch.Tensor, used: CutFormat) -> None:
    came = travelled(tensor, used)
    assert (came.shape, came.dtype) == (tensor.shape, tensor.dtype)
    before, after = tensor.double(), came.double()
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(tensor.dtype, 2**-22) * before.abs()
    if used == "none":
        assert torch.equal(after, before)
    elif used == "bf16":
        assert bool(((after - before).abs() <= before.abs() / 256 + 1e-30).all())
    else:
        rows = before.view(tensor.shape[0] if tensor.dim() else 1, -1)
        most = rows.abs().amax(1, keepdim=True).expand_as(rows).reshape(tensor.shape)
        assert bool(((after - before).abs() <= (most / 254) * (1 + 1e-6) + rounding + 1e-7).all())


@given(tensors(), st.sampled_from(FORMATS), st.booleans())
def test_it_takes_the_bytes_that_are_predicted(tensor: torch.Tensor, chosen: CutFormat, goes_in: bool) -> None:
    used = cut_format(chosen, tensor.dtype.itemsize, goes_in=goes_in)
    packed = pack(tensor, used)
    samples = tensor.shape[0] if tensor.dim() else 1
    elements = tensor.numel() // samples
    assert packed.numel() * packed.itemsize == cut_bytes(used, samples, elements, tensor.dtype.itemsize)
    assert packed.numel() * packed.itemsize <= max(tensor.numel() * tensor.itemsize, tensor.numel() + 4 * samples)


@pytest.mark.parametrize("used", ["bf16", "int8"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_seen_on_the_other_side(used: CutFormat, bad: float) -> None:
    came = travelled(torch.tensor([[1.0, bad, 2.0], [1.0, 0.0, 2.0]]), used)
    assert not came[0].isfinite().all()
    assert came[1].isfinite().all()


def test_zeros_stay_zeros() -> None:
    assert torch.equal(travelled(torch.zeros(3, 4), "int8"), torch.zeros(3, 4))
