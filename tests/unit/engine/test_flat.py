from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rubato.engine.flat import FlatLayout
from rubato.engine.state import buffers_of
from rubato.errors import ModelError

INF = float("inf")


def layout_of(model: nn.Module) -> FlatLayout:
    return FlatLayout(list(model.named_parameters()), buffers_of({"": model}))


def before(flat: FlatLayout) -> list[torch.Tensor]:
    return [buffer.now.clone() for buffer in flat.float_buffers]


class Odd(nn.Module):
    """Widths that divide by nothing, a frozen layer, and a layer that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 5)
        self.frozen.requires_grad_(False)
        self.used = nn.Linear(5, 7)
        self.unused = nn.Linear(7, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(self.frozen(x)).sum()  # type: ignore[no-any-return]


def test_every_piece_begins_at_64_bytes() -> None:
    flat = layout_of(nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)))
    assert all(piece.start % 16 == 0 for piece in (*flat.pieces, flat.flags))
    assert flat.length % 16 == 0
    ends = [piece.start + piece.numel for piece in flat.pieces]
    assert all(end <= after.start for end, after in zip(ends, [*flat.pieces[1:], flat.flags], strict=True))
    assert len(flat.float_buffers) == 2
    assert [buffer.now.dtype for buffer in flat.other_buffers] == [torch.int64]


def test_gradients_come_back_as_they_were_packed() -> None:
    model = Odd()
    flat = layout_of(model)
    model(torch.ones(2, 3)).backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.used.named_parameters() if parameter.grad is not None
    }
    vector = flat.empty()
    flat.pack(vector, [], 1.0)
    assert all(parameter.grad is None for parameter in model.parameters())
    flat.deliver(vector, [])
    for name, parameter in model.used.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected[name])
        assert parameter.grad.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()


def test_what_no_microbatch_used_has_no_gradient() -> None:
    model = Odd()
    flat = layout_of(model)
    total = flat.empty()
    for use in (False, True, False):
        out = model.used(torch.ones(1, 5))
        (model.unused(out) if use else out).sum().backward()
        vector = torch.full_like(flat.empty(), 9.0)  # what an earlier step left behind
        flat.pack(vector, [], 1.0)
        total += vector
    flat.deliver(total, [])
    assert model.unused.weight.grad is not None
    assert float(model.unused.weight.grad.abs().sum()) > 0
    assert model.frozen.weight.grad is None
    model.zero_grad()
    model(torch.ones(1, 3)).backward()
    vector = torch.full_like(total, 9.0)
    flat.pack(vector, [], 1.0)
    flat.deliver(vector, [])
    assert model.used.weight.grad is not None
    assert model.unused.weight.grad is None
    assert model.unused.bias.grad is None


def test_a_skipped_step_has_no_gradients() -> None:
    model = Odd()
    flat = layout_of(model)
    model(torch.ones(1, 3)).backward()
    vector = flat.empty()
    flat.pack(vector, [], 1.0)
    flat.deliver(vector, [], skip=True)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_gradients_have_the_type_of_their_parameter(dtype: torch.dtype) -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3, dtype=dtype), "b": nn.Linear(3, 3)})
    flat = layout_of(model)
    assert flat.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = []
    for index, parameter in enumerate(model.parameters()):
        parameter.grad = (torch.arange(1.0, parameter.numel() + 1) / (index + 3)).to(parameter.dtype).view_as(parameter)
        expected.append(parameter.grad.clone())
    vector = flat.empty()
    flat.pack(vector, [], 1.0)
    flat.deliver(vector, [])
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype
        assert torch.equal(parameter.grad, gradient)


def test_sparse_gradients_become_dense() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    flat = layout_of(table)
    table(torch.tensor([1, 1, 4])).sum().backward()
    vector = flat.empty()
    flat.pack(vector, [], 1.0)
    flat.deliver(vector, [])
    assert table.weight.grad is not None
    assert table.weight.grad.layout is torch.strided
    assert table.weight.grad.sum(1).tolist() == [0, 6, 0, 0, 3, 0, 0, 0, 0, 0]


def test_gradients_in_another_memory_format_keep_their_places() -> None:
    layer = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    flat = layout_of(layer)
    layer(torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)).square().sum().backward()
    assert layer.weight.grad is not None
    expected = layer.weight.grad.clone()
    vector = flat.empty()
    flat.pack(vector, [], 1.0)
    flat.deliver(vector, [])
    assert torch.equal(layer.weight.grad, expected)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("limits", torch.tensor([INF, -INF, 1.0, 2.0]))
        self.register_buffer("coarse", torch.tensor([3.0], dtype=torch.bfloat16), persistent=False)
        self.register_buffer("empty", torch.zeros(0))


def test_buffers_move_by_their_weighted_mean_change() -> None:
    model = Counting()
    flat = layout_of(model)
    start = before(flat)
    total = flat.empty()
    for share, change in ((1.0, 4.0), (0.5, 1.0)):
        for buffer, old in zip(flat.float_buffers, start, strict=True):
            buffer.put(old)
        model.get_buffer("limits")[3] += change
        model.get_buffer("coarse")[0] += change
        model.weight.grad = torch.ones(2)
        vector = flat.empty()
        flat.pack(vector, start, share)
        total += vector
    total[: flat.flags.start] /= 1.5
    flat.deliver(total, start)
    assert model.get_buffer("limits").tolist() == [INF, -INF, 1.0, 5.0]
    assert model.get_buffer("coarse").tolist() == [6.0]
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [1.0, 1.0]


def test_what_is_not_finite_on_purpose_stays_and_a_first_real_value_takes_its_place() -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("lowest", torch.tensor([INF, INF, float("nan"), 0.0]))
    flat = layout_of(model)
    start, total = before(flat), flat.empty()
    for lowest in (3.0, 5.0):
        model.get_buffer("lowest").copy_(start[0])
        model.get_buffer("lowest")[0] = lowest
        model(torch.ones(1, 1)).sum().backward()
        vector = flat.empty()
        flat.pack(vector, start, 1.0)
        total += vector
    total[: flat.flags.start] /= 2
    flat.deliver(total, start)
    expected = torch.tensor([4.0, INF, float("nan"), 0.0])
    torch.testing.assert_close(model.get_buffer("lowest"), expected, rtol=0, atol=0, equal_nan=True)
    assert torch.isfinite(total[: flat.gradients]).all()


def test_a_buffer_of_double_precision_keeps_it() -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("total", torch.tensor(1.0 + 2**-40, dtype=torch.float64))
    flat = layout_of(model)
    start, vector = before(flat), flat.empty()
    model.get_buffer("total").add_(2**-45)
    model(torch.ones(1, 1)).sum().backward()
    flat.pack(vector, start, 1.0)
    flat.deliver(vector, start)
    assert vector.dtype == torch.float64
    assert float(model.get_buffer("total")) == 1.0 + 2**-40 + 2**-45
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32


def test_batch_norm_follows_its_own_arithmetic() -> None:
    """One microbatch alone: the running statistics are what the layer says, up to one rounding."""
    layer = nn.BatchNorm1d(7)
    flat = layout_of(layer)
    start = before(flat)
    layer(torch.randn(5, 7)).sum().backward()
    said = before(flat)
    vector = flat.empty()
    flat.pack(vector, start, 1.0)
    flat.deliver(vector, start)
    for buffer, expected in zip(flat.float_buffers, said, strict=True):
        torch.testing.assert_close(buffer.now, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_adding_in_place_gives_the_bits_of_a_vector_that_is_added(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(5, 33), nn.BatchNorm1d(33), nn.Linear(33, 3)).to(dtype)
    model.register_buffer("limit", torch.tensor([INF, 1.0]))
    flat = layout_of(model)
    start = before(flat)

    def compute(seed: int) -> None:
        x = torch.randn(7, 5, generator=torch.Generator().manual_seed(seed)).to(dtype)
        model(x).square().sum().backward()
        model.get_buffer("limit")[1] += seed
        if seed == 2:
            model[2].weight.grad = None

    def packed(vector: torch.Tensor, seed: int, *, adds: bool) -> torch.Tensor:
        with torch.no_grad():
            for buffer, old in zip(flat.float_buffers, start, strict=True):
                buffer.put(old)
        compute(seed)
        flat.pack(vector, start, 1.0, adds=adds)
        return vector

    for first, second in ((1, 2), (2, 1), (1, 3)):
        apart = packed(flat.empty(), first, adds=False).add_(packed(flat.empty(), second, adds=False))
        added = packed(packed(flat.empty(), first, adds=False), second, adds=True)
        assert added.numpy().tobytes() == apart.numpy().tobytes()


def test_a_share_counts_gradients_but_not_flags() -> None:
    model = nn.Linear(2, 1, bias=False)
    flat = layout_of(model)
    for share, gradient, expected in ((0.5, 4.0, 2.0), (1.0, 4.0, 4.0), (0.0, 4.0, 0.0), (0.0, float("nan"), 0.0)):
        model.weight.grad = torch.full((1, 2), gradient)
        vector = flat.empty()
        flat.pack(vector, [], share)
        assert vector[:2].tolist() == [expected, expected]
        assert vector[flat.flags.start] == 1.0


class Bare(nn.Module):
    def __init__(self, *parameters: torch.Tensor, **buffers: torch.Tensor) -> None:
        super().__init__()
        for index, tensor in enumerate(parameters):
            self.register_parameter(f"p{index}", nn.Parameter(tensor, requires_grad=tensor.dtype != torch.int64))
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (lambda: Bare(torch.zeros(2, dtype=torch.complex64)), "p0 is complex.*view_as_real"),
        (lambda: Bare(torch.zeros(2), b=torch.zeros(2, dtype=torch.complex64)), "b is complex"),
        (lambda: Bare(torch.zeros(2), b=torch.eye(2).to_sparse()), "b has layout torch.sparse_coo.*dense"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "no parameter that requires a gradient"),
        (nn.ReLU, "nothing to train"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: Any, advice: str) -> None:
    with pytest.raises(ModelError, match=advice):
        layout_of(model())


def test_the_loss_may_come_through_any_function() -> None:
    """A gradient that is an expanded view (of a sum) is packed element by element."""
    model = nn.Linear(3, 2)
    flat = layout_of(model)
    F.linear(torch.ones(1, 3), model.weight).sum().backward()
    vector = flat.empty()
    flat.pack(vector, [], 1.0)
    assert vector[:6].tolist() == [1.0] * 6
    flat.deliver(vector, [])
    assert model.bias.grad is None
