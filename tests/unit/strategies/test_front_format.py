"""What travels of the layers before a cut: ranks are threads over real gloo, and sums are made by hand."""

from __future__ import annotations

import pytest
import torch
from groups import gloo_group, on_ranks

from rubato.engine.comm import Communicator
from rubato.strategies.front_format import change_bytes, pack_change, sum_rounded, unpack_change
from rubato.strategies.sizes import cut
from rubato.wire.local_updates import FrontFormat


def vectors_of(world: int, numel: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """With a last element that bfloat16 does not have."""
    vectors = [torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(world)]
    return [torch.cat([one, one.new_tensor([301.0 + rank])]) for rank, one in enumerate(vectors)]


def summed(vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    def act(rank: int) -> torch.Tensor:
        comm: Communicator = group[rank]
        return sum_rounded(comm, vectors[rank])

    with gloo_group(len(vectors)) as group:
        return on_ranks(len(vectors), act)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("world", "numel"), [(2, 5), (3, 64), (4, 2)], ids=str)
def test_a_sum_is_made_of_rounded_vectors_and_told_rounded(world: int, numel: int, dtype: torch.dtype) -> None:
    """Of its own stretch each adds what it has in full digits."""
    vectors = vectors_of(world, numel, dtype)
    expected = []
    for owner, (low, high) in enumerate(cut(numel, world)):
        total = torch.zeros(high - low, dtype=dtype)
        for rank, vector in enumerate(vectors):
            part = vector[low:high]
            total += part if rank == owner else part.bfloat16().to(dtype)
        expected.append(total.bfloat16().to(dtype))
    found = summed(vectors)
    assert all(one.numpy().tobytes() == found[0].numpy().tobytes() for one in found), "also of whose stretch it is"
    assert torch.equal(found[0][:-1], torch.cat(expected))
    assert float(found[0][-1]) == sum(301.0 + rank for rank in range(world)), "is not rounded"


def test_what_is_not_finite_arrives_with_all() -> None:
    vectors = vectors_of(3, 6, torch.float32)
    vectors[1][0], vectors[2][5] = float("nan"), float("inf")
    for one in summed(vectors):
        assert one[0].isnan()
        assert one[5] == float("inf")
        assert one[1:5].isfinite().all()


def test_weights_come_as_far_as_told_however_large_they_are() -> None:
    """A change that bfloat16 has arrives in full, where the weight itself would lose it."""
    beginning = torch.tensor([[1024.0, -3.0], [1e-6, 0.0]])
    now = beginning + torch.tensor([[0.25, -0.5], [0.0, 3.0]])
    told = pack_change(now, beginning, "bf16")
    assert told.nbytes == change_bytes(now, "bf16") == 8
    assert torch.equal(unpack_change(told.view(torch.uint8), beginning, "bf16"), now)
    assert now.bfloat16()[0, 0] == beginning[0, 0]


def test_of_a_change_at_most_a_256th_is_lost() -> None:
    generator = torch.Generator().manual_seed(0)
    beginning = torch.randn(4096, generator=generator, dtype=torch.float64)
    change = torch.randn(4096, generator=generator, dtype=torch.float64) * 1e-3
    packed = pack_change(beginning + change, beginning, "bf16").view(torch.uint8)
    lost = (unpack_change(packed, beginning, "bf16") - beginning - change).abs() / change.abs()
    assert 1 / 1024 < float(lost.max()) <= 1 / 256


@pytest.mark.parametrize(
    ("chosen", "dtype"),
    [("none", torch.float32), ("none", torch.float64), ("bf16", torch.bfloat16), ("bf16", torch.float16)],
    ids=str,
)
def test_otherwise_weights_arrive_as_they_are(chosen: FrontFormat, dtype: torch.dtype) -> None:
    beginning, now = torch.zeros(2, 3, dtype=dtype), torch.linspace(-1, 7, 6).to(dtype).view(3, 2).t()
    packed = pack_change(now, beginning, chosen)
    assert packed.nbytes == change_bytes(now, chosen) == 6 * dtype.itemsize
    assert torch.equal(unpack_change(packed.view(torch.uint8), beginning, chosen), now)


def test_rounded_values_of_what_optimizers_keep_would_never_decay() -> None:
    """Why these travel as they are: a mean of squares that loses a thousandth a round."""
    kept, rounded, changed = torch.ones(1), torch.ones(1), torch.ones(1)
    for _ in range(100):
        kept = kept * 0.999
        rounded = (rounded * 0.999).bfloat16().float()
        changed = unpack_change(pack_change(changed * 0.999, changed, "bf16").view(torch.uint8), changed, "bf16")
    assert float(kept) < 0.91
    assert rounded == 1.0
    assert float(changed) == pytest.approx(float(kept), rel=1e-3)
    before = torch.tensor([1.013])
    assert unpack_change(pack_change(torch.tensor([1e-6]), before, "bf16").view(torch.uint8), before, "bf16") < 0
