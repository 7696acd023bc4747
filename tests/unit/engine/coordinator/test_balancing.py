"""Microbatches go away from slow workers, come back, and do not flap."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.engine.coordinator import Wish
from rubato.engine.coordinator.balancing import Pace, decide_owners
from rubato.engine.coordinator.changes import MOST_JOINS
from rubato.engine.coordinator.owners import SLACK, decide_first_owners, shares_for
from rubato.engine.coordinator.roster import WorkerView
from rubato.engine.tree import Tree, balanced_owners
from rubato.wire.status import WorkerState
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9


def window(times: list[float], owners: tuple[int, ...], *, noise: float = 0.0, steps: int = 20) -> list[Pace]:
    """Steps in which each rank takes so many milliseconds for a microbatch, give or take."""
    dice = random.Random(1)
    counts = [owners.count(rank) for rank in range(len(times))]
    return [
        tuple(
            (int(time * 1e6 * count * dice.uniform(1 - noise, 1 + noise)), count)
            for time, count in zip(times, counts, strict=True)
        )
        for _ in range(steps)
    ]


@given(st.lists(st.floats(0.5, 20.0), min_size=1, max_size=8), st.integers(0, 40))
def test_shares_are_whole_and_nearly_the_best_possible(times: list[float], more: int) -> None:
    count = len(times) + more
    shares = shares_for(times, count)
    assert sum(shares) == count
    assert min(shares) >= 1
    possible = sorted(time * number for time in times for number in range(1, count + 1))
    best = next(
        limit for limit in possible if limit >= max(times) and sum(int(limit / time + 1e-9) for time in times) >= count
    )
    assert max(time * share for time, share in zip(times, shares, strict=True)) <= SLACK * best * (1 + 1e-9)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_equal_workers_keep_aligned_runs(world: int) -> None:
    assert shares_for([1.0] * world, 16) == (16 // world,) * world


def test_runs_are_aligned_where_that_costs_next_to_nothing() -> None:
    shares = shares_for([1.0, 3.0], 8)
    assert shares == (6, 2)
    tree = Tree.of(8)
    assert [len(tree.frontier(range(6), range(8))), len(tree.frontier(range(6, 8), range(8)))] == [2, 1]


def test_a_slow_worker_gives_microbatches_away() -> None:
    owners = balanced_owners(8, 2)
    found = decide_owners(window([10, 30], owners, noise=0.1), owners)
    assert found is not None
    assert found.owners == (0, 0, 0, 0, 0, 0, 1, 1)
    assert found.gain == pytest.approx(0.5, abs=0.1)


def test_they_come_back_when_it_is_fast_again() -> None:
    owners = (0, 0, 0, 0, 0, 0, 1, 1)
    found = decide_owners(window([10, 10], owners, noise=0.1), owners)
    assert found is not None
    assert found.owners == balanced_owners(8, 2)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("noise", [0.0, 0.2, 0.5])
def test_noise_moves_nothing(world: int, noise: float) -> None:
    owners = balanced_owners(24, world)
    assert decide_owners(window([10.0] * world, owners, noise=noise), owners) is None


def test_a_few_slow_steps_move_nothing() -> None:
    owners = balanced_owners(8, 2)
    steps = window([10, 10], owners, steps=14) + window([10, 40], owners, steps=6)
    assert decide_owners(steps, owners) is None


def test_what_cannot_be_told_moves_nothing() -> None:
    owners = balanced_owners(8, 2)
    assert decide_owners([], owners) is None
    assert decide_owners([((5, 8),)] * 20, (0,) * 8) is None
    assert decide_owners([((0, 4), (0, 4))] * 20, owners) is None


@pytest.mark.parametrize("seed", range(5))
def test_owners_follow_the_pace_of_the_workers(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS)
    cluster.run(lambda: cluster.is_settled and cluster.coordinator.job.step > 3)
    slow = cluster.living[1]
    cluster.slowness[slow.incarnation] = 3.0
    cluster.run(lambda: any(event.kind == "rebalanced" for event in cluster.events), limit=100_000)
    (event,) = [one for one in cluster.events if one.kind == "rebalanced"]
    assert event.message.startswith(f"w{slow.incarnation} takes ")
    assert "2 of its 4 microbatches go to w" in event.message
    record = cluster.coordinator.job.current
    assert record is not None
    assert (record.cause, record.world) == ("rebalance", 2)
    assert [record.owners.count(rank) for rank in (0, 1)] == [6, 2]
    assert cluster.coordinator.observed().scalings == 0
    assert not cluster.revokes
    cluster.run(lambda: sorted(one.microbatches or 0 for one in cluster.coordinator.workers()) == [2, 6])
    reports = {one.rank: one for one in cluster.coordinator.workers()}
    assert reports[1].microbatches == 2
    fast, late = reports[0].microbatch_seconds, reports[1].microbatch_seconds
    assert fast == pytest.approx(0.010, rel=0.1)
    assert late == pytest.approx(0.030, rel=0.1)
    assert {one.memory_bytes for one in reports.values()} == {2**30}
    assert all(one.silent_seconds is not None and one.silent_seconds < 2 for one in reports.values())
    cluster.slowness.clear()
    cluster.run(lambda: len([one for one in cluster.events if one.kind == "rebalanced"]) == 2, limit=200_000)
    record = cluster.coordinator.job.current
    assert record is not None
    assert record.owners == balanced_owners(8, 2)


def train_slowly(cluster: Cluster) -> None:
    """The last of them takes three times as long from now on."""
    cluster.run(lambda: cluster.coordinator.job.step > 3)
    cluster.slowness[[worker for worker in cluster.living if worker.record is not None][-1].incarnation] = 3.0


def test_also_where_a_worker_has_no_slot() -> None:
    """Fewer train than were wished for, perhaps for days: that is no reason to wait for the slowest of them."""
    cluster = Cluster(random.Random(1), workers=3, slots=2, total_steps=ENDLESS)
    train_slowly(cluster)
    cluster.run(lambda: any(event.kind == "rebalanced" for event in cluster.events), limit=100_000)
    assert cluster.coordinator.job.current is not None
    assert cluster.coordinator.job.current.world == 2


def test_also_where_joins_were_given_up() -> None:
    cluster = Cluster(random.Random(1), workers=2, slots=2, total_steps=ENDLESS)
    train_slowly(cluster)
    for _ in range(MOST_JOINS):
        cluster.coordinator.job.changes.on_failed(cluster.now, joins=True)
    cluster.slots = 3
    cluster.wish = replace(cluster.wish, workers=3)
    cluster.coordinator.job.wish = cluster.wish  # by itself the coordinator would try again
    cluster.run(lambda: any(event.kind == "rebalanced" for event in cluster.events), limit=100_000)
    assert len(cluster.living) == 2


def test_nothing_is_moved_while_others_are_about_to_join() -> None:
    cluster = Cluster(random.Random(1), workers=2, total_steps=ENDLESS)
    train_slowly(cluster)
    balancing = cluster.coordinator._balancing
    joiner = WorkerView("w1.9", "1.9", 9, cluster.now, state=WorkerState.WARMING, pid=1)
    record = cluster.coordinator.job.current
    assert record is not None
    assert not balancing._is_resizing(record)
    cluster.coordinator.job.wish = Wish("run", 3)
    assert not balancing._is_resizing(record), "nobody is there yet"
    cluster.coordinator.job.roster.add(joiner)
    assert balancing._is_resizing(record)


def test_equal_workers_are_left_alone() -> None:
    cluster = Cluster(random.Random(9), workers=3, total_steps=ENDLESS)
    cluster.run(lambda: cluster.coordinator.job.step > 1500, limit=200_000)
    assert [record.cause for record in cluster.minted] == ["start"]


def test_slow_workers_keep_their_share_whoever_comes_and_goes() -> None:
    cluster = Cluster(random.Random(4), workers=2, total_steps=ENDLESS)
    train_slowly(cluster)
    cluster.run(lambda: any(event.kind == "rebalanced" for event in cluster.events), limit=100_000)
    slow = cluster.living[1].incarnation

    def shares() -> dict[str, int]:
        record = cluster.minted[-1]
        return {member.incarnation: record.owners.count(rank) for rank, member in enumerate(record.members)}

    cluster.ask(workers=3)
    cluster.run(lambda: cluster.is_settled and cluster.coordinator.job.number == cluster.minted[-1].number)
    assert cluster.minted[-1].cause == "scale_up"
    assert shares()[slow] == min(shares().values()) < 8 // 3
    cluster.run(lambda: cluster.coordinator.job.step > cluster.coordinator.job.first_step + 3)
    quick = next(one for one in cluster.living if one.incarnation != slow)
    cluster.die(quick)
    cluster.run(lambda: cluster.minted[-1].cause == "recovery")
    assert shares()[slow] == 2, "of 8, with another one that is three times as fast"


@given(
    st.lists(st.one_of(st.none(), st.floats(0.5, 50.0)), min_size=1, max_size=8),
    st.integers(8, 24),
)
def test_without_a_reason_the_first_shares_are_equal(paces: list[float | None], num_microbatches: int) -> None:
    equal = balanced_owners(num_microbatches, len(paces))
    assert decide_first_owners(num_microbatches, paces, ()) == equal
    assert decide_first_owners(num_microbatches, paces, balanced_owners(num_microbatches, 3)) == equal
    uneven = (0,) * (num_microbatches - 1) + (1,)
    found = decide_first_owners(num_microbatches, paces, uneven)
    assert sorted(found) == list(found)
    assert set(found) == set(range(len(paces)))
    if not any(paces):
        assert found == equal
