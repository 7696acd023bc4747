"""`compression.on_loss: rollback`: a lost member sends all back to the newest checkpoint, and nobody else does."""

from __future__ import annotations

import random

import pytest

from rubato.engine.coordinator import Emit, Terms
from rubato.wire.aggregation import AggregationSpec, CompressionSpec
from rubato.wire.spec import JobSpec
from tests.unit.engine.coordinator.controllers import Fate
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9


def cluster_of(seed: int, *, total_steps: int = ENDLESS, on_loss: str = "rollback") -> Cluster:
    """Three workers."""
    compression = CompressionSpec("topk", on_loss=on_loss)  # type: ignore[arg-type]
    aggregation = AggregationSpec(compression=compression)
    spec = JobSpec(name="j", entrypoint="train.py", reproducible=False, aggregation=aggregation)
    rolls_back = Terms.of("j", 1, spec).rolls_back
    return Cluster(random.Random(seed), workers=3, total_steps=total_steps, rolls_back=rolls_back, reproducible=False)


def train(cluster: Cluster, steps: int) -> None:
    cluster.run(lambda: cluster.coordinator.job.step >= steps and cluster.is_settled)


def events(cluster: Cluster, kind: str) -> list[Emit]:
    return [event for event in cluster.events if event.kind == kind]


@pytest.mark.parametrize("seed", range(5))
def test_all_go_back_where_one_is_lost(seed: int) -> None:
    cluster = cluster_of(seed)
    train(cluster, 4)
    cluster.die(cluster.living[1])
    cluster.run(lambda: len(cluster.minted) == 2 and cluster.is_settled)
    assert [record.cause for record in cluster.minted] == ["start", "restart"]
    assert len(events(cluster, "job.restarting")) == 1
    killed, *others = events(cluster, "worker.lost")
    assert "compression.on_loss is rollback" not in killed.message
    assert ["had kept were lost, and compression.on_loss is rollback" in one.message for one in others] == [True] * 2
    train(cluster, cluster.coordinator.job.step + 3)


def test_others_train_on_where_that_was_not_asked_for() -> None:
    cluster = cluster_of(1, on_loss="continue")
    train(cluster, 4)
    cluster.die(cluster.living[1])
    cluster.run(lambda: len(cluster.minted) > 1 and cluster.is_settled)
    assert cluster.minted[1].cause == "recovery"
    assert not events(cluster, "job.restarting")


@pytest.mark.parametrize("seed", range(5))
def test_who_dies_before_training_sends_nobody_back(seed: int) -> None:
    cluster = cluster_of(seed)
    cluster.run(lambda: bool(cluster.minted))
    cluster.die(cluster.living[0])
    train(cluster, 2)
    assert not [one for one in events(cluster, "worker.lost") if "rollback" in one.message]
    assert not events(cluster, "job.restarting")


@pytest.mark.parametrize("seed", range(5))
def test_nor_does_a_member_that_dies_behind_the_last_step(seed: int) -> None:
    cluster = cluster_of(seed, total_steps=6)
    cluster.may_commit = False
    cluster.run(lambda: all(one.step >= 6 for one in cluster.living) and cluster.coordinator.job.step >= 6)
    cluster.die(cluster.living[0])
    cluster.may_commit = True
    cluster.run(lambda: cluster.outcome is not None)
    assert not events(cluster, "job.restarting")
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded"


@pytest.mark.parametrize("fate", list(Fate))
def test_a_controller_that_finds_a_member_missing_sends_all_back(fate: Fate) -> None:
    cluster = cluster_of(3)
    train(cluster, 4)
    cluster.take_over(fate)
    cluster.die(cluster.living[1])
    cluster.run(lambda: any(record.cause == "restart" for record in cluster.minted) and cluster.is_settled)
    assert events(cluster, "job.restarting")
    train(cluster, cluster.coordinator.job.step + 3)
