"""Drain, kill and stack of single workers: each done once, answered once, and the job as large as before."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rubato.engine.coordinator import Kill, Wish
from rubato.engine.coordinator.actions import MAX_STACKS_CHARS, STACKS_S
from rubato.wire import worker as wire
from rubato.wire.cluster import WorkerAction
from rubato.wire.status import WorkerState
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9


def training(workers: int, *, seed: int = 1, slots: int = 8, **terms: object) -> Cluster:
    """A cluster in which so many train."""
    cluster = Cluster(random.Random(seed), workers=workers, total_steps=ENDLESS, slots=slots, **terms)
    cluster.run(lambda: cluster.coordinator.job.step >= 2 and cluster.is_settled)
    return cluster


def member_ids(cluster: Cluster) -> list[str]:
    record = cluster.coordinator.job.current
    assert record is not None
    return [member.worker_id for member in record.members]


def losses(cluster: Cluster) -> list[str]:
    return [event.message for event in cluster.events if event.kind == "worker.lost"]


@pytest.mark.parametrize("seed", range(10))
def test_a_drained_worker_is_replaced_first_and_then_leaves(seed: int) -> None:
    cluster = training(3, seed=seed)
    before = member_ids(cluster)
    number = cluster.act("drain", before[1])
    cluster.run(lambda: number in cluster.done)
    cluster.run(lambda: cluster.is_settled)
    assert cluster.done[number].state == "done"
    after = member_ids(cluster)
    assert before[1] not in after
    assert len(after) == 3
    assert {before[0], before[2]} < set(after)
    worlds = [record.world for record in cluster.minted]
    assert min(worlds) == 3, "the job was never smaller"
    assert [record.cause for record in cluster.minted][-1] == "replace"
    assert not losses(cluster)
    assert cluster.coordinator.job.scalings == 0


@pytest.mark.parametrize("seed", range(10))
def test_where_no_slot_is_free_it_leaves_first_and_its_slot_serves_the_replacement(seed: int) -> None:
    cluster = training(3, seed=seed, slots=3)
    before = member_ids(cluster)
    number = cluster.act("drain", before[0])
    cluster.run(lambda: number in cluster.done)
    cluster.run(lambda: cluster.is_settled)
    assert cluster.done[number].state == "done"
    assert before[0] not in member_ids(cluster)
    assert len(member_ids(cluster)) == 3
    assert min(record.world for record in cluster.minted) == 2
    assert not losses(cluster)
    assert cluster.coordinator.job.scalings == 0


@pytest.mark.parametrize("seed", range(10))
def test_the_only_worker_waits_for_its_replacement(seed: int) -> None:
    cluster = training(1, seed=seed)
    (before,) = member_ids(cluster)
    number = cluster.act("drain", before)
    cluster.run(lambda: number in cluster.done)
    cluster.run(lambda: cluster.is_settled)
    assert before not in member_ids(cluster)
    assert cluster.coordinator.job.restarts == 0
    assert all(record.origin.kind in ("fresh", "members") for record in cluster.minted)
    assert cluster.coordinator.job.scalings == 0


def assert_it_waits(cluster: Cluster, number: int) -> None:
    """Also twenty steps later nothing has come of an action."""
    step = cluster.coordinator.job.step
    cluster.run(lambda: cluster.coordinator.job.step >= step + 20)
    assert number not in cluster.done


def test_the_only_worker_stays_while_no_slot_is_free() -> None:
    cluster = training(1, slots=1)
    number = cluster.act("drain", member_ids(cluster)[0], within_s=4.0)
    cluster.now += 60.0
    assert_it_waits(cluster, number)
    cluster.slots = 2
    cluster.run(lambda: number in cluster.done)
    assert cluster.done[number].state == "done"


def test_no_fewer_than_the_minimum_unless_there_is_a_hurry() -> None:
    cluster = training(2, slots=2, min_workers=2)
    number = cluster.act("drain", member_ids(cluster)[0])
    assert_it_waits(cluster, number)
    cluster.withdraw(number)
    pressing = cluster.act("drain", member_ids(cluster)[0], within_s=10.0)
    cluster.now += 5.0
    cluster.run(lambda: pressing in cluster.done)
    assert cluster.done[pressing].state == "done"


def test_a_drain_that_comes_to_be_in_a_hurry_does_not_wait_any_more() -> None:
    cluster = training(2, slots=2, min_workers=2)
    number = cluster.act("drain", member_ids(cluster)[0])
    assert_it_waits(cluster, number)
    asked_at = cluster.now
    (action,) = cluster.wish.actions
    cluster.ask(actions=(replace(action, within_s=1000.0),))
    # A later word of the same deadline, and one of a later deadline, give it no more time.
    for passed_s, left_s in ((100.0, 900.0), (200.0, 5000.0)):
        cluster.now = asked_at + passed_s
        cluster.ask(actions=(replace(action, within_s=left_s),))
    cluster.now = asked_at + 490.0
    step = cluster.coordinator.job.step
    cluster.run(lambda: cluster.coordinator.job.step >= step + 20)
    assert cluster.now < asked_at + 500.0
    assert number not in cluster.done, "half of the time is for a replacement to come"
    cluster.now = asked_at + 501.0
    cluster.run(lambda: number in cluster.done)
    assert cluster.done[number].state == "done"
    assert cluster.now < asked_at + 550.0


def test_all_workers_drained_at_once() -> None:
    cluster = training(3, slots=6)
    before = member_ids(cluster)
    numbers = [cluster.act("drain", worker_id) for worker_id in before]
    cluster.run(lambda: all(number in cluster.done for number in numbers))
    cluster.run(lambda: cluster.is_settled)
    assert not set(before) & set(member_ids(cluster))
    assert cluster.coordinator.job.restarts == 0
    assert not losses(cluster)


def test_a_scaling_down_takes_those_that_are_to_leave_anyway() -> None:
    cluster = training(3, slots=3)
    before = member_ids(cluster)
    number = cluster.act("drain", before[0])
    cluster.ask(workers=2)
    cluster.run(lambda: number in cluster.done)
    cluster.run(lambda: cluster.is_settled)
    assert member_ids(cluster) == before[1:]


def test_a_withdrawn_drain_leaves_everything_as_it_is() -> None:
    cluster = training(2, slots=2, min_workers=2)
    before = member_ids(cluster)
    number = cluster.act("drain", before[0])
    cluster.withdraw(number)
    cluster.slots = 8
    step = cluster.coordinator.job.step
    cluster.run(lambda: cluster.coordinator.job.step >= step + 20 and cluster.is_settled)
    assert member_ids(cluster) == before
    assert number not in cluster.done


@pytest.mark.parametrize("withdrawn", [0, 1])
def test_of_two_drains_of_one_worker_the_other_still_counts(withdrawn: int) -> None:
    """A person's, and that of its node."""
    cluster = training(2, slots=2, min_workers=2)
    leaver = member_ids(cluster)[0]
    numbers = [cluster.act("drain", leaver), cluster.act("drain", leaver)]
    assert_it_waits(cluster, numbers[0])
    cluster.withdraw(numbers.pop(withdrawn))
    cluster.slots = 8
    cluster.run(lambda: numbers[0] in cluster.done and leaver not in member_ids(cluster))
    assert cluster.done[numbers[0]].state == "done"


def test_a_second_drain_gives_no_more_time_than_the_first() -> None:
    cluster = training(2, slots=2, min_workers=2)
    leaver = member_ids(cluster)[0]
    pressing = cluster.act("drain", leaver, within_s=10.0)
    calm = cluster.act("drain", leaver)
    cluster.now += 5.0
    cluster.run(lambda: pressing in cluster.done and calm in cluster.done)
    assert (cluster.done[pressing].state, cluster.done[calm].state) == ("done", "done")


def test_a_spare_that_is_drained_is_replaced_too() -> None:
    cluster = training(2, standby_workers=1)
    cluster.run(lambda: cluster.is_as_wished)
    spare = next(one for one in cluster.coordinator.job.roster if one.state is WorkerState.STANDBY)
    number = cluster.act("drain", spare.worker_id)
    cluster.run(lambda: number in cluster.done)
    cluster.run(lambda: cluster.is_as_wished)
    assert cluster.done[number].state == "done"
    assert not losses(cluster)


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_worker_is_an_ordinary_loss(seed: int) -> None:
    cluster = training(3, seed=seed)
    victim = member_ids(cluster)[2]
    number = cluster.act("kill", victim)
    cluster.run(lambda: number in cluster.done)
    cluster.run(lambda: cluster.is_settled)
    assert (cluster.done[number].state, cluster.done[number].message) == ("done", f"{victim} was killed by SIGKILL")
    assert losses(cluster) == [f"{victim} (rank 2) was lost: somebody had it killed"]
    assert len(member_ids(cluster)) == 3


def test_the_same_wish_again_kills_nobody_twice() -> None:
    cluster = training(3)
    cluster.act("kill", member_ids(cluster)[0])
    kills = 0
    for _ in range(3):
        kills += sum(isinstance(order, Kill) for order in cluster.coordinator.handle(cluster.wish, cluster.now))
    assert kills == 0, "the first look ordered it"


@pytest.mark.parametrize("kind", ["drain", "kill", "stack"])
def test_a_worker_that_is_gone_is_answered_as_such(kind: str) -> None:
    cluster = training(2)
    number = cluster.act(kind, "w1.99")
    assert (cluster.done[number].state, cluster.done[number].message) == ("gone", "w1.99 had ended before")


@pytest.mark.parametrize("kind", ["drain", "stack"])
def test_a_worker_that_dies_meanwhile_is_answered_as_gone(kind: str) -> None:
    cluster = training(2, slots=2, min_workers=2)
    victim = member_ids(cluster)[1]
    number = cluster.act(kind, victim)
    cluster.die(cluster.workers[victim.removeprefix("w")])
    cluster.run(lambda: number in cluster.done)
    assert cluster.done[number].state == "gone"
    assert "was killed by SIGKILL before it could" in cluster.done[number].message


def test_a_successor_does_what_its_predecessor_had_not_done() -> None:
    cluster = training(3, slots=3, min_workers=3)
    drained, killed, asked = member_ids(cluster)
    numbers = [cluster.act(kind, one) for kind, one in (("drain", drained), ("kill", killed), ("stack", asked))]
    cluster.replace_controller()
    cluster.slots = 8
    cluster.run(lambda: all(number in cluster.done for number in numbers))
    states = {cluster.done[number].state for number in numbers[1:]}
    assert cluster.done[numbers[0]].state == "done"
    assert states <= {"done", "gone"}
    cluster.run(lambda: cluster.is_settled)
    assert not {drained, killed} & set(member_ids(cluster))


def test_stacks_are_told_with_the_place_and_bounded() -> None:
    cluster = training(2)
    worker_id = member_ids(cluster)[1]
    number = cluster.act("stack", worker_id)
    text = "x" * (MAX_STACKS_CHARS + 7)
    cluster.handle(wire.Stacks(worker_id.removeprefix("w"), number, text, "it was interrupted"))
    answer = cluster.done[number]
    assert answer.state == "done"
    assert answer.message.startswith(f"{worker_id} (rank 1), pid 1 on node")
    assert answer.message.endswith("it was interrupted")
    assert answer.text == f"{text[:-7]}\n... (7 characters cut)\n"
    cluster.handle(wire.Stacks(worker_id.removeprefix("w"), number, "late", ""))
    assert cluster.done[number] is answer


def test_a_supervisor_that_does_not_answer_is_said_so() -> None:
    cluster = training(2)
    worker_id = member_ids(cluster)[0]
    number = cluster.act("stack", worker_id)
    cluster.workers[worker_id.removeprefix("w")].inbox.clear()
    cluster.now += STACKS_S + 1
    cluster.run(lambda: number in cluster.done)
    assert (cluster.done[number].state, cluster.done[number].text) == ("failed", "")


def test_what_a_controller_does_not_know_it_says_so() -> None:
    cluster = training(1)
    number = cluster.act("paint", member_ids(cluster)[0])
    assert cluster.done[number].state == "failed"
    assert "does not know how to paint" in cluster.done[number].message


def test_nothing_is_answered_after_the_end() -> None:
    cluster = training(1)
    cluster.ask(run="stop", force=True)
    cluster.run(lambda: cluster.outcome is not None)
    late = Wish("stop", 1, actions=(WorkerAction(9, "kill", "w1.1", "somebody"),))
    assert cluster.coordinator.handle(late, cluster.now) == []
