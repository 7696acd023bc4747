"""Workers that hang in a simulated cluster: the watch ends them, and nothing else would."""

from __future__ import annotations

import random

import pytest

from rubato.engine.coordinator import CheckpointFound, Coordinator, End, Kill, Spawn, Terms, Wish
from rubato.engine.coordinator.hangs import HangPolicy
from rubato.engine.coordinator.starting import OWN_ROUNDS
from rubato.wire import worker as wire
from rubato.wire.reasons import Reason
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.simulation import STAGE_S, Cluster

ENDLESS = 1 << 30


def hanging(cluster: Cluster, which: int) -> Worker:
    """A member, which hangs amid its training."""
    cluster.run(lambda: cluster.is_settled and cluster.coordinator.job.step > 3)
    worker = cluster.living[which]
    cluster.hang(worker)
    return worker


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_a_worker_that_hangs_is_ended_and_replaced(seed: int, which: int) -> None:
    cluster = Cluster(random.Random(seed), workers=3, total_steps=ENDLESS)
    hung = hanging(cluster, which)
    step, begun = cluster.coordinator.job.step, cluster.now
    cluster.run(lambda: hung.gone and cluster.is_settled and cluster.coordinator.job.step >= step + 5)
    (lost,) = [event for event in cluster.events if event.kind == "worker.lost"]
    assert lost.data["worker_id"] == f"w{hung.incarnation}"
    assert lost.data["hang"]["stage"] == "compute"
    assert STAGE_S < lost.data["hang"]["seconds"] <= cluster.now - begun
    assert len(cluster.living) == 3


@pytest.mark.parametrize("seed", range(4))
def test_all_hang_at_once(seed: int) -> None:
    """Once is no fault of the program, however many they are: a file system may stand still."""
    cluster = Cluster(random.Random(seed), workers=5, total_steps=ENDLESS)
    cluster.run(lambda: cluster.is_settled and cluster.coordinator.job.step > 3)
    hung = cluster.living
    for worker in hung:
        cluster.hang(worker)
    step = cluster.coordinator.job.step
    cluster.run(lambda: cluster.is_settled and cluster.coordinator.job.step >= step + 5)
    assert not any(worker.alive for worker in hung)
    assert cluster.outcome is None


def test_without_the_watch_all_would_wait_for_ever() -> None:
    cluster = Cluster(random.Random(1), workers=3, total_steps=ENDLESS, hangs=HangPolicy(1e9, 1e9, 1e9, 1e9))
    hanging(cluster, 1)
    step = cluster.coordinator.job.step
    with pytest.raises(AssertionError, match="never came to pass"):
        cluster.run(lambda: cluster.coordinator.job.step >= step + 3, limit=5000)
    assert len(cluster.living) == 3


@pytest.mark.parametrize("seed", range(4))
def test_who_goes_on_in_time_is_left_alone(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=3, total_steps=ENDLESS)
    hung = hanging(cluster, 1)
    step, until = cluster.coordinator.job.step, cluster.now + STAGE_S - 0.5
    cluster.run(lambda: cluster.now >= until)
    assert cluster.coordinator.job.step <= step + 1, "the others wait for it"
    cluster.go_on(hung)
    cluster.run(lambda: cluster.coordinator.job.step >= step + 5)
    assert not [event for event in cluster.events if event.kind == "worker.lost"]


def test_spares_that_stand_still_are_ended_and_the_members_train_on() -> None:
    cluster = Cluster(random.Random(3), workers=2, total_steps=ENDLESS, standby_workers=1)
    for _ in range(5):
        cluster.run(lambda: cluster.is_as_wished)
        members = {member.incarnation for member in cluster.minted[-1].members}
        (spare,) = [worker for worker in cluster.living if worker.incarnation not in members]
        cluster.handle(wire.Beat(spare.incarnation, 0, 0, "standby", 1000.0, silent_seconds=1000.0))
        cluster.run(lambda spare=spare: spare.gone)
    step = cluster.coordinator.job.step
    cluster.run(lambda: cluster.coordinator.job.step >= step + 5)
    assert cluster.outcome is None
    lost = [event for event in cluster.events if event.kind == "worker.lost"]
    assert ["hang" in event.data for event in lost] == [True] * 5


def test_what_stands_still_before_the_first_step_fails_the_job_after_three_rounds() -> None:
    coordinator, now, rounds = Coordinator(Terms("job", 1, num_microbatches=8), Wish("run", 3)), 0.0, 0
    orders = [*coordinator.tick(now), *coordinator.handle(CheckpointFound(), now)]
    while not (ends := [order.outcome for order in orders if isinstance(order, End)]):
        if spawned := [order.incarnation for order in orders if isinstance(order, Spawn)]:
            rounds += 1
            assert len(spawned) == 3
        for each in spawned:
            for told in (wire.Spawned(each, 1, 1, "node"), wire.Hello(each, "host:1")):
                coordinator.handle(told, now)
            coordinator.handle(wire.Beat(each, 0, 0, "setup", 10_000.0), now)
        now += 1.0
        orders = coordinator.tick(now)
        for order in [order for order in orders if isinstance(order, Kill)]:
            orders += coordinator.handle(wire.Exited(order.incarnation, None, "SIGKILL"), now)
    failure = ends[0].failure
    assert failure is not None
    assert (failure.reason, rounds) == (Reason.HANG, 2 * OWN_ROUNDS), "each is replaced at once, in the same round"
    assert "run.long_phase" in failure.message


def test_who_stands_still_before_its_program_is_loaded_is_replaced() -> None:
    """Stopped while it imports torch: it never says anything, and the two others could wait for it for ever."""
    coordinator, now = Coordinator(Terms("job", 1, num_microbatches=8), Wish("run", 3)), 0.0
    orders = [*coordinator.tick(now), *coordinator.handle(CheckpointFound(), now)]
    first, *others = [order.incarnation for order in orders if isinstance(order, Spawn)]
    for each in (first, *others):
        coordinator.handle(wire.Spawned(each, 1, 1, "node"), now)
    orders = []
    while not orders:
        now += 1.0
        for each in others:
            coordinator.handle(wire.Hello(each, "host:1"), now)
            coordinator.handle(wire.Standby(each, "layout", "code", ENDLESS), now)
        orders = coordinator.tick(now)
    assert HangPolicy.slow_s < now <= HangPolicy.slow_s + 2
    (kill,) = [order for order in orders if isinstance(order, Kill)]
    assert (kill.incarnation, kill.with_stacks) == (first, True)
    assert "it had said nothing 601 s after its start" in kill.because
    assert len([order for order in orders if isinstance(order, Spawn)]) == 1, "another is started at once"


@pytest.mark.parametrize("seed", range(4))
def test_a_job_that_fails_for_hangs_has_the_stacks_of_the_last_one_and_tells_its_loss(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=3, total_steps=ENDLESS)
    cluster.run(lambda: cluster.is_settled and cluster.coordinator.job.step > 3)
    while cluster.outcome is None:
        hung = next(worker for worker in cluster.living if worker.record is not None)
        cluster.hang(hung)
        settled = len(cluster.minted)
        cluster.run(
            lambda hung=hung, settled=settled: (
                cluster.outcome is not None or (hung.gone and cluster.is_settled and len(cluster.minted) > settled)
            ),
            limit=100_000,
        )
        if cluster.outcome is None:
            cluster.coordinator.job.verdicts.hung[cluster.coordinator.job.step].update((-1, -2))
    failure = cluster.outcome.failure
    assert failure is not None
    assert failure.reason == Reason.HANG
    (lost,) = [
        one for one in cluster.events if one.kind == "worker.lost" and one.data["worker_id"] == failure.worker_id
    ]
    assert failure.last_output == tuple(lost.data["last_output"])
    assert failure.last_output == (f"the last line of {str(failure.worker_id)[1:]}",)
    assert lost.data["hang"]["step"] == failure.step
