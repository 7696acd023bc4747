"""Checkpoints that somebody asks for, whatever happens to those who are to make them."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from rubato.engine.coordinator import ManifestCommitted
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.simulation import Cluster
from tests.unit.engine.coordinator.test_machine import ENDLESS, train


@pytest.mark.parametrize("seed", range(3))
def test_a_checkpoint_that_is_asked_for_while_no_controller_is_there_is_made(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS, checkpoint_every_s=None)
    train(cluster, 3)
    cluster.wish = replace(cluster.wish, checkpoint_request=1)  # nobody hears of it
    cluster.replace_controller()
    cluster.run(lambda: bool(cluster.checkpoints))
    cluster.run(lambda: not cluster.coordinator.job.ledger.is_wanted)
    cluster.wish = replace(cluster.wish, checkpoint_request=2)
    for worker in cluster.living:
        cluster.lose(worker)
    cluster.replace_controller()
    cluster.run(lambda: len(cluster.checkpoints) == 2)
    train(cluster, cluster.checkpoints[-1][1] + 5)
    assert len(cluster.checkpoints) == 2, "once"


@pytest.mark.parametrize("seed", range(10))
def test_a_checkpoint_asked_for_while_nothing_trains_is_made_as_soon_as_something_does(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS, checkpoint_every_s=None)
    cluster.ask(checkpoint_request=1)
    cluster.run(lambda: bool(cluster.checkpoints))
    train(cluster, cluster.checkpoints[0][1] + 5)
    for worker in cluster.living:
        cluster.die(worker)
    cluster.run(lambda: cluster.coordinator.job.current is None)
    cluster.ask(checkpoint_request=2)
    cluster.run(lambda: len(cluster.checkpoints) > 1)
    train(cluster, max(worker.step for worker in cluster.living) + 5)
    assert len(cluster.checkpoints) == 2, "once, not in every generation"


def test_a_checkpoint_that_was_asked_for_survives_its_writers() -> None:
    cluster = Cluster(random.Random(11), workers=3, total_steps=ENDLESS, checkpoint_every_s=None)
    train(cluster, 3)
    cluster.ask(checkpoint_request=1)
    cluster.run(lambda: any(worker.stripe for worker in cluster.living))
    cluster.die(next(worker for worker in cluster.living if not worker.stripe))
    cluster.run(lambda: bool(cluster.checkpoints))


def test_word_of_a_checkpoint_that_does_not_count_any_more_comes_too_late_to_count() -> None:
    cluster = Cluster(random.Random(5), workers=3, total_steps=ENDLESS, checkpoint_every_s=None)
    train(cluster, 3)
    cluster.ask(checkpoint_request=1)
    late: list[ManifestCommitted] = []

    def is_held_back() -> bool:
        late.extend(answer for answer in cluster.answers if isinstance(answer, ManifestCommitted))
        cluster.answers = deque(answer for answer in cluster.answers if not isinstance(answer, ManifestCommitted))
        return bool(late)

    cluster.run(is_held_back)
    (answer,) = late
    odd = cluster.living[1]
    assert odd.record is not None
    place = (odd.incarnation, odd.record.number, odd.step)
    odd.say(wire.StateDiverged(*place, ("0", "1"), "states", agreed=answer.step - 1))
    cluster.die(odd, code=71)
    cluster.run(lambda: any(event.kind == "diverged" for event in cluster.events))
    cluster.handle(answer)
    ledger = cluster.coordinator.job.ledger
    assert ledger.committed_step < answer.step
    assert ledger.is_wanted, "the one that the user asked for is deleted"
    cluster.run(lambda: bool(cluster.checkpoints))
    cluster.run(lambda: not ledger.is_wanted)


@pytest.mark.parametrize("seed", range(20))
def test_checkpoints_that_are_due_keep_coming_whatever_happens_to_the_one_before(seed: int) -> None:
    """Writers die, generations change, manifests fail, controllers are replaced: none of it shuts the door for good."""
    schedule = random.Random(seed)
    cluster = Cluster(schedule, workers=3, total_steps=ENDLESS, checkpoint_every_s=0.05, max_restarts=1000)
    for _ in range(12):
        seen = len(cluster.checkpoints)
        cluster.run(lambda seen=seen: len(cluster.checkpoints) > seen)  # type: ignore[misc]
        match schedule.randrange(6):
            case 0:
                cluster.die(schedule.choice(cluster.living))
            case 1:
                for worker in cluster.living:
                    cluster.die(worker)
            case 2:
                cluster.ask(workers=schedule.randint(1, 4))
            case 3:
                cluster.replace_controller()
            case 4:
                failed = sum(event.kind == "checkpoint.failed" for event in cluster.events)
                cluster.may_commit = False
                cluster.run(
                    lambda failed=failed: (  # type: ignore[misc]
                        sum(event.kind == "checkpoint.failed" for event in cluster.events) > failed
                    )
                )
                cluster.may_commit = True
            case 5:
                cluster.ask(checkpoint_request=cluster.wish.checkpoint_request + 1)
        for _ in range(schedule.randrange(200)):
            cluster.advance()
