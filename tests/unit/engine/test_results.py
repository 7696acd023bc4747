from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.header import Header, Leaving
from rubato.engine.reduction import Reduced
from rubato.engine.results import Completed, pack_result, result_bytes, unpack_result

CPU = torch.device("cpu")


def header(generation: int, num_microbatches: int) -> Header:
    slots = tuple((float(leaf), 1.0) for leaf in range(num_microbatches))
    return Header(1, generation, 3, 4, 4, Leaving.PAUSE, 5, is_finite=False, digest=-6, compute_ns=7, slots=slots)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=5),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(1, 20),
    st.binary(max_size=40),
)
def test_a_reduction_survives_the_wire(
    sizes: list[int], dtype: torch.dtype, num_microbatches: int, integers: bytes
) -> None:
    chunks = tuple(torch.randn(size).to(dtype) for size in sizes)
    headers = tuple(header(rank, num_microbatches) for rank in range(len(sizes)))
    completed = Completed((3, 0), Reduced(chunks, headers, integers))
    data = pack_result(completed)
    assert data.dtype == torch.uint8
    assert data.numel() == result_bytes(completed)
    told = unpack_result(data, dtype, CPU)
    assert isinstance(told, Reduced)
    assert torch.equal(torch.cat(told.chunks), torch.cat(chunks))
    assert told.headers == headers
    assert told.integers == integers
    # What was told can be told on, by one who was told himself.
    assert torch.equal(pack_result(Completed((3, 0), told)), data)


@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_an_evaluation_survives_the_wire(values: list[float]) -> None:
    table = torch.tensor(values, dtype=torch.float64)
    completed = Completed((3, 2), table)
    data = pack_result(completed)
    assert data.numel() == result_bytes(completed)
    told = unpack_result(data, torch.float32, CPU)
    assert isinstance(told, torch.Tensor)
    assert told.numpy().tobytes() == table.numpy().tobytes()


def test_what_was_not_seen_has_no_bytes() -> None:
    assert result_bytes(Completed((3, 0), None)) == 0


@pytest.mark.parametrize("kind", ["reduction", "table"])
def test_a_result_is_copied_once(kind: str) -> None:
    """Into the message; what is told uses that, and nothing of the source."""
    source = torch.ones(4, dtype=torch.float64)
    result = source if kind == "table" else Reduced((source,), (header(1, 2),), b"")
    data = pack_result(Completed((3, 0), result))
    told = unpack_result(data, torch.float64, CPU)
    source.zero_()
    vector = told if isinstance(told, torch.Tensor) else told.chunks[0]
    assert vector.tolist() == [1.0] * 4
    begin, end = data.data_ptr(), data.data_ptr() + data.numel()
    assert (begin <= vector.data_ptr() < end) == (kind == "reduction")
    assert data.numel() % 64 == 0
    behind = torch.cat([torch.zeros(64, dtype=torch.uint8), pack_result(Completed((3, 0), result), b"x" * 64)])[128:]
    again = unpack_result(behind, torch.float64, CPU)
    assert (again if isinstance(again, torch.Tensor) else again.chunks[0]).tolist() == [0.0] * 4
