"""Workers are vectors that drift; ranks are threads where they exchange."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from groups import fake_group, on_ranks
from hypothesis import given
from hypothesis import strategies as st

from rubato.strategies.local_updates import Outer, Rounds, Shared

NUMEL = 24
PLAIN = Outer(lr=1.0, momentum=0.0, is_nesterov=False)


def drift(rank: int, step: int) -> torch.Tensor:
    """What an inner step changes."""
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(100 * rank + step), dtype=torch.float64)


def train(world: int, steps: int, rounds: Rounds, outer: Outer) -> tuple[list[torch.Tensor], list[Shared]]:
    """The workers' own weights, and what they take for shared."""
    start = torch.ones(NUMEL, dtype=torch.float64)
    group = fake_group(world)

    def one(rank: int) -> tuple[torch.Tensor, Shared]:
        own, shared = start.clone(), Shared(start, rounds, outer)
        under_way: dict[int, torch.Tensor] = {}
        for step in range(steps):
            own += drift(rank, step)
            begins, ends = rounds.begins_after(step), rounds.ends_after(step)
            if begins is not None:
                under_way[begins] = shared.mean(group[rank], shared.distance(begins, own))
            if ends is not None and ends in under_way:
                shared.take(ends, under_way.pop(ends), own)
        return own, shared

    done = on_ranks(world, one)
    for _, shared in done:
        assert torch.equal(shared.weights, done[0][1].weights), "shared by all, bit by bit"
    return [own for own, _ in done], [shared for _, shared in done]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_after_every_step_it_is_the_mean_of_the_weights(world: int) -> None:
    own, _ = train(world, 4, Rounds(1), PLAIN)
    expected = torch.ones(NUMEL, dtype=torch.float64)
    for step in range(4):
        expected += torch.stack([drift(rank, step) for rank in range(world)]).mean(0)
    for one in own:
        torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_without_delay_and_mixing_each_fragment_is_plain(fragments: int) -> None:
    """Fragment f is what it would be in a run that exchanges all whenever f is due."""
    outer, steps = Outer(), 12
    rounds = Rounds(6, fragments)
    _, shared = train(3, steps, rounds, outer)
    for fragment in range(fragments):
        place = shared[0].place(fragment)
        due = [step for step in range(steps) if rounds.ends_after(step) == fragment]
        weights = torch.ones(NUMEL, dtype=torch.float64)
        momentum = torch.zeros_like(weights)
        begin = 0
        for step in due:
            moved = torch.stack([sum(drift(rank, one) for one in range(begin, step + 1)) for rank in range(3)]).mean(0)
            momentum = 0.9 * momentum - moved
            weights = weights - 0.7 * (-moved + 0.9 * momentum)
            begin = step + 1
        torch.testing.assert_close(shared[0].weights[place], weights[place])


def test_the_outer_optimizer_is_torchs() -> None:
    parameter = torch.nn.Parameter(torch.ones(NUMEL, dtype=torch.float64))
    torchs = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    shared = Shared(parameter.detach(), Rounds(1), Outer())
    own = parameter.detach().clone()
    for step in range(5):
        parameter.grad = drift(0, step)
        torchs.step()
        shared.take(0, drift(0, step), own)
        torch.testing.assert_close(shared.weights, parameter.detach())
        assert torch.equal(own, shared.weights)


def test_a_worker_keeps_a_share_of_what_it_did_meanwhile() -> None:
    shared = Shared(torch.zeros(2), Rounds(1, mix=0.25), PLAIN)
    own = torch.tensor([8.0, 4.0])
    shared.take(0, torch.tensor([-4.0, -4.0]), own)
    assert shared.weights.tolist() == [4.0, 4.0]
    assert own.tolist() == [5.0, 4.0]


@given(st.integers(1, 6), st.integers(1, 8), st.data())
def test_fragments_take_turns_and_an_exchange_begins_before_its_end(
    fragments: int, every: int, data: st.DataObject
) -> None:
    rounds = Rounds(fragments * every, fragments, data.draw(st.integers(0, every - 1)))
    steps = range(4 * rounds.sync_every)
    ends = [(step, one) for step in steps if (one := rounds.ends_after(step)) is not None]
    begins = [(step, one) for step in steps if (one := rounds.begins_after(step)) is not None]
    assert [(step + rounds.delay, one) for step, one in begins][: len(ends)] == ends
    for fragment in range(fragments):
        mine = [step for step, one in ends if one == fragment]
        assert {later - earlier for earlier, later in pairwise(mine)} == {rounds.sync_every}
    assert len({one for _, one in ends[:fragments]}) == fragments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sync_every": 10, "fragments": 3}, "must be a multiple of fragments"),
        ({"sync_every": 10, "fragments": 5, "delay": 2}, "must be less than the 2 steps"),
        ({"sync_every": 10, "mix": 1.5}, "must lie in 0..1"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rounds(**options)
