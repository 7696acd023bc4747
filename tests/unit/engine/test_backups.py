"""Synchronous updates by a server, with and without backups: ranks are threads over real gloo."""

from __future__ import annotations

import time
from collections.abc import Callable

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


def samples(part: range) -> torch.Tensor:
    """Two of each piece."""
    drawn = [torch.randn(2, 3, generator=torch.Generator().manual_seed(at), dtype=torch.float64) for at in part]
    return torch.cat(drawn)


class Party:
    """One worker with a model of its own."""

    def __init__(self, backups: int) -> None:
        self.model = model_of()
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


def round_over(world: int, backups: int, pause: Callable[[int], float]) -> tuple[list[Party], list[tuple[int, int]]]:
    """A round with rank 0 as the server; and (rank, ticket) of all that was computed."""
    parties = [Party(backups) for _ in range(world)]
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


def test_one_worker_makes_the_same_updates() -> None:
    party = Party(backups=1)
    pieces = party.pieces(0)
    assert len(pieces) == UPDATES
    for ticket in party.backed.alone(0, len(pieces)):
        party.compute(ticket, pieces[ticket])
        party.backed.take(party.push)
    party.backed.close()
    for one, other in zip(party.model.parameters(), by_hand().parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_short_update_has_fewer_pieces() -> None:
    party = Party(backups=0)
    updates = [range(PIECES), range(PIECES, 2 * PIECES)]
    sizes = [1] * PIECES + [1, 0, 0, 0, 0, 0]
    pieces = party.backed.pieces(updates, 3, lambda part: sum(sizes[part.start : part.stop]))
    assert pieces == [range(2), range(2, 4), range(4, 6), range(6, 8)]
