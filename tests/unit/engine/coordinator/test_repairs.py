"""Repairs that lead nowhere: a program that raises is blamed soon, a network is waited for."""

from __future__ import annotations

import random

import pytest

from rubato.engine.coordinator import Emit, Terms
from rubato.engine.coordinator.verdicts import (
    LONGEST_REPAIR_WAIT_S,
    REPAIRS_AT_ONE_STEP,
    Verdicts,
    is_of_network,
    is_raised,
)
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9
RESET = "a peer was lost: [transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:4711"
NO_MEMORY = "a peer was lost: DefaultCPUAllocator: can't allocate memory"


def cut_off(seed: int, **terms: object) -> Cluster:
    """Three workers whose exchanges fail from step 4 on."""
    cluster = Cluster(random.Random(seed), workers=3, total_steps=ENDLESS, **terms)
    cluster.raises_at, cluster.raises = 4, (RESET,)
    return cluster


def waits(cluster: Cluster) -> list[Emit]:
    return [event for event in cluster.events if event.kind == "change.failed"]


@pytest.mark.parametrize("seed", range(5))
def test_a_network_that_comes_back_costs_only_its_time(seed: int) -> None:
    cluster = cut_off(seed)
    cluster.run(lambda: len(waits(cluster)) == REPAIRS_AT_ONE_STEP)
    assert cluster.outcome is None
    members = cluster.minted[0].members
    assert "3 times at step 4" not in cluster.coordinator.observed().reason, "the first repair is at once"
    assert "lost each other 4 times at step 4" in cluster.coordinator.observed().reason
    assert "Connection closed by peer" in cluster.coordinator.observed().reason
    cluster.raises_at = None
    cluster.run(lambda: cluster.coordinator.job.step >= 8 and cluster.is_settled)
    assert cluster.minted[-1].members == members
    assert not [event for event in cluster.events if event.kind in ("worker.lost", "job.restarting")]
    assert [event.data["seconds"] for event in waits(cluster)] == [0.5, 1.0, 2.0], "as restart.backoff says"
    assert cluster.coordinator.observed().reason == ""


def test_a_network_that_stays_away_fails_the_job_and_blames_nobody() -> None:
    cluster = cut_off(1, max_restarts=2)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    failure = cluster.outcome.failure
    assert failure is not None
    assert (failure.failure_class, failure.reason, failure.step) == ("infrastructure", "no_progress", 4)
    assert f"tried {REPAIRS_AT_ONE_STEP + 2} times" in failure.message
    assert "network" in failure.message


def test_a_death_explains_what_was_waited_for() -> None:
    cluster = cut_off(2, backoff_initial_s=1000.0)
    cluster.run(lambda: bool(waits(cluster)))
    number, cluster.raises_at = cluster.minted[-1].number, None
    cluster.die(cluster.living[0])
    began = cluster.now
    cluster.run(lambda: cluster.minted[-1].number > number)
    assert cluster.now - began < LONGEST_REPAIR_WAIT_S / 10
    assert cluster.minted[-1].world == 2


@pytest.mark.parametrize("how", ["pause", "stop"])
def test_who_is_to_leave_does_not_wait(how: str) -> None:
    cluster = cut_off(3, backoff_initial_s=1000.0)
    cluster.run(lambda: bool(waits(cluster)))
    cluster.raises_at = None
    began = cluster.now
    cluster.ask(run=how)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.now - began < LONGEST_REPAIR_WAIT_S / 10


@pytest.mark.parametrize("seed", range(5))
def test_what_raised_is_told_and_not_what_the_others_saw_of_it(seed: int) -> None:
    cluster = cut_off(seed)
    cluster.raises = RESET, NO_MEMORY
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    failure = cluster.outcome.failure
    assert failure is not None
    assert failure.failure_class == "user"
    assert "can't allocate memory" in failure.message


def test_deaths_and_steps_between_repairs_are_progress() -> None:
    verdicts, terms = Verdicts(), Terms("job", 1, num_microbatches=4, max_restarts=1)
    for step in range(2 * REPAIRS_AT_ONE_STEP):
        verdicts.on_repair(step)
        assert verdicts.on_no_progress("it raised", terms, is_raised=True) is None
    for _ in range(2 * REPAIRS_AT_ONE_STEP):
        verdicts.on_repair(9)
        verdicts.on_death()
        assert verdicts.on_no_progress("it raised", terms, is_raised=True) is None
    for _ in range(REPAIRS_AT_ONE_STEP):
        verdicts.on_repair(9)
    assert verdicts.on_no_progress("it raised", terms, is_raised=True) is not None
    assert verdicts.on_no_progress("lost touch", terms, is_raised=False) is None
    verdicts.on_repair(9)
    assert verdicts.on_no_progress("lost touch", terms, is_raised=False) is not None


@pytest.mark.parametrize(
    "cause",
    [
        RESET,
        "a peer was lost: Read error [10.0.0.1]:4711: Connection reset by peer",
        "a peer was lost: writev [10.0.0.1]:4711: Broken pipe",
        "a peer was lost: NCCL error: remote process exited or there was a network error",
        "generation 7 could not be formed: Timed out after 30 seconds waiting for clients",
        "generation 7 could not be formed: No route to host",
        "the generation was revoked",
        "w1.2 lost touch with the others",
    ],
)
def test_what_links_say_is_not_held_against_the_program(cause: str) -> None:
    assert is_of_network(cause)
    assert not is_raised(cause)


@pytest.mark.parametrize(
    "cause",
    [
        NO_MEMORY,
        "a peer was lost: [enforce fail at pair.cc:454] op.preamble.length <= op.nbytes. 4096 vs 2048",
        "the model of ranks [1] differ from those of the others",
        "a peer was lost: CUDA out of memory. Tried to allocate 2.00 GiB",
        "generation 7 could not be formed: DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_what_an_exchange_raises_is(cause: str) -> None:
    assert is_raised(cause)
