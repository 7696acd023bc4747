"""Fragments exchanged in turn: ranks are threads over real gloo; the oracle is the algorithm over a list of workers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from alone import AloneRun, loss_of
from groups import gloo_group, on_ranks
from torch import nn

from rubato.engine.comm import Communicator
from rubato.engine.flat import FlatLayout
from rubato.engine.replicas import Replicas
from rubato.engine.state import TrainingState
from rubato.engine.streaming import Streaming, keeping_of
from rubato.errors import ModelError, ProtocolError
from rubato.strategies.sizes import cut
from rubato.wire.local_updates import LocalUpdatesSpec, OuterSpec
from rubato.wire.spec import BatchSpec, JobSpec, WorkersSpec

pytestmark = pytest.mark.usefixtures("generators")

STEPS = 5


def spec_of(fragments: int, mix: float = 0.0, momentum: float = 0.9, delay: int = 0) -> JobSpec:
    return JobSpec(
        name="test",
        entrypoint="main.py:train",
        batch=BatchSpec(16, 4),
        workers=WorkersSpec(max=4),
        local_updates=LocalUpdatesSpec(
            "streaming_diloco", 2, OuterSpec(0.7, momentum), fragments=fragments, mix=mix, delay=delay
        ),
        reproducible=False,
    )


class Party:
    """One worker with a model of its own."""

    def __init__(self, spec: JobSpec) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.state = TrainingState({"": self.model}, {"": optimizer}, {}, {})
        self.replicas = Replicas(spec, self.state)
        self.flat = FlatLayout(self.state.named_parameters(), [*self.state.buffers, *self.replicas.places])
        streaming = keeping_of(spec)
        assert isinstance(streaming, Streaming)
        self.streaming = streaming
        streaming.prepare(self.flat, None)  # type: ignore[arg-type]
        streaming.begin([0], counts=False)

    def weights(self) -> torch.Tensor:
        """(n,): without what lies between."""
        return torch.cat([one.detach().flatten() for _, one in self.flat.parameters])

    def buffers(self) -> torch.Tensor:
        return torch.cat([one.now.detach().flatten().double() for one in self.flat.float_buffers])

    def shared(self) -> dict[str, torch.Tensor]:
        """What all share, as it is saved."""
        state = self.streaming.state_dict()
        return {name: state[name] for name in ("shared", "momentum")}

    def step(self, comm: Communicator, index: int, way: torch.Tensor, kept: torch.Tensor, share: float) -> None:
        """Go this way, and leave this in the buffers; then exchange."""
        before = [one.now.detach().clone() for one in self.flat.float_buffers]
        if share:
            for (_, one), piece in zip(self.flat.parameters, torch.split(way, self.sizes()), strict=True):
                one.grad = piece.view(one.shape).clone()
            sizes = [one.own.numel() for one in self.flat.float_buffers]
            for place, value in zip(self.flat.float_buffers, torch.split(kept, sizes), strict=True):
                place.put(value.view(place.own.shape).to(place.own.dtype))
        vector = self.flat.empty()
        if share:
            self.flat.pack(vector, before, share)
        for place, value in zip(self.flat.float_buffers, before, strict=True):
            place.put(value)
        self.streaming.weight = share
        total, is_finite = self.streaming.exchange(comm, vector, index, are_finite=True)
        assert is_finite
        self.kept = self.streaming.kept
        own = self.streaming.count(index, follows=False)
        assert own is total
        self.flat.deliver(total / SHARES, before)
        with torch.no_grad():
            for _, one in self.flat.parameters:
                if one.grad is not None:
                    one.sub_(one.grad)
                one.grad = None

    def sizes(self) -> list[int]:
        return [one.numel() for _, one in self.flat.parameters]


SHARES = 1.0
"""Of all workers together: a step is the unit."""


def shares_of(world: int) -> list[float]:
    shares = [[1.0], [0.25, 0.75], [0.5, 0.0, 0.5], [0.1, 0.2, 0.3, 0.4], [0.2, 0.0, 0.1, 0.4, 0.3]]
    return [share * SHARES for share in shares[world - 1]]


def way_of(rank: int, index: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * rank + index), dtype=torch.float64)


def places(party: Party, fragments: int) -> list[torch.Tensor]:
    """By fragment, which of the weights it has."""
    flat, bounds = party.flat, cut(party.flat.gradients, fragments)
    at = torch.cat(
        [torch.arange(piece.start, piece.start + piece.numel) for piece in flat.pieces[: len(party.sizes())]]
    )
    return [(at >= low) & (at < high) for low, high in bounds]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("fragments", "mix", "momentum"), [(1, 0.0, 0.9), (3, 0.0, 0.0), (3, 0.5, 0.9), (7, 0.25, 0.9)]
)
def test_it_is_the_published_algorithm(world: int, fragments: int, mix: float, momentum: float) -> None:
    spec, shares = spec_of(fragments, mix, momentum), shares_of(world)
    parties = [Party(spec) for _ in range(world)]
    size, rest = len(parties[0].weights()), len(parties[0].buffers())
    shared, moved = parties[0].weights(), torch.zeros(size, dtype=torch.float64)
    own = [shared.clone() for _ in range(world)]
    kept = [parties[0].buffers() for _ in range(world)]
    masks = places(parties[0], fragments)
    since = [[0.0] * fragments for _ in range(world)]
    with gloo_group(world) as group:
        for index in range(STEPS):
            values = [way_of(rank + 50, index, rest).abs() for rank in range(world)]

            def act(rank: int, index: int = index, values: Sequence[torch.Tensor] = values) -> None:
                way = way_of(rank, index, size)
                parties[rank].step(group[rank], index, way, values[rank], shares[rank])

            on_ranks(world, act)
            mask = masks[index % fragments]
            for rank, share in enumerate(shares):
                if share:
                    own[rank] = own[rank] - way_of(rank, index, size)
                    kept[rank] = values[rank]
            due = index % fragments
            since = [[before + share for before in mine] for mine, share in zip(since, shares, strict=True)]
            weights = [mine[due] for mine in since]
            for mine in since:
                mine[due] = 0.0
            mean = sum(weight * (shared - one) for weight, one in zip(weights, own, strict=True)) / sum(weights)
            moved = torch.where(mask, momentum * moved + mean, moved)
            direction = mean + momentum * moved
            shared = torch.where(mask, shared - 0.7 * direction, shared)
            own = [torch.where(mask, torch.lerp(shared, one, mix), one) for one in own]
            for rank, party in enumerate(parties):
                torch.testing.assert_close(party.weights(), own[rank], rtol=1e-12, atol=1e-12)
                torch.testing.assert_close(party.buffers(), kept[rank], rtol=1e-6, atol=1e-6)
                away = torch.linalg.vector_norm(torch.where(mask, 0.0, shared - own[rank]))
                assert party.kept == pytest.approx(float(away), abs=1e-9)
        rows = on_settling(parties, group)
    assert all(torch.equal(row, rows[0]) for row in rows)
    mean = sum(share * one for share, one in zip(shares, own, strict=True)) / sum(shares)
    for party in parties:
        torch.testing.assert_close(party.weights(), mean, rtol=1e-12, atol=1e-12)
        assert torch.equal(party.weights(), parties[0].weights())
        assert torch.equal(party.buffers(), parties[0].buffers())
        assert party.streaming.state_dict()["pieces"] == parties[0].streaming.state_dict()["pieces"]
        for name, tensor in party.shared().items():
            assert torch.equal(tensor, parties[0].shared()[name])


class Delayed(Party):
    """One whose step is two replicas, of which the second one has an update to make when the fragment is told."""

    def step_twice(self, comm: Communicator, index: int, share: float, *, is_ahead: bool) -> None:
        """Go `way_of(rank, index)`: the first replica goes 3/2 of it, the second one 1/2, and is told half-way."""
        flat, streaming = self.flat, self.streaming
        way = way_of(comm.rank, index, len(self.weights()))
        before = [one.now.detach().clone() for one in flat.float_buffers]
        vector, told = flat.empty(), [0]
        streaming.weight = share
        self.replicas.begin()
        for times in (1.5, 0.5) if share else ():
            if times == 0.5:
                self.go(times / 2 * way)
                streaming.take_ahead(index, self.replicas, vector, share / 2, share / 4)
                if is_ahead:
                    streaming.send_ahead(comm, lambda: told.append(index))
                self.replicas.go_back()
            self.go(times * way)
            self.replicas.finish()
            piece = flat.empty()
            flat.pack(piece, before, share / 2)
            vector.add_(piece)
        streaming.send_first(comm, vector, index, lambda: told.append(index))
        assert told == [0, index]
        total, is_finite = streaming.exchange(comm, vector, index, are_finite=True)
        assert is_finite
        self.kept = streaming.kept
        assert streaming.count(index, follows=False) is total
        flat.deliver(total / SHARES, before)
        with torch.no_grad():
            for _, one in flat.parameters:
                if one.grad is not None:
                    one.sub_(one.grad)
                one.grad = None

    def go(self, way: torch.Tensor) -> None:
        """The present replica goes this way."""
        with torch.no_grad():
            for (name, one), piece in zip(self.flat.parameters, torch.split(way, self.sizes()), strict=True):
                one.sub_(piece.view(one.shape))
                self.replicas.touched.add(name)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("fragments", "mix", "momentum"), [(1, 0.0, 0.9), (3, 0.0, 0.0), (3, 0.5, 0.9)])
def test_of_what_is_told_before_the_end_the_rest_stays_and_counts_the_next_time(
    world: int, fragments: int, mix: float, momentum: float
) -> None:
    shares = shares_of(world)
    parties = [Delayed(spec_of(fragments, mix, momentum, delay=1)) for _ in range(world)]
    size, masks = len(parties[0].weights()), places(parties[0], fragments)
    shared, moved = parties[0].weights(), torch.zeros(size, dtype=torch.float64)
    own = [shared.clone() for _ in range(world)]
    since = [[0.0] * fragments for _ in range(world)]
    with gloo_group(world) as group:
        for index in range(1, STEPS + 1):

            def act(rank: int, index: int = index) -> None:
                # Whether it goes ahead is up to each: the messages are the same.
                parties[rank].step_twice(group[rank], index, shares[rank], is_ahead=(rank + index) % 2 == 0)

            on_ranks(world, act)
            due = index % fragments
            mask = masks[due]
            ways = [way_of(rank, index, size) if share else torch.zeros(size) for rank, share in enumerate(shares)]
            # 3/2 of the way by half of the samples, 1/4 of it by a quarter.
            told = [one - 13 / 12 * way for one, way in zip(own, ways, strict=True)]
            weights = [mine[due] + 0.75 * share for mine, share in zip(since, shares, strict=True)]
            mean = sum(weight * (shared - one) for weight, one in zip(weights, told, strict=True)) / sum(weights)
            moved = torch.where(mask, momentum * moved + mean, moved)
            shared = torch.where(mask, shared - 0.7 * (mean + momentum * moved), shared)
            ends = [one - way for one, way in zip(own, ways, strict=True)]
            own = [
                torch.where(mask, torch.lerp(shared, then, mix) + end - then, end)
                for then, end in zip(told, ends, strict=True)
            ]
            for mine, share in zip(since, shares, strict=True):
                mine[:] = [before + share for before in mine]
                mine[due] = 0.25 * share
            for rank, party in enumerate(parties):
                torch.testing.assert_close(party.weights(), own[rank], rtol=1e-12, atol=1e-12)
                away = torch.where(mask, ends[rank] - told[rank], shared - own[rank])
                assert party.kept == pytest.approx(float(torch.linalg.vector_norm(away)), abs=1e-9)
        on_settling(parties, group)
    mean = sum(share * one for share, one in zip(shares, own, strict=True)) / sum(shares)
    for party in parties:
        torch.testing.assert_close(party.weights(), mean, rtol=1e-12, atol=1e-12)


def test_an_exchange_under_way_is_over_when_its_generation_is_given_up() -> None:
    party = Delayed(spec_of(1, delay=1))
    party.replicas.begin()
    party.streaming.take_ahead(0, party.replicas, None, 0.0, 1.0)
    with gloo_group(2) as group:
        party.streaming.send_ahead(group[0], lambda: None)  # the other one says nothing
        group[1].bury()
        party.streaming.abandon()
        assert not [one for one in threading.enumerate() if one.name == "fragment"]
    assert party.streaming._heard is None


def test_what_one_has_learned_counts_where_it_has_no_sample_of_the_step_at_which_it_is_told() -> None:
    parties, size = [Party(spec_of(2, momentum=0.0)) for _ in range(2)], len(Party(spec_of(2)).weights())
    start, rest = parties[0].weights(), len(parties[0].buffers())
    ways = [torch.ones(size, dtype=torch.float64), 3 * torch.ones(size, dtype=torch.float64)]
    with gloo_group(2) as group:
        for index, shares in enumerate([(0.5, 0.5), (1.0, 0.0)]):

            def act(rank: int, index: int = index, shares: tuple[float, float] = shares) -> None:
                parties[rank].step(group[rank], index, ways[rank], way_of(9, 9, rest).abs(), shares[rank])

            on_ranks(2, act)
    second = places(parties[0], 2)[1]
    expected = start - 0.7 * (1.5 * 2.0 + 0.5 * 3.0) / 2.0
    for party in parties:
        torch.testing.assert_close(party.weights()[second], expected[second], rtol=1e-12, atol=1e-12)


def test_parameters_that_nobody_trains_stand_still() -> None:
    party = Party(spec_of(1))
    first = party.flat.parameters[0][1]
    with gloo_group(1) as (comm,):
        party.step(comm, 0, way_of(0, 0, len(party.weights())), party.buffers(), 1.0)
        frozen, others = first.detach().clone(), party.weights()
        way = way_of(0, 1, len(party.weights()))
        before = [one.now.detach().clone() for one in party.flat.float_buffers]
        for (_, one), piece in zip(party.flat.parameters[1:], torch.split(way, party.sizes())[1:], strict=True):
            one.grad = piece.view(one.shape).clone()
        vector = party.flat.empty()
        party.flat.pack(vector, before, 1.0)
        party.streaming.weight = 1.0
        total, _ = party.streaming.exchange(comm, vector, 1, are_finite=True)
        party.streaming.count(1, follows=False)
        party.flat.deliver(total, before)
    assert first.grad is None
    with torch.no_grad():
        for _, one in party.flat.parameters[1:]:
            assert one.grad is not None
            one.sub_(one.grad)
    assert torch.equal(first.detach(), frozen)
    assert not torch.equal(party.weights()[first.numel() :], others[first.numel() :])


def test_a_mask_stays_as_it_is() -> None:
    """Of a worker without samples, and where the states are settled."""

    class Masked(Party):
        def __init__(self, spec: JobSpec) -> None:
            super().__init__(spec)
            self.model.register_buffer("mask", torch.tensor([[0.0, float("-inf")]], dtype=torch.float64))
            self.state = TrainingState({"": self.model}, self.state.optimizers, {}, {})
            self.flat = FlatLayout(self.state.named_parameters(), self.state.buffers)
            self.streaming.prepare(self.flat, None)  # type: ignore[arg-type]

    parties = [Masked(spec_of(2)) for _ in range(2)]
    size, kept = len(parties[0].weights()), parties[0].buffers()
    with gloo_group(2) as group:

        def act(rank: int) -> None:
            parties[rank].step(group[rank], 0, way_of(rank, 0, size), kept, [1.0, 0.0][rank])

        on_ranks(2, act)
        for party in parties:
            assert torch.equal(party.buffers(), kept)
        on_settling(parties, group)
    for party in parties:
        assert torch.equal(party.buffers(), kept)


def test_what_is_made_of_ones_own_weights_is_refused() -> None:
    streaming = Party(spec_of(2)).streaming
    streaming.check_registered({"scheduler": object()})
    with pytest.raises(
        ModelError, match=r"'ema' \(Linear\) is no part of what they settle: leave it out, or use diloco"
    ):
        streaming.check_registered({"ema": nn.Linear(2, 2)})


def on_settling(parties: Sequence[Party], group: Sequence[Communicator]) -> list[torch.Tensor]:
    rows: dict[int, torch.Tensor] = {}

    def act(rank: int) -> None:
        streaming = parties[rank].streaming
        assert not streaming.is_settled
        rows[rank] = streaming.settle(group[rank])
        streaming.take(rows[rank])
        assert streaming.is_settled

    on_ranks(len(parties), act)
    return [rows[rank] for rank in range(len(parties))]


def test_who_joins_takes_all_of_it_from_the_settlement() -> None:
    spec = spec_of(3, 0.5)
    parties, joiner = [Party(spec) for _ in range(2)], Party(spec)
    size, rest = len(joiner.weights()), len(joiner.buffers())
    with gloo_group(2) as group:
        for index in range(2):

            def act(rank: int, index: int = index) -> None:
                values = way_of(rank + 50, index, rest).abs()
                parties[rank].step(group[rank], index, way_of(rank, index, size), values, 0.5)

            on_ranks(2, act)
            assert joiner.streaming.count(index, follows=True) is None
        row, _ = on_settling(parties, group)
    assert not joiner.streaming.is_settled
    joiner.streaming.take(row)
    assert torch.equal(joiner.weights(), parties[0].weights())
    assert torch.equal(joiner.buffers(), parties[0].buffers())
    assert joiner.streaming.is_settled
    shared = joiner.streaming.state_dict()["shared"]
    assert torch.equal(shared, parties[0].streaming.state_dict()["shared"])


def test_a_step_that_was_not_exchanged_does_not_count() -> None:
    with pytest.raises(ProtocolError, match="step 3 counts, but this worker has not exchanged it"):
        Party(spec_of(2)).streaming.count(3, follows=False)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_of_a_step_that_is_not_finite_nothing_is_shared(bad: float) -> None:
    party = Party(spec_of(2))
    before = {name: one.clone() for name, one in party.shared().items()}
    with gloo_group(1) as (comm,):
        vector = party.flat.empty()
        vector[0] = bad
        party.streaming.weight = 1.0
        for are_finite in (False, True):
            _, is_finite = party.streaming.exchange(comm, vector, 0, are_finite=are_finite)
            assert not is_finite
            party.streaming.count(0, follows=False)
            assert all(torch.equal(one, before[name]) for name, one in party.shared().items())


def test_what_is_saved_is_gone_on_with_and_another_method_begins_with_the_weights() -> None:
    saved, other = Party(spec_of(3)), Party(spec_of(2))
    state = {name: one + 1.0 for name, one in saved.shared().items()}
    other.streaming.load_state_dict(state)
    other.streaming.resume()
    assert all(torch.equal(one, state[name]) for name, one in other.shared().items())
    fresh = Party(spec_of(2))
    with torch.no_grad():
        for one in fresh.model.parameters():
            one.add_(1.0)
    fresh.streaming.resume()
    assert torch.equal(fresh.streaming.state_dict()["shared"], fresh.streaming._own_weights())
    assert not fresh.streaming.state_dict()["momentum"].any()


# --- as a job sees it -------------------------------------------------------------------------------------------------


def train(local: LocalUpdatesSpec, epochs: int = 4) -> tuple[nn.Module, list[float | None]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    run = AloneRun(batch=16, num_microbatches=2, local_updates=local, reproducible=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    rows: Any = [(torch.full((3,), float(index)) / 32, torch.tensor(float(index % 3))) for index in range(32)]
    run.prepare(model=model, optimizer=optimizer, dataset=rows)
    for step in run.steps(epochs=epochs):
        for x, y in step:
            step.backward(loss_of(model, x, y))
        optimizer.step()
    return model, [row.values["loss"] for row in run.rows]


def test_of_one_fragment_without_mixing_it_is_diloco() -> None:
    plain, losses = train(LocalUpdatesSpec("diloco", 4))
    streamed, others = train(LocalUpdatesSpec("streaming_diloco", 4))
    assert losses == pytest.approx(others, rel=1e-5)
    for one, other in zip(plain.parameters(), streamed.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("delay", [1, 3])
def test_where_the_mean_is_taken_as_it_is_a_delay_changes_nothing_for_one_worker(delay: int) -> None:
    """It shares what it had learned until then, and keeps what it has learned since."""
    outer = OuterSpec(lr=1.0, momentum=0.0)
    plain, losses = train(LocalUpdatesSpec("streaming_diloco", 4, outer, fragments=2))
    delayed, others = train(LocalUpdatesSpec("streaming_diloco", 4, outer, fragments=2, delay=delay))
    assert losses == pytest.approx(others, rel=1e-5)
    for one, other in zip(plain.parameters(), delayed.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("delay", [0, 2])
def test_with_fragments_it_learns(delay: int) -> None:
    _, losses = train(LocalUpdatesSpec("streaming_diloco", 4, fragments=2, mix=0.5, delay=delay), epochs=20)
    assert (losses[-1] or 1.0) < 0.8 * (losses[0] or 0.0)
