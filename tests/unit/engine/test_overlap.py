"""Gradients that are exchanged while a backward pass goes on, against those that are packed when it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from groups import fake_group, on_ranks
from torch import nn

from rubato.checkpoint.layout import raw_bytes
from rubato.data.order import BatchPlan
from rubato.engine import flat as flat_module
from rubato.engine.exchange import Exchange
from rubato.engine.flat import FlatLayout
from rubato.engine.header import Header, Leaving, header_bytes
from rubato.engine.overlap import Ahead, Overlap, _sum_of_bits
from rubato.engine.reduction import Reduction
from rubato.engine.state import buffers_of
from rubato.engine.sums import Sums
from rubato.engine.tree import Node, Tree
from rubato.errors import GenerationLost

V, BATCH = 4, 32


class Counted(Ahead):
    """Counts what is let go, and sends nothing."""

    def __init__(self) -> None:
        self.count = 0

    def let(self) -> None:
        self.count += 1


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_module, "BUCKET_BYTES", 256)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 9), nn.Linear(9, 2))


def layout(model: nn.Module) -> FlatLayout:
    return FlatLayout(list(model.named_parameters()), buffers_of({"": model}))


def numbers(leaf: int) -> torch.Tensor:
    return torch.randn(BATCH // V, 7, generator=torch.Generator().manual_seed(leaf))


def play(
    lefts: list[list[torch.Tensor]],
    share: float,
    spoil: Callable[[nn.Module], Any] = lambda model: None,
    *,
    is_watched: bool = False,
) -> tuple[bool, torch.Tensor, Counted, FlatLayout, nn.Module]:
    """One overlapped pass; whether it was right, and its vector."""
    model = network()
    flat, ahead = layout(model), Counted()
    overlap = Overlap(flat, lefts, flat.empty(), ahead, is_watched=is_watched)
    before = [buffer.now.clone() for buffer in flat.float_buffers]
    overlap.begin_backward(share)
    model(numbers(0)).square().sum().backward()
    overlap.end_backward()
    spoil(model)
    return overlap.end(share, before), overlap.total, ahead, flat, model


def packed(model: nn.Module, flat: FlatLayout, share: float) -> torch.Tensor:
    fresh = network()
    vector, before = flat.empty(), [buffer.clone() for buffer in fresh.buffers() if buffer.is_floating_point()]
    flat.pack(vector, before, share)
    return vector


@pytest.mark.parametrize("share", [1.0, 0.375, 0.0])
@pytest.mark.parametrize("is_watched", [False, True])
def test_the_vector_is_that_of_a_pass_that_is_packed_and_added_up(share: float, is_watched: bool) -> None:
    length = layout(network()).length
    lefts = [[torch.randn(length)], [torch.randn(length), torch.randn(length)]]
    is_right, total, ahead, flat, model = play(lefts, share, is_watched=is_watched)
    assert is_right
    expected = packed(model, flat, share)
    expected = lefts[0][0] + expected
    expected = (lefts[1][0] + lefts[1][1]) + expected
    for piece in (*flat.pieces, flat.flags):  # what lies between them is nobody's
        assert torch.equal(total[piece.start :][: piece.numel], expected[piece.start :][: piece.numel])
    assert ahead.count == len(flat.buckets) - 1 > 3


def test_buckets_go_while_the_pass_computes() -> None:
    model = network()
    flat, ahead, seen = layout(model), Counted(), []
    model[0].weight.register_hook(lambda gradient: seen.append(ahead.count))
    overlap = Overlap(flat, [], flat.empty(), ahead, is_watched=False)
    overlap.begin_backward(1.0)
    model(numbers(0)).square().sum().backward()
    assert 0 < seen[0] < len(flat.buckets) - 1


def again(model: nn.Module) -> None:
    model(numbers(1)).sum().backward()


def scale(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(0.5)


def replace_one(model: nn.Module) -> None:
    first = next(model.parameters())
    assert first.grad is not None
    first.grad = first.grad.clone()


def drop_one(model: nn.Module) -> None:
    next(model.parameters()).grad = None


def hidden(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.clamp_(-0.01, 0.01)


@pytest.mark.parametrize("spoil", [again, scale, replace_one, drop_one])
@pytest.mark.parametrize("is_watched", [False, True])
def test_gradients_that_change_after_they_were_sent_are_noticed(
    spoil: Callable[[nn.Module], Any], is_watched: bool
) -> None:
    is_right, *_ = play([], 1.0, spoil, is_watched=is_watched)
    assert not is_right


def test_changes_that_autograd_does_not_see_are_noticed_where_bits_are_watched() -> None:
    assert not play([], 1.0, hidden, is_watched=True)[0]


def test_a_parameter_without_gradient_holds_up_its_bucket_until_the_end() -> None:
    model = network()
    flat, ahead = layout(model), Counted()
    overlap = Overlap(flat, [], flat.empty(), ahead, is_watched=False)
    before = [buffer.now.clone() for buffer in flat.float_buffers]
    overlap.begin_backward(1.0)
    model[:4](numbers(0)).square().sum().backward()  # not the last layer, which is exchanged first
    overlap.end_backward()
    assert ahead.count == 0
    assert overlap.end(1.0, before)
    assert ahead.count == len(flat.buckets) - 1
    assert overlap.total[flat.flags.start :][: flat.flags.numel].tolist() == [1.0] * 6 + [0.0] * 2


# --- over the members -------------------------------------------------------------------------------------------------


class Worker:
    """One rank: its replica, sums and exchange."""

    def __init__(self, comm: Any, rank: int, world: int, computing: int) -> None:
        self.model = network()
        self.flat = layout(self.model)
        self.rank, self.owners = rank, tuple(leaf * computing // V for leaf in range(V))
        self.sums = Sums(Tree.of(V), self.flat, BatchPlan(1000, BATCH, V, 0))
        like = torch.empty(self.flat.length)
        self.exchange = Exchange(
            comm, like, header_bytes(V), 0, torch.device("cpu"), self.flat.gradients, self.flat.buckets
        )

    def step(self, step: int, spoil: Callable[[nn.Module], Any], *, overlaps: bool) -> torch.Tensor:
        before = [buffer.now.clone() for buffer in self.flat.float_buffers]
        mine = [leaf for leaf in range(V) if self.owners[leaf] == self.rank]
        for leaf in mine:
            for buffer, start in zip(self.flat.float_buffers, before, strict=True):
                buffer.put(start)
            if overlaps and leaf == mine[-1] and self.sums.may_overlap:
                reduction = self.exchange.begin(Tree.of(V), range(V), self.owners, (1, 1, step))
                self.sums.overlap(step, range(leaf, leaf + 1), reduction)
            loss = self.model(numbers(10 * step + leaf)).square().sum()
            self.sums.begin_backward(step, BATCH / V)
            loss.backward()
            self.sums.end_backward()
            spoil(self.model)
            assert self.sums.take(step, range(leaf, leaf + 1), BATCH / V, before)
        if overlaps and not mine:
            self.sums.relay(self.exchange.begin(Tree.of(V), range(V), self.owners, (1, 1, step)))
            assert self.sums.is_begun
        begun, was_wrong = self.sums.take_begun()
        slots = tuple((1.0, 8.0) if leaf in mine else (0.0, 0.0) for leaf in range(V))
        header = Header(1, 1, step, 1, 1, Leaving.NO, 0, True, None, 0, slots, again=was_wrong)
        result = self.exchange.reduce(self.sums.of(step), self.owners, header, b"", begun)
        for buffer, start in zip(self.flat.float_buffers, before, strict=True):
            buffer.put(start)
        self.sums.deliver(step, result, float(BATCH))
        return self.sums.mean.clone()


def train(
    world: int, spoil: Callable[[nn.Module], Any], overlaps: Callable[[int], bool], computing: int | None = None
) -> list[list[torch.Tensor]]:
    """Args:    computing: so many have microbatches; None: all."""
    group = fake_group(world)
    workers = [Worker(group[rank] if world > 1 else None, rank, world, computing or world) for rank in range(world)]

    def play(rank: int) -> list[torch.Tensor]:
        worker = workers[rank]
        return [worker.step(step, spoil, overlaps=overlaps(rank)) for step in range(4)]

    return on_ranks(world, play)


@pytest.mark.parametrize("spoil", [lambda model: None, again, scale, hidden], ids=["none", "again", "scale", "hidden"])
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("who", ["all", "rank 1"])
def test_the_bits_are_those_of_one_worker_whoever_overlaps(
    spoil: Callable[[nn.Module], Any], world: int, who: str
) -> None:
    (alone,) = train(1, spoil, lambda rank: False)
    for means in train(world, spoil, lambda rank: who == "all" or rank == 1):
        for mean, expected in zip(means, alone, strict=True):
            assert torch.equal(mean, expected)


@pytest.mark.parametrize("spoil", [lambda model: None, again], ids=["none", "again"])
@pytest.mark.parametrize("overlapping", [{2}, {0, 1}, {0, 1, 2}, {1, 2}])
def test_who_has_no_microbatch_takes_part_at_once_or_at_the_end(
    spoil: Callable[[nn.Module], Any], overlapping: set[int]
) -> None:
    (alone,) = train(1, spoil, lambda rank: False)
    for means in train(3, spoil, lambda rank: rank in overlapping, computing=2):
        for mean, expected in zip(means, alone, strict=True):
            assert torch.equal(mean, expected)


def test_a_member_that_is_lost_beside_the_pass_is_told_when_it_is_over() -> None:
    group = fake_group(2)
    worker = Worker(group[0], 0, 2, 2)
    group[1].bury()
    with pytest.raises(GenerationLost):
        worker.step(0, lambda model: None, overlaps=True)
    held = worker.sums.of(0)
    assert held.held == {0, 1}
    assert list(held.nodes) == [(1, 0)]


def test_a_reduction_that_is_given_up_leaves_no_thread() -> None:
    model = network()
    flat = layout(model)
    sums = Sums(Tree.of(V), flat, BatchPlan(1000, BATCH, V, 0))
    group = fake_group(2)
    exchange = Exchange(group[0], torch.empty(flat.length), header_bytes(V), 0, torch.device("cpu"))
    sums.overlap(0, range(1), exchange.begin(Tree.of(V), range(V), (0, 1, 1, 1), (1, 1, 0)))
    assert "exchange" in {thread.name for thread in threading.enumerate()}
    sums.abandon()
    assert "exchange" not in {thread.name for thread in threading.enumerate()}


def test_ahead_tells_what_went_wrong_when_it_is_asked() -> None:
    class Broken(Reduction):
        def __init__(self) -> None: ...

        def next(self, nodes: Mapping[Node, torch.Tensor]) -> None:
            raise GenerationLost("a peer was lost")

    ahead = Ahead(Broken(), {})
    ahead.let()
    ahead.let()
    with pytest.raises(GenerationLost, match="a peer"):
        ahead.join()


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_sum_of_bits_shows_a_flipped_one(dtype: torch.dtype, offset: int) -> None:
    for size in range(1, 12):
        tensor = torch.randn(size + offset, dtype=torch.float64).to(dtype)[offset:]
        before = _sum_of_bits(tensor)
        for byte in range(size * tensor.element_size()):
            raw_bytes(tensor)[byte] ^= 4
            assert _sum_of_bits(tensor) != before
            raw_bytes(tensor)[byte] ^= 4
            assert _sum_of_bits(tensor) == before


def test_the_sum_of_bits_takes_any_layout() -> None:
    image = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    before = _sum_of_bits(image)
    image[1, 2, 3, 4] += 1
    assert _sum_of_bits(image) != before
