from __future__ import annotations

import gc
import os
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.data.segment import ALIGNMENT_BYTES, read_segment, write_segment

Pair = namedtuple("Pair", "x y")


def through(thing: Any) -> Any:
    descriptor = write_segment(thing)
    try:
        return read_segment(descriptor)
    finally:
        os.close(descriptor)


DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).to(dtype)
    if draw(st.booleans()):
        tensor = tensor.permute(list(reversed(range(tensor.dim()))))
    if tensor.dim() and draw(st.booleans()):
        tensor = tensor[draw(st.integers(0, 2)) :]
    return tensor


leaves = st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | tensors()
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner), max_leaves=12)


def strides(tensor: torch.Tensor) -> list[int]:
    """Those that say where an element lies: of a dimension with one element any will do."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and strides(left) == strides(right) and torch.equal(left, right)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and all(equal(*pair) for pair in zip(left, right, strict=True))
    return bool(left == right)


@given(trees)
def test_what_is_written_is_read(tree: Any) -> None:
    def dense(thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            whole = thing.storage_offset() == 0 and thing.untyped_storage().nbytes() == thing.nbytes
            return thing if whole else thing.contiguous()
        return type(thing)(map(dense, thing)) if isinstance(thing, (list, tuple)) else thing

    assert equal(through(tree), dense(tree))


def test_tensors_begin_where_torch_would_put_them_and_can_be_written() -> None:
    there = through([torch.ones(3), "x", torch.ones(5, 7).t(), torch.ones(2, dtype=torch.bfloat16)])
    for tensor in (there[0], there[2], there[3]):
        assert tensor.data_ptr() % ALIGNMENT_BYTES == 0
        assert tensor.storage_offset() == 0
        assert not tensor._is_view()
        tensor.add_(1)
    assert there[2].shape == (7, 5)
    assert there[2].stride() == (1, 7)
    assert torch.equal(there[2], torch.full((7, 5), 2.0))


def test_rows_of_a_slice_lie_as_they_did() -> None:
    rows = torch.randn(50, 21)
    part = rows[3:9]
    there = through(part)
    assert torch.equal(there, part)
    assert there.data_ptr() % ALIGNMENT_BYTES == part.data_ptr() % ALIGNMENT_BYTES
    assert there.untyped_storage().nbytes() < 2 * part.nbytes


def test_other_kinds() -> None:
    pair = through(Pair(np.arange(6.0).reshape(2, 3), OrderedDict(a=torch.ones(2, requires_grad=True))))
    assert isinstance(pair, Pair)
    assert np.array_equal(pair.x, np.arange(6.0).reshape(2, 3))
    pair.x[0] = 7
    assert pair.y["a"].requires_grad
    sparse = through(torch.eye(3).to_sparse())
    assert torch.equal(sparse.to_dense(), torch.eye(3))
    same = torch.ones(2)
    first, second = through([same, same])
    assert first is second


def test_what_one_reader_writes_no_other_sees() -> None:
    descriptor = write_segment(torch.zeros(4))
    first, second = read_segment(descriptor), read_segment(descriptor)
    os.close(descriptor)
    first.add_(1)
    assert torch.equal(second, torch.zeros(4))


def test_nothing_stays() -> None:
    def of_ours() -> int:
        gc.collect()
        mapped = Path("/proc/self/maps").read_text().count("memfd:rubato")
        return mapped + len(list(Path("/proc/self/fd").iterdir()))

    before = of_ours()
    there = through([torch.ones(1000), np.ones(1000)])
    assert of_ours() > before
    del there
    assert of_ours() == before
    with pytest.raises(TypeError, match="pickle"):
        write_segment([torch.ones(2), (one for one in ())])
    assert of_ours() == before
