"""What fails a job, and what its failure has of the worker that it came from."""

from __future__ import annotations

import random

import pytest

from rubato.engine.coordinator.ending import LAST_WORDS_S
from rubato.engine.coordinator.starting import EARLY_S, OWN_ROUNDS
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9
NO_MEMORY = "the kernel killed it, most likely because the host ran out of memory"


def fail(cluster: Cluster, worker: Worker, where: str, microbatch: int | None = None) -> None:
    """The user's code raises in a worker."""
    step = worker.step if where == "step" else None
    worker.say(wire.UserFailed(worker.incarnation, where, "ValueError: no", "Traceback", step, microbatch))  # type: ignore[arg-type]
    cluster.die(worker, code=1)


def test_an_exception_before_the_first_step_fails_the_job_at_once() -> None:
    cluster = Cluster(random.Random(1), workers=2, total_steps=ENDLESS)
    cluster.run(lambda: len(cluster.living) == 2)
    fail(cluster, cluster.living[0], "import")
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert cluster.outcome.failure.reason == "user_code_error"
    assert cluster.outcome.failure.traceback == "Traceback"
    assert cluster.outcome.failure.last_output == (f"the last line of {str(cluster.outcome.failure.worker_id)[1:]}",)
    lost = [event.data for event in cluster.events if event.kind == "worker.lost"]
    assert [one["worker_id"] for one in lost] == [cluster.outcome.failure.worker_id], "the other one is only ended"
    assert [one["cause"] for one in lost] == ["ValueError: no"]


@pytest.mark.parametrize(
    ("told", "cause"), [("", "it hangs"), ("it hangs; it is there yet",) * 2, ("else", "it hangs")]
)
def test_the_cause_of_an_end_that_was_ordered_is_the_order_and_what_became_of_it(told: str, cause: str) -> None:
    cluster = Cluster(random.Random(1), workers=2, total_steps=ENDLESS)
    cluster.run(lambda: cluster.coordinator.job.step > 2)
    worker = cluster.living[0]
    view = cluster.coordinator.job.roster.get(worker.incarnation)
    assert view is not None
    view.doom = "it hangs"
    cluster.die(worker, cause=told)
    cluster.run(lambda: worker.gone)
    assert [event.data["cause"] for event in cluster.events if event.kind == "worker.lost"] == [cause]


def test_what_the_message_has_said_is_not_said_again() -> None:
    """Of a mistake that has no traceback the output is the same line."""
    cluster = Cluster(random.Random(1), workers=1, total_steps=ENDLESS)
    cluster.run(lambda: len(cluster.living) == 1)
    worker = cluster.living[0]
    error = f"the last line of {worker.incarnation}"
    worker.say(wire.UserFailed(worker.incarnation, "import", error, "", None, None))
    cluster.die(worker, code=1)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert error in cluster.outcome.failure.message
    assert cluster.outcome.failure.last_output == ()


def test_who_fails_the_job_is_let_end_by_itself_but_not_for_ever() -> None:
    """It raised, and hangs in what the program has to clean up."""
    cluster = Cluster(random.Random(1), workers=2, total_steps=ENDLESS)
    cluster.run(lambda: len(cluster.living) == 2)
    first, other = cluster.living
    first.say(wire.UserFailed(first.incarnation, "import", "ValueError: no", "Traceback", None, None))
    cluster.run(lambda: other.gone)
    at = cluster.now
    assert first.alive
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.now - at > LAST_WORDS_S / 2
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert cluster.outcome.failure.last_output == (f"the last line of {first.incarnation}",)


def test_a_step_that_raises_once_is_tried_again_and_twice_fails_the_job() -> None:
    cluster = Cluster(random.Random(5), workers=3, total_steps=ENDLESS)
    cluster.run(lambda: cluster.coordinator.job.step >= 5 and cluster.is_settled)
    first = cluster.living[1]
    step = first.step
    fail(cluster, first, "step", microbatch=4)
    cluster.run(lambda: cluster.coordinator.job.number > 1 and not cluster.coordinator.job.pending)
    assert cluster.outcome is None
    heir = cluster.living[0]
    heir.say(wire.UserFailed(heir.incarnation, "step", "ValueError: no", "Traceback", step, 4))
    cluster.die(heir, code=1)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert (cluster.outcome.failure.step, cluster.outcome.failure.microbatch) == (step, 4)
    assert cluster.outcome.failure.last_output == (f"the last line of {heir.incarnation}",)


def test_a_crash_that_nothing_explains_fails_the_job_after_three_rounds_at_one_step() -> None:
    cluster = Cluster(random.Random(3), workers=1, total_steps=ENDLESS)
    for _ in range(3):
        cluster.run(lambda: any(worker.has_state for worker in cluster.living))
        cluster.die(next(worker for worker in cluster.living if worker.has_state), signal="SIGSEGV")
        cluster.run(lambda: not cluster.living)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.failure is not None
    assert cluster.outcome.failure.reason == "user_code_error"
    assert cluster.outcome.failure.signal == "SIGSEGV"


def lose_newest(cluster: Cluster, after_s: float = 0.0) -> None:
    """The worker that was started last is killed for memory once it has trained for so long."""
    cluster.run(lambda: cluster.is_settled)
    since = cluster.now
    cluster.run(lambda: cluster.is_settled and cluster.now >= since + after_s, limit=200_000)
    cluster.die(cluster.living[-1], cause=NO_MEMORY)
    cluster.run(lambda: len(cluster.minted) > 1 and cluster.minted[-1].cause == "recovery" and cluster.is_whole)


def test_a_host_with_too_little_memory_does_not_cost_a_recovery_for_ever() -> None:
    cluster = Cluster(random.Random(3), workers=3, total_steps=ENDLESS)
    for _ in range(OWN_ROUNDS):
        lose_newest(cluster)
    started = len(cluster.workers)
    until = cluster.now + 20.0
    cluster.run(lambda: cluster.now >= until, limit=200_000)
    assert cluster.outcome is None
    assert len(cluster.living) == 2, "they train on"
    assert len(cluster.workers) == started
    reason = cluster.coordinator.observed().reason
    assert "3 times in a row soon after they began to train" in reason
    assert reason.endswith("no more are added until the wish changes")
    cluster.ask(workers=4)
    cluster.run(lambda: cluster.is_settled)
    assert len(cluster.living) == 4


def test_who_has_trained_for_a_while_is_replaced_whatever_killed_it() -> None:
    cluster = Cluster(random.Random(3), workers=2, total_steps=ENDLESS)
    for _ in range(OWN_ROUNDS + 1):
        lose_newest(cluster, after_s=1.1 * EARLY_S)
    cluster.run(lambda: cluster.is_settled)
    assert len(cluster.living) == 2
