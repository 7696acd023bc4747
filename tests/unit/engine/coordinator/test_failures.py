"""What fails a job, and what its failure has of the worker that it came from."""

from __future__ import annotations

import random

from rubato.engine.coordinator.ending import LAST_WORDS_S
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.simulation import Cluster

ENDLESS = 10**9


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
    cluster = Cluster(random.Random(2), workers=3, total_steps=ENDLESS)
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
