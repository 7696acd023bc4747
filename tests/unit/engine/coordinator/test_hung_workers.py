"""Workers that hang in a simulated cluster: the watch ends them, and nothing else would."""

from __future__ import annotations

import random

import pytest

from rubato.engine.coordinator.hangs import HangPolicy
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
