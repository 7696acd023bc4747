"""What of a profile needs no program."""

from __future__ import annotations

import pytest
import torch

from rubato import profiling
from rubato.planner.methods import merges
from rubato.profiling import CODECS, MERGED, Crowd, Stopwatch, codecs, spread_of
from rubato.strategies.compressor import Compressor, Piecewise
from rubato.strategies.gtopk import GlobalTopK
from rubato.strategies.layout import Layout, layout_of
from rubato.strategies.peers import Collectives
from rubato.strategies.selection import pack
from rubato.strategies.topk import TopK
from rubato.wire.aggregation import CompressionSpec


def layout(side: int) -> Layout:
    return layout_of(side * side, [("matrix", 0, (side, side))])


@pytest.mark.parametrize("method", ["topk", "gtopk"])
def test_a_crowd_tells_lists_that_are_merged(method: str) -> None:
    """Every other one tells an element of 1 at a place of its own."""
    compressor = TopK(layout(8), 1 / 64) if method == "topk" else GlobalTopK(layout(8), 1 / 64)
    device = torch.device("cpu")
    lists = [pack(torch.tensor([rank]), torch.tensor([1.0 + rank])) for rank in range(MERGED)]
    vector = torch.zeros(64)
    vector[0] = 1.0
    total, _ = compressor.exchange(Crowd(lists, device), vector, compressor.start(vector), 0)
    if method == "topk":
        assert total[:MERGED].tolist() == [1.0, 2.0, 3.0, 4.0]
    else:
        assert total.nonzero().flatten().tolist() == [2], "ranks 1 and 2 tell this one, and the largest stays"
        assert merges(method, MERGED) == 2


def test_how_far_times_are_spread_is_not_a_matter_of_one_outlier() -> None:
    times = torch.randn(1001, generator=torch.Generator().manual_seed(1)) * 0.1 + 1.0
    assert spread_of(times.tolist()) == pytest.approx(0.1, rel=0.1)
    assert spread_of([1.0, 1.0, 1.0, 9.0]) == 0.0
    assert spread_of([0.0, 0.0]) == 0.0


def test_activations_have_the_types_in_which_they_come_by() -> None:
    """With autocast a layer takes what it is given, and gives bfloat16."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 2)))
    watch = Stopwatch({"net": model}, torch.device("cpu"))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(5, 3))
    assert watch.types == {"net": (4, 2), "net.0": (4, 2), "net.1": (2, 2), "net.1.1": (2, 2)}
    assert watch.around["net.1"] == (5 * 4, 5 * 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codecs_are_measured_in_the_type_of_the_vector(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    seen: set[torch.dtype] = set()

    def exchange_s(compressor: Compressor, comm: Collectives, vector: torch.Tensor) -> float:
        total, _ = compressor.exchange(comm, vector, compressor.start(vector), 0)
        seen.update((vector.dtype, total.dtype))
        return 1.0

    monkeypatch.setattr(profiling, "_exchange_s", exchange_s)
    codecs(layout(8), CompressionSpec(), 0, torch.empty(64, dtype=dtype))
    assert seen == {dtype}


def test_codecs_are_those_of_a_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that counts what is told tells the density: of one's own list, and of each that is merged."""
    sizes: list[int] = []

    def exchange_s(compressor: Compressor, comm: Collectives, vector: torch.Tensor) -> float:
        compressor.exchange(comm, vector, compressor.start(vector), 0)
        assert isinstance(compressor, Piecewise)
        sizes.append(compressor.compressed_bytes(0, 2, vector.element_size(), 0) or 0)
        return float(sizes[-1] * comm.world)

    monkeypatch.setattr(profiling, "_exchange_s", exchange_s)
    for density in (0.01, 0.25):
        spec = CompressionSpec("topk", density=density)
        codec_s, merge_s = codecs(layout(64), spec, 0, torch.empty(64 * 64))
        assert codec_s.keys() == set(CODECS)
        assert codec_s["topk"] == pytest.approx(8 * density, rel=0.01)
        assert merge_s == {
            method: pytest.approx(codec_s[method] * (MERGED - 1) / merges(method, MERGED))
            for method in ("topk", "gtopk")
        }
