from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rubato.engine.coordinator.verdicts import SPAWN_FAILURES
from tests.unit.engine.coordinator.simulation import Cluster

FAULTS = ("die", "die_two", "die_all", "scale", "checkpoint", "pause_time", "replace")
PROPERTIES = settings(max_examples=200, deadline=None, derandomize=True)


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
        case "pause_time":
            cluster.now += 1.0
        case "replace" if cluster.outcome is None:
            cluster.replace_controller()


@PROPERTIES
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 4),
    faults=st.lists(st.tuples(st.integers(1, 250), st.sampled_from(FAULTS)), max_size=8),
)
def test_whatever_happens_the_job_ends_well(seed: int, workers: int, faults: list[tuple[int, str]]) -> None:
    cluster = Cluster(random.Random(seed), workers=workers, total_steps=25, max_restarts=50)
    for steps, fault in faults:
        for _ in range(steps):
            cluster.advance()
        inject(cluster, fault)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    if cluster.outcome.failure is not None and cluster.outcome.failure.reason == "start_failed":
        assert sum(worker.gone and not worker.has_state for worker in cluster.workers.values()) >= SPAWN_FAILURES
        return
    assert cluster.outcome.state == "succeeded", cluster.outcome
    assert cluster.outcome.result is not None
    assert cluster.outcome.result.step == 25
    assert not cluster.living
    numbers = [(record.attempt, record.number) for record in cluster.minted]
    assert numbers == sorted(set(numbers))
