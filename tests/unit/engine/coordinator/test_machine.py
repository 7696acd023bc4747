from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rubato.engine.coordinator import CheckpointFound, Coordinator, Kill, Spawn, Terms, Wish
from rubato.engine.coordinator.verdicts import REPAIRS_AT_ONE_STEP
from rubato.wire import worker as wire
from rubato.wire.status import WorkerState
from tests.unit.engine.coordinator.simulation import Cluster

FAULTS = ("die", "die_two", "die_all", "scale", "checkpoint", "time_jump", "replace", "withdraw")
PROPERTIES = settings(max_examples=settings.default.max_examples * 3 // 2, deadline=None)
ENDLESS = 10**9


def inject(cluster: Cluster, fault: str) -> None:
    """Something happens to the job."""
    living = cluster.living
    match fault:
        case "die" if living:
            cluster.die(cluster.random.choice(living))
        case "die_two":
            for worker in cluster.random.sample(living, min(2, len(living))):
                cluster.die(worker)
        case "die_all":
            for worker in living:
                cluster.die(worker)
        case "scale":
            cluster.ask(workers=cluster.random.randint(1, 5))
        case "checkpoint":
            cluster.ask(checkpoint_request=cluster.wish.checkpoint_request + 1)
        case "time_jump":
            cluster.now += cluster.random.choice((1.0, 100.0))
        case "withdraw":
            cluster.withdraw_unplaced()
        case "replace" if cluster.outcome is None:
            cluster.replace_controller()


def play(cluster: Cluster, faults: list[tuple[int, str]]) -> None:
    for steps, fault in faults:
        for _ in range(steps):
            cluster.advance()
        inject(cluster, fault)


def train(cluster: Cluster, steps: int) -> None:
    """Run until so many steps are committed."""
    cluster.run(lambda: cluster.coordinator.job.step >= steps and cluster.is_settled)


def fault_lists(most_apart: int) -> st.SearchStrategy[list[tuple[int, str]]]:
    return st.lists(st.tuples(st.integers(1, most_apart), st.sampled_from(FAULTS)), max_size=9)


@PROPERTIES
@example(seed=0, workers=4, spares=0, faults=[(240, "die"), (192, "die"), (124, "die_all")])
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), spares=st.integers(0, 2), faults=fault_lists(250))
def test_whatever_happens_the_job_ends_well(
    seed: int, workers: int, spares: int, faults: list[tuple[int, str]]
) -> None:
    cluster = Cluster(random.Random(seed), workers=workers, total_steps=25, max_restarts=50, standby_workers=spares)
    play(cluster, faults)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded", cluster.outcome
    assert cluster.outcome.result is not None
    assert cluster.outcome.result.step == 25
    assert not cluster.living
    assert sorted(cluster.rows) == list(range(1, 26)), "one row a step, none lost"
    numbers = [(record.attempt, record.number) for record in cluster.minted]
    assert numbers == sorted(set(numbers))


@PROPERTIES
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), spares=st.integers(0, 2), faults=fault_lists(120))
def test_when_nothing_fails_any_more_as_many_train_as_are_wished_for(
    seed: int, workers: int, spares: int, faults: list[tuple[int, str]]
) -> None:
    cluster = Cluster(
        random.Random(seed), workers=workers, total_steps=ENDLESS, max_restarts=50, standby_workers=spares
    )
    play(cluster, faults)
    cluster.run(lambda: cluster.outcome is not None or cluster.is_as_wished)
    assert cluster.outcome is None


@PROPERTIES
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 4),
    faults=fault_lists(120),
    wish=st.sampled_from([("pause", "paused"), ("stop", "cancelled")]),
)
def test_a_pause_or_a_stop_ends_it_whenever_it_comes(
    seed: int, workers: int, faults: list[tuple[int, str]], wish: tuple[str, str]
) -> None:
    cluster = Cluster(random.Random(seed), workers=workers, total_steps=ENDLESS, max_restarts=50)
    play(cluster, faults)
    cluster.ask(run=wish[0])
    cluster.run(lambda: cluster.outcome is not None)
    assert not cluster.living
    assert cluster.outcome is not None
    assert cluster.outcome.state == wish[1], cluster.outcome


@PROPERTIES
@given(seed=st.integers(0, 2**32), moment=st.integers(0, 60))
def test_a_joiner_that_dies_before_all_have_formed_costs_the_members_nothing(seed: int, moment: int) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS)
    train(cluster, 3)
    members = {worker.incarnation for worker in cluster.living}
    cluster.ask(workers=3)
    cluster.run(lambda: len(cluster.living) == 3)
    joiner = next(worker for worker in cluster.living if worker.incarnation not in members)
    for _ in range(moment):
        cluster.advance()
    number = cluster.minted[-1].number
    if max(worker.control.ready for worker in cluster.workers.values()) >= number:
        return  # too late: the group stands, and the switch may be agreed already
    step = cluster.coordinator.job.step
    cluster.die(joiner)
    cluster.run(lambda: joiner.gone)
    cluster.run(lambda: cluster.coordinator.job.step > step + 5)
    assert not cluster.revokes
    assert all(cluster.workers[one].alive for one in members)


@pytest.mark.parametrize("seed", range(5))
def test_all_lost_goes_back_to_the_newest_checkpoint(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=3, total_steps=ENDLESS)
    train(cluster, 4)
    cluster.ask(checkpoint_request=1)
    cluster.run(lambda: bool(cluster.checkpoints))
    attempt, step = cluster.checkpoints[-1]
    train(cluster, step + 3)
    for worker in cluster.living:
        cluster.die(worker)
    cluster.run(lambda: cluster.coordinator.job.number > 1 and cluster.is_settled)
    record = cluster.coordinator.job.current
    assert record is not None
    assert record.cause == "restart"
    assert record.origin == wire.Origin("checkpoint", f"/{attempt}-{step}")
    assert cluster.coordinator.observed().restarts == 1
    assert [event.data["restarts"] for event in cluster.events if event.kind == "job.restarting"] == [1]


def test_a_generation_that_trained_for_a_moment_only_is_told_of() -> None:
    cluster = Cluster(random.Random(3), workers=2, total_steps=ENDLESS)
    cluster.run(lambda: bool(cluster.rows))
    for worker in cluster.living:
        cluster.die(worker)
    cluster.run(lambda: any(event.kind == "job.restarting" for event in cluster.events))
    kinds = [event.kind for event in cluster.events]
    assert kinds.index("generation.formed") < kinds.index("job.restarting")


@pytest.mark.parametrize("allowed", [0, 2])
def test_too_many_restarts_fail_the_job(allowed: int) -> None:
    cluster = Cluster(random.Random(7), workers=2, total_steps=ENDLESS, max_restarts=allowed)
    for _ in range(allowed + 1):
        before = len(cluster.minted)
        cluster.run(lambda before=before: len(cluster.minted) > before and cluster.is_settled)
        for worker in cluster.living:
            cluster.die(worker)
        cluster.run(lambda: not any(one.placed and not one.gone for one in cluster.workers.values()))
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert cluster.outcome.failure.reason == "max_restarts_exceeded"
    assert f"({allowed})" in cluster.outcome.failure.message


def test_who_is_started_later_is_told_where_the_job_stands() -> None:
    cluster = Cluster(random.Random(0), workers=2, total_steps=ENDLESS)
    train(cluster, 3)
    orders = cluster.coordinator.handle(Wish("run", 3), cluster.now)
    (step,) = [order.step for order in orders if isinstance(order, Spawn)]
    assert step == cluster.coordinator.job.step >= 3


def test_the_silence_of_a_worker_is_a_hang_but_not_after_a_stall_of_the_coordinator_itself() -> None:
    coordinator = Coordinator(Terms("job", 1, num_microbatches=4), Wish("run", 1))
    spawned = [order for order in coordinator.tick(0.0) if isinstance(order, Spawn)]
    name = spawned[0].incarnation
    coordinator.handle(wire.Spawned(name, 1, 1, "node"), 0.0)
    coordinator.handle(wire.Hello(name, "store"), 0.1)
    assert not any(isinstance(order, Kill) for order in coordinator.tick(500.0)), "it was stopped itself"
    kills = [order for at in range(501, 540) for order in coordinator.tick(float(at)) if isinstance(order, Kill)]
    assert [kill.incarnation for kill in kills] == [name]
    assert kills[0].with_stacks
    assert "no sign of life" in kills[0].because


def test_who_was_heard_just_after_a_stall_is_silent_from_then_on() -> None:
    coordinator = Coordinator(Terms("job", 1, num_microbatches=4), Wish("run", 1))
    (name,) = [order.incarnation for order in coordinator.tick(0.0) if isinstance(order, Spawn)]
    coordinator.handle(wire.Spawned(name, 1, 1, "node"), 100.0)
    coordinator.handle(wire.Hello(name, "store"), 100.0)  # waited in the line meanwhile
    coordinator.tick(100.0)
    kills = [order for at in range(101, 140) for order in coordinator.tick(float(at)) if isinstance(order, Kill)]
    assert [kill.incarnation for kill in kills] == [name]


@pytest.mark.parametrize("seed", range(10))
def test_an_exchange_that_raises_on_every_worker_fails_the_job_with_the_cause(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=3, total_steps=ENDLESS)
    cluster.raises_at = 4
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    failure = cluster.outcome.failure
    assert failure is not None
    assert (failure.failure_class, failure.reason, failure.step) == ("user", "no_progress", 4)
    assert "a peer was lost: no memory" in failure.message
    assert "run.evaluate" in failure.message
    assert len(cluster.minted) == REPAIRS_AT_ONE_STEP, "the first generation, and one for each repair but the last"


def test_who_lost_touch_in_the_last_exchange_before_a_switch_is_not_left_behind() -> None:
    """One has completed it and switched, as all had agreed to; the other could not: both must go back to one place."""
    cluster = Cluster(random.Random(5), workers=3, total_steps=ENDLESS)
    train(cluster, 4)
    cluster.ask(workers=2)
    cluster.run(lambda: cluster.minted[-1].world == 2)
    record, job = cluster.minted[-1], cluster.coordinator.job
    ahead, behind = (member.incarnation for member in record.members)
    cluster.handle(wire.Entered(ahead, record.number, job.step))
    assert job.number == record.number
    told = wire.Broken(behind, record.follows, True, job.step - 1, "a peer was lost")
    cluster.handle(told)
    assert {(ahead, record.number), (behind, record.number)} <= set(cluster.revokes)
    revokes = len(cluster.revokes)
    cluster.handle(told)
    assert len(cluster.revokes) == revokes, "said twice"


@pytest.mark.parametrize("serves", [True, False])
def test_who_missed_a_result_that_nobody_has_any_more_is_replaced(serves: bool) -> None:
    cluster = Cluster(random.Random(5), workers=3, total_steps=ENDLESS)
    train(cluster, 4)
    record, job = cluster.minted[-1], cluster.coordinator.job
    behind, *ahead = (member.incarnation for member in record.members)
    cluster.handle(wire.Broken(behind, record.number, True, job.step, "a peer was lost"))
    for one in ahead:
        cluster.handle(wire.Broken(one, record.number, True, job.step + 1, "", serves=serves))
    left = cluster.minted[-1]
    assert left.number > record.number
    assert [member.incarnation for member in left.members] == ([behind, *ahead] if serves else ahead)
    doomed = job.roster.get(behind)
    assert doomed is not None
    assert ("it stopped at step" in doomed.doom) is not serves


def test_a_checkpoint_to_begin_from_that_is_not_whole_fails_the_job() -> None:
    cluster = Cluster(random.Random(12), workers=2, total_steps=ENDLESS)
    cluster.answers.clear()
    cluster.handle(CheckpointFound(unusable="job_x/1-30: stripe-1 has the wrong hash"))
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert cluster.outcome.failure.reason == "checkpoint_invalid"
    assert "stripe-1 has the wrong hash" in cluster.outcome.failure.message


def test_a_resumed_job_shows_where_it_stood_until_it_is_known_where_it_begins() -> None:
    coordinator = Coordinator(Terms("job", 2, num_microbatches=4), Wish("run", 1), resume_step=40)
    name = next(order.incarnation for order in coordinator.tick(0.0) if isinstance(order, Spawn))
    assert coordinator.observed().step == 40
    coordinator.handle(CheckpointFound("/1-37", 37), 0.1)
    coordinator.handle(wire.Spawned(name, 1, 1, "node"), 0.1)
    coordinator.handle(wire.Hello(name, "store"), 0.1)
    coordinator.handle(wire.Standby(name, "layout", "code", 60), 0.2)
    assert coordinator.observed().step == 37


def test_scaling_up_waits_for_slots_and_says_so() -> None:
    cluster = Cluster(random.Random(4), workers=2, total_steps=ENDLESS, slots=3)
    train(cluster, 2)
    cluster.ask(workers=5)
    cluster.run(lambda: cluster.coordinator.job.number >= 2 and len(cluster.living) == 3)
    cluster.run(lambda: "wait for a slot" in cluster.coordinator.observed().reason)
    assert cluster.coordinator.observed().workers >= 2
    cluster.slots = 8
    cluster.run(lambda: cluster.is_settled)
    assert cluster.coordinator.observed().workers == 5
    assert cluster.coordinator.observed().reason == ""


def test_workers_that_are_withdrawn_before_they_have_a_place_are_no_losses() -> None:
    cluster = Cluster(random.Random(6), workers=3, slots=0, max_restarts=0)
    withdrawn = 0
    while withdrawn < 30:
        withdrawn += cluster.withdraw_unplaced()
        cluster.advance()
        assert cluster.outcome is None
    cluster.slots = 3
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded"
    kinds = [event.kind for event in cluster.events]
    assert "worker.lost" not in kinds
    messages = [event.message for event in cluster.events if event.kind == "worker.left"]
    assert "w1.1 was withdrawn: it had no place yet" in messages
    assert sum("withdrawn" in message for message in messages) == withdrawn


def test_who_stands_by_waits_a_moment_for_those_that_were_started_with_him() -> None:
    cluster = Cluster(random.Random(5), workers=1, total_steps=ENDLESS, slots=2)
    train(cluster, 2)
    cluster.ask(workers=4)
    cluster.run(lambda: any(worker.state is WorkerState.STANDBY for worker in cluster.coordinator.job.roster))
    cluster.slots = 8
    cluster.run(lambda: cluster.is_settled)
    assert [record.world for record in cluster.minted] == [1, 4]


def test_a_spare_worker_stands_by_and_replaces_a_lost_one_without_a_start() -> None:
    cluster = Cluster(random.Random(7), workers=3, total_steps=ENDLESS, standby_workers=1)
    cluster.run(lambda: cluster.is_as_wished)
    seen = cluster.coordinator.observed()
    assert (seen.workers, seen.joining, seen.phase) == (3, 0, "training")
    members = {member.incarnation for member in cluster.minted[-1].members}
    (spare,) = [worker for worker in cluster.living if worker.incarnation not in members]
    cluster.die(next(worker for worker in cluster.living if worker.incarnation in members))
    cluster.run(lambda: cluster.minted[-1].cause == "replace")
    assert spare.incarnation in cluster.minted[-1].joining
    cluster.run(lambda: cluster.is_as_wished)  # another one has taken its place
    assert spare.alive


def test_spare_workers_go_where_all_are_lost_and_are_not_counted_among_those_that_wait_for_a_slot() -> None:
    cluster = Cluster(random.Random(8), workers=2, total_steps=ENDLESS, slots=3, standby_workers=2)
    cluster.run(lambda: cluster.is_settled and len(cluster.living) == 3)
    cluster.run(lambda: cluster.coordinator.job.step > 3)
    assert cluster.coordinator.observed().reason == ""
    members = {member.incarnation for member in cluster.minted[-1].members}
    for worker in cluster.living:
        if worker.incarnation in members:
            cluster.die(worker)
        else:
            spare = worker.incarnation
    cluster.run(lambda: cluster.minted[-1].cause == "restart")
    assert spare in {member.incarnation for member in cluster.minted[-1].members}


def test_fewer_workers_or_a_scaling_use_the_spares_first() -> None:
    cluster = Cluster(random.Random(9), workers=1, total_steps=ENDLESS, standby_workers=2)
    cluster.run(lambda: cluster.is_as_wished)
    spares = {worker.incarnation for worker in cluster.living}
    cluster.ask(workers=3)
    cluster.run(lambda: cluster.minted[-1].world == 3)
    assert {member.incarnation for member in cluster.minted[-1].members} == spares
    assert {worker.incarnation for worker in cluster.living} == spares, "others are started when these have joined"
    cluster.run(lambda: cluster.is_as_wished)
    assert len(cluster.living) == 5
    cluster.ask(workers=1)
    cluster.run(lambda: cluster.is_as_wished)
    assert len(cluster.living) == 3


def test_no_more_spares_are_kept_than_were_granted() -> None:
    cluster = Cluster(random.Random(10), workers=1, total_steps=ENDLESS, standby_workers=2)
    cluster.run(lambda: cluster.is_as_wished)
    assert len(cluster.living) == 3
    cluster.ask(standby=0)
    cluster.run(lambda: len(cluster.living) == 1)
    cluster.ask(standby=1)
    cluster.run(lambda: len(cluster.living) == 2 and cluster.is_settled)
    assert cluster.minted[-1].world == 1, "the member trained on"


def test_a_pause_saves_what_was_reached() -> None:
    cluster = Cluster(random.Random(5), workers=2, total_steps=ENDLESS)
    train(cluster, 6)
    cluster.ask(run="pause")
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "paused"
    assert cluster.checkpoints[-1][1] == cluster.coordinator.job.step


def test_a_full_disk_skips_the_checkpoint_and_not_the_job() -> None:
    cluster = Cluster(random.Random(6), workers=2, total_steps=12)
    cluster.may_commit = False
    train(cluster, 2)
    cluster.ask(checkpoint_request=1)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded"
    assert any(event.kind == "checkpoint.failed" for event in cluster.events)


def test_a_storage_that_stays_broken_is_told_ever_more_rarely_but_to_whoever_waits() -> None:
    cluster = Cluster(random.Random(6), workers=2, total_steps=ENDLESS, checkpoint_every_s=0.01)
    cluster.writes = "fail"

    def told() -> list[int]:
        return [event.data["times"] for event in cluster.events if event.kind == "checkpoint.failed"]

    cluster.run(lambda: sum(told()) >= 32)
    assert told() == [1, 1, 2, 4, 8, 16]
    assert "(as 15 before it, of which none was told)" in cluster.events[-1].message
    cluster.ask(checkpoint_request=1)
    cluster.run(lambda: len(told()) == 7)
    assert sum(told()) < 64
    cluster.writes = "well"
    cluster.run(lambda: bool(cluster.checkpoints))
    cluster.writes = "fail"
    cluster.run(lambda: len(told()) == 9)
    assert told()[-2:] == [1, 1]


def test_a_worker_of_other_code_is_refused_with_the_reason() -> None:
    cluster = Cluster(random.Random(8), workers=1, total_steps=ENDLESS)
    train(cluster, 2)
    cluster.ask(workers=2)
    cluster.run(lambda: len(cluster.living) == 2)
    joiner = cluster.living[1]
    joiner.said = 2  # it has its own words
    joiner.outbox.append(wire.Hello(joiner.incarnation, "host:1"))
    joiner.outbox.append(wire.Standby(joiner.incarnation, "layout", "other code", ENDLESS))
    joiner.waiting = True
    cluster.run(lambda: joiner.gone)
    lost = next(event for event in cluster.events if event.kind == "worker.lost")
    assert "code or library versions differ" in lost.message


def test_states_that_differ_after_a_takeover_are_no_fault_of_the_start() -> None:
    cluster = Cluster(random.Random(3), workers=3, total_steps=ENDLESS)
    train(cluster, 5)
    cluster.replace_controller()
    odd = cluster.living[1]
    cluster.differ(odd)
    step = odd.step
    train(cluster, step + 5)
    assert cluster.outcome is None
    assert [event.step for event in cluster.events if event.kind == "diverged"] == [step]
