"""Synchronous updates by a server, with and without backups: ranks are threads over real gloo."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
import torch
from groups import gloo_group, on_ranks
from torch import nn

from rubato.engine.backups import Backed, backed_of
from rubato.engine.replicas import Replicas
from rubato.engine.state import TrainingState
from rubato.wire.local_updates import LocalUpdatesSpec
from rubato.wire.spec import BatchSpec, JobSpec, WorkersSpec

pytestmark = pytest.mark.usefixtures("generators")

UPDATES, PIECES = 5, 6
SLOW_S = 0.15


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def normalized(momentum: float | None) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(1)
        norms = nn.BatchNorm1d(3, momentum=momentum), nn.BatchNorm1d(4, momentum=momentum)
        return nn.Sequential(norms[0], nn.Linear(3, 4), nn.Tanh(), norms[1], nn.Linear(4, 1)).double()

    return build


def samples(part: range) -> torch.Tensor:
    """Two of each piece."""
    drawn = [torch.randn(2, 3, generator=torch.Generator().manual_seed(at), dtype=torch.float64) for at in part]
    return torch.cat(drawn)


class Party:
    """One worker with a model of its own."""

    def __init__(self, backups: int, build: Callable[[], nn.Module] = model_of) -> None:
        self.model = build()
        spec = JobSpec(
            name="test",
            entrypoint="main.py:train",
            batch=BatchSpec(2 * UPDATES * PIECES, PIECES),
            workers=WorkersSpec(max=6),
            local_updates=LocalUpdatesSpec("synchronous", UPDATES, backups=backups),
            reproducible=False,
        )
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.state = TrainingState({"": self.model}, {"": optimizer}, {}, {})
        self.replicas = Replicas(spec, self.state)
        backed = backed_of(spec, self.state, self.replicas)
        assert backed is not None
        self.backed: Backed = backed
        self.replicas.begin()
        backed.begin()

    def pieces(self, helpers: int) -> list[range]:
        updates = [range(at * PIECES, (at + 1) * PIECES) for at in range(UPDATES)]
        return self.backed.pieces(updates, helpers, lambda part: 2 * len(part))

    def compute(self, ticket: int, part: range) -> None:
        x = samples(part)
        loss = self.model(x).square().mean()
        loss.backward()
        self.push = self.backed.pack(ticket, float(loss.detach()), float(len(x)))

    def content(self) -> list[bytes]:
        return [one.detach().numpy().tobytes() for one in self.model.state_dict().values()]


def round_over(
    world: int, backups: int, pause: Callable[[int], float], build: Callable[[], nn.Module] = model_of
) -> tuple[list[Party], list[tuple[int, int]]]:
    """A round with rank 0 as the server; and (rank, ticket) of all that was computed."""
    parties = [Party(backups, build) for _ in range(world)]
    computed: list[tuple[int, int]] = []
    with gloo_group(world) as group:

        def act(rank: int) -> None:
            party, helpers = parties[rank], list(range(1, world))
            pieces = party.pieces(len(helpers))
            if rank == 0:
                party.backed.serve(group[0], helpers, len(pieces))
                party.backed.close()
                return
            for ticket in party.backed.tickets(group[rank], 0, rank - 1, len(pieces)):
                party.backed.restore_buffers()
                party.compute(ticket, pieces[ticket])
                computed.append((rank, ticket))
                time.sleep(pause(rank))
                party.backed.send(group[rank], 0, party.push)
            party.backed.go_back()

        on_ranks(world, act)
    return parties, computed


def by_hand() -> nn.Module:
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for at in range(UPDATES):
        optimizer.zero_grad()
        model(samples(range(at * PIECES, (at + 1) * PIECES))).square().mean().backward()
        optimizer.step()
    return model


@pytest.mark.parametrize(("world", "backups"), [(2, 0), (2, 1), (3, 0), (3, 1), (5, 0), (5, 1), (5, 3), (8, 0)])
def test_a_round_is_synchronous_descent_over_all_samples(world: int, backups: int) -> None:
    parties, computed = round_over(world, backups, lambda rank: 0.0)
    for one, other in zip(parties[0].model.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    count = UPDATES * min(PIECES, max(1, world - 1 - backups))
    assert {ticket for _, ticket in computed} == set(range(count))
    if not backups:
        assert len(computed) == count
    assert sum(weight for _, weight in parties[0].backed.told) == 2 * UPDATES * PIECES, "each sample counts once"
    untouched = model_of()
    assert all(
        torch.equal(*pair)
        for party in parties[1:]
        for pair in zip(party.model.parameters(), untouched.parameters(), strict=True)
    )


@pytest.mark.parametrize("slow", [1, 4])
def test_a_slow_worker_is_waited_for_once_and_changes_no_bit(slow: int) -> None:
    even, _ = round_over(5, 1, lambda rank: 0.0)
    uneven, computed = round_over(5, 1, lambda rank: SLOW_S if rank == slow else 0.0)
    assert uneven[0].content() == even[0].content()
    assert sum(rank == slow for rank, _ in computed) < UPDATES, "others have made updates without it"
    assert len({ticket for _, ticket in computed}) < len(computed), "what it still computed was computed by another"


def by_hand_in_pieces(build: Callable[[], nn.Module], cuts: Sequence[Sequence[range]]) -> nn.Module:
    """Updates of these pieces, each normalized by itself; buffers take the mean of what an update's pieces give."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for parts in cuts:
        total = sum(len(part) for part in parts)
        before = {name: one.clone() for name, one in model.named_buffers()}
        means = {name: torch.zeros_like(one, dtype=torch.float64) for name, one in before.items()}
        optimizer.zero_grad()
        for part in parts:
            for name, one in model.named_buffers():
                one.copy_(before[name])
            (model(samples(part)).square().mean() * len(part) / total).backward()
            for name, one in model.named_buffers():
                means[name] += one * len(part) / total
        optimizer.step()
        for name, one in model.named_buffers():
            one.copy_(means[name].round() if one.dtype == torch.int64 else means[name])
    return model


@pytest.mark.parametrize("momentum", [0.1, None], ids=["a moving mean", "the mean of all"])
@pytest.mark.parametrize(("world", "backups"), [(1, 1), (2, 0), (3, 0), (3, 1), (5, 0), (5, 2), (7, 1)])
def test_buffers_advance_with_each_update(world: int, backups: int, momentum: float | None) -> None:
    build = normalized(momentum)
    party = alone(build) if world == 1 else round_over(world, backups, lambda rank: 0.002 * rank, build)[0][0]
    pieces = Party(backups, build).pieces(world - 1)
    cuts = [[part for part in pieces if part.start // PIECES == update] for update in range(UPDATES)]
    assert {len(parts) for parts in cuts} == {max(1, world - 1 - backups)}
    expected = by_hand_in_pieces(build, cuts).state_dict()
    for name, one in party.model.state_dict().items():
        torch.testing.assert_close(one, expected[name], rtol=1e-9, atol=1e-11, msg=name)
    assert party.model.get_buffer("0.num_batches_tracked") == UPDATES
    if momentum == 0.1:  # a moving mean of the mean over an update's samples, whoever computed them
        mean = torch.zeros(3, dtype=torch.float64)
        for update in range(UPDATES):
            mean.lerp_(samples(range(update * PIECES, (update + 1) * PIECES)).mean(0), momentum)
        torch.testing.assert_close(party.model.get_buffer("0.running_mean"), mean, rtol=1e-9, atol=1e-11)


def test_others_have_the_buffers_of_the_beginning_behind_a_round() -> None:
    build = normalized(0.1)
    parties, _ = round_over(4, 0, lambda rank: 0.0, build)
    untouched = Party(0, build).content()
    assert [party.content() == untouched for party in parties] == [False, True, True, True]


def test_a_slow_worker_changes_no_bit_of_buffers() -> None:
    build = normalized(0.1)
    even, _ = round_over(5, 1, lambda rank: 0.0, build)
    uneven, _ = round_over(5, 1, lambda rank: SLOW_S if rank == 2 else 0.0, build)
    assert uneven[0].content() == even[0].content()


def alone(build: Callable[[], nn.Module]) -> Party:
    """Behind a round without others."""
    party = Party(1, build)
    pieces = party.pieces(0)
    assert len(pieces) == UPDATES
    for ticket in party.backed.alone(0, len(pieces)):
        party.compute(ticket, pieces[ticket])
        party.backed.take(party.push)
    party.backed.close()
    return party


def test_one_worker_makes_the_same_updates() -> None:
    party = alone(model_of)
    for one, other in zip(party.model.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_short_update_has_fewer_pieces() -> None:
    party = Party(backups=0)
    updates = [range(PIECES), range(PIECES, 2 * PIECES)]
    sizes = [1] * PIECES + [1, 0, 0, 0, 0, 0]
    pieces = party.backed.pieces(updates, 3, lambda part: sum(sizes[part.start : part.stop]))
    assert pieces == [range(2), range(2, 4), range(4, 6), range(6, 8)]
