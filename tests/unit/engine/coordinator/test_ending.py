"""Ends that meet a change of membership, each other, or a fault."""

from __future__ import annotations

import functools
import json
import random
from collections import deque
from typing import Any

import pytest

from rubato.checkpoint.files import FileRecord
from rubato.checkpoint.manifest import open_checkpoint
from rubato.engine.coordinator.hangs import HangPolicy
from rubato.engine.coordinator.orders import ManifestCommitted
from rubato.errors import CheckpointCorrupt
from rubato.wire import worker as wire
from tests.unit.engine.coordinator import training
from tests.unit.engine.coordinator.simulation import Cluster, Worker
from tests.unit.engine.coordinator.storage import MemoryFolder

ENDLESS = 10**9
PROMPT_S = 10.0
"""Well below `stop_grace`: nobody had to be killed for taking too long."""


def train(cluster: Cluster, steps: int) -> None:
    cluster.run(lambda: cluster.coordinator.job.step >= steps and cluster.is_settled)


def end(cluster: Cluster) -> str:
    """Run to the end; fails where that took a deadline."""
    began = cluster.now
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.now - began < PROMPT_S
    assert not cluster.living
    return cluster.outcome.state


def with_pending_joiner(cluster: Cluster) -> None:
    """A joiner stands by for a generation that its members have not switched to; its own group never gets formed."""
    members = [worker for worker in cluster.living if worker.record is not None]
    cluster.ask(workers=len(members) + 1)
    cluster.run(lambda: cluster.coordinator.job.pending is not None)
    number = cluster.minted[-1].number
    for member in members:
        member.control.highest = number  # the command that would have it form the group is lost on it
        member.control.forming.pop(number, None)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("wish", "state"), [("pause", "paused"), ("stop", "cancelled")])
def test_an_end_does_not_wait_for_a_joiner_that_is_not_in_yet(seed: int, wish: str, state: str) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS)
    train(cluster, 3)
    with_pending_joiner(cluster)
    cluster.ask(run=wish)
    assert end(cluster) == state


@pytest.mark.parametrize("seed", range(3))
def test_success_does_not_wait_for_a_joiner_that_is_not_in_yet(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS)
    train(cluster, 3)
    with_pending_joiner(cluster)
    cluster.total_steps = max(worker.step for worker in cluster.living) + 2
    assert end(cluster) == "succeeded"


@pytest.mark.parametrize("moment", [0, 5, 20, 60])
def test_a_stop_after_a_pause_is_as_prompt_as_any(moment: int) -> None:
    cluster = Cluster(random.Random(moment), workers=2, total_steps=ENDLESS)
    cluster.may_commit = False
    train(cluster, 3)
    cluster.answers.clear()
    cluster.ask(run="pause")
    for _ in range(moment):
        cluster.advance()
    cluster.ask(run="stop")
    assert end(cluster) in ("cancelled", "paused")


@pytest.mark.parametrize("wish", ["run", "pause", "stop"])
def test_nobody_is_released_before_every_row_is_stored(wish: str) -> None:
    """Whoever takes over then finds them with the workers: the service takes none while this controller lives."""
    cluster = Cluster(random.Random(4), workers=3, total_steps=6 if wish == "run" else ENDLESS, stop_grace_s=1e6)
    train(cluster, 3)
    cluster.takes_rows = False
    cluster.ask(run=wish)
    cluster.run(lambda: len(cluster.living) == 3 and all(worker.ended for worker in cluster.living))
    for _ in range(500):
        cluster.advance()
    assert len(cluster.living) == 3
    last = max(worker.step for worker in cluster.living)
    assert max(cluster.rows) < last
    cluster.replace_controller()
    cluster.takes_rows = True
    assert end(cluster) in ("succeeded", "paused", "cancelled")
    assert sorted(cluster.rows) == list(range(1, last + 1))


def pause_and_lose_the_first() -> Cluster:
    """Its checkpoint is whole, and nobody is released yet, when the worker is lost that wrote the document."""
    cluster = Cluster(random.Random(5), workers=3, total_steps=ENDLESS, stop_grace_s=1e6)
    train(cluster, 3)
    cluster.takes_rows = False
    cluster.ask(run="pause")
    cluster.run(lambda: bool(cluster.checkpoints) and all(worker.ended for worker in cluster.living))
    members = [worker for worker in cluster.living if worker.record is not None]
    cluster.die(next(one for one in members if one.record and one.record.rank_of(one.incarnation) == 0))
    cluster.takes_rows = True
    assert end(cluster) == "paused"
    return cluster


def test_what_a_pause_saves_again_after_a_loss_leaves_whole_what_was_committed() -> None:
    cluster = pause_and_lose_the_first()
    ((attempt, step),) = cluster.checkpoints
    folder = cluster.storage / f"{attempt}-{step}"
    assert len([name for name in folder.files() if name.startswith("state")]) == 2, "it was saved again"
    assert open_checkpoint(folder).generation == 1


def test_documents_of_one_name_would_ruin_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: MemoryFolder, document: dict[str, Any], entries: Any) -> FileRecord:
        return folder.write("state.json", [json.dumps(document).encode()])

    monkeypatch.setattr(training, "write_document", write)
    with pytest.raises(CheckpointCorrupt):
        pause_and_lose_the_first()


def test_a_pause_whose_checkpoint_hangs_ends_with_its_grace_and_says_what_it_costs() -> None:
    cluster = Cluster(random.Random(3), workers=2, total_steps=ENDLESS)
    train(cluster, 6)
    cluster.ask(run="pause")

    def is_over() -> bool:
        for answer in [one for one in cluster.answers if isinstance(one, ManifestCommitted)]:
            cluster.answers.remove(answer)  # the storage never says that it is there
        return cluster.outcome is not None

    cluster.run(is_over)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "paused"
    told = [event.message for event in cluster.events if event.kind == "checkpoint.failed"]
    assert len(told) == 1
    assert "was not saved within limits.stop_grace" in told[0]
    assert not [event for event in cluster.events if event.kind == "worker.lost"], "they had all stopped in time"


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_pause_whose_workers_are_still_writing_when_they_are_ended_says_what_it_costs(is_forced: bool) -> None:
    cluster = Cluster(random.Random(3), workers=2, total_steps=ENDLESS)
    train(cluster, 6)
    cluster.ask(run="pause", force=is_forced)

    def is_over() -> bool:
        for worker in cluster.living:  # they save before they say that they have ended
            worker.outbox = deque(one for one in worker.outbox if not isinstance(one, wire.Ended | wire.StripeWritten))
        return cluster.outcome is not None

    cluster.run(is_over)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "paused"
    (told,) = [event.message for event in cluster.events if event.kind == "checkpoint.failed"]
    assert ("before the pause was forced" if is_forced else "within limits.stop_grace") in told
    assert "goes on from the newest checkpoint there is" in told


@pytest.mark.parametrize(("graces_s", "ends_after_s"), [((40.0,), 40.0), ((40.0, 10.0), 10.0), ((10.0, 40.0), 40.0)])
def test_a_cancel_may_say_how_long_its_workers_may_take(graces_s: tuple[float, ...], ends_after_s: float) -> None:
    """Instead of what the spec says; asked again it is another time since the first."""
    cluster = Cluster(random.Random(3), workers=2, total_steps=ENDLESS, stop_grace_s=1e6)
    train(cluster, 6)
    began = cluster.now
    for grace_s in graces_s:
        cluster.ask(run="stop", grace_s=grace_s)

    def is_over() -> bool:
        for worker in cluster.living:  # they never say that they have ended
            worker.outbox = deque(one for one in worker.outbox if not isinstance(one, wire.Ended))
        return cluster.outcome is not None

    cluster.run(is_over)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "cancelled"
    assert ends_after_s <= cluster.now - began < ends_after_s + 5


def raises(worker: Worker, step: int) -> wire.UserFailed:
    return wire.UserFailed(worker.incarnation, "step", "NameError: no", "Traceback", step, None)


def test_an_acknowledged_stop_wins_over_a_failure_that_comes_after_it() -> None:
    cluster = Cluster(random.Random(1), workers=2, total_steps=ENDLESS)
    train(cluster, 3)
    cluster.ask(run="stop")
    for worker in cluster.living:
        worker.say(raises(worker, 3))
        cluster.die(worker, code=1)
    assert end(cluster) == "cancelled"


def test_what_a_leaver_raises_after_its_good_bye_fails_nobody() -> None:
    cluster = Cluster(random.Random(2), workers=4, total_steps=ENDLESS)
    train(cluster, 3)
    cluster.ask(workers=2)

    complained = set()

    def is_settled() -> bool:
        for worker in cluster.workers.values():
            for place, said in enumerate(worker.outbox):
                if isinstance(said, wire.Left) and worker.incarnation not in complained:
                    complained.add(worker.incarnation)
                    worker.outbox.insert(place + 1, raises(worker, 3))  # of its own clean-up, in a `finally`
                    break
        return cluster.is_settled and len(cluster.living) == 2

    cluster.run(is_settled)
    assert len(complained) == 2
    assert cluster.outcome is None


@pytest.mark.parametrize("seed", range(12))
def test_a_leaver_ends_by_itself_however_late_it_says_good_bye(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=4, total_steps=ENDLESS)
    train(cluster, 3)
    cluster.ask(workers=2)
    killed = {}

    def is_settled() -> bool:
        killed.update((view.worker_id, view.doom) for view in cluster.coordinator.job.roster if view.doom)
        return cluster.is_settled and len(cluster.living) == 2

    cluster.run(is_settled)
    assert not killed


def lose_neighbours_at_the_end(cluster: Cluster, *, has_changed: bool) -> None:
    """All have gone on behind the last step; then two that hold the same part of its checkpoint die unheard."""
    cluster.run(lambda: len(cluster.living) == 4 and all(worker.is_sealed for worker in cluster.living))
    by_rank = {worker.record.rank_of(worker.incarnation): worker for worker in cluster.living if worker.record}
    for worker in cluster.living:
        worker.has_changed = has_changed
    for rank in (1, 2):
        by_rank[rank].outbox = deque(
            message for message in by_rank[rank].outbox if not isinstance(message, wire.StripeWritten)
        )
        cluster.die(by_rank[rank])


@functools.cache
def seeds_with_unheard_parts() -> list[int]:
    """Of those that are tried: where no part of rank 1 or 2 was delivered before all had gone on."""
    found = []
    for seed in range(100):
        cluster = Cluster(random.Random(seed), workers=4, total_steps=5)
        cluster.run(lambda c=cluster: len(c.living) == 4 and all(worker.is_sealed for worker in c.living))
        parts = cluster.coordinator.job.ledger._parts.get("1-5", {})
        if parts and 1 not in parts and not cluster.checkpoints:
            found.append(seed)
    return found


@pytest.mark.parametrize("has_changed", [False, True], ids=["as it was", "changed since"])
@pytest.mark.parametrize("takes_over", [False, True], ids=["", "and the controller"])
def test_a_last_checkpoint_whose_writers_are_lost_is_made_again_or_given_up(
    has_changed: bool, takes_over: bool
) -> None:
    seeds = seeds_with_unheard_parts()
    assert len(seeds) >= 3
    for seed in seeds:
        cluster = Cluster(random.Random(seed), workers=4, total_steps=5)
        lose_neighbours_at_the_end(cluster, has_changed=has_changed)
        if takes_over:
            cluster.replace_controller()
        assert end(cluster) == "succeeded"
        assert (5 in [step for _, step in cluster.checkpoints]) is not has_changed
        told = [event for event in cluster.events if event.kind == "checkpoint.failed"]
        assert bool(told) is has_changed


@pytest.mark.parametrize("seed", range(5))
def test_a_last_checkpoint_is_never_made_of_a_state_that_was_changed_since(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=3, total_steps=5)
    cluster.run(lambda: len(cluster.living) == 3 and all(worker.is_sealed for worker in cluster.living))
    for worker in cluster.living:
        worker.has_changed = True
    generation = cluster.minted[-1].number
    cluster.die(cluster.living[1])
    assert end(cluster) == "succeeded"
    assert cluster.checkpoints[-1][1] == 5
    saved_in = {worker.stripe.generation for worker in cluster.workers.values() if worker.stripe is not None}
    assert saved_in == {generation}, "by the heir of the one that was lost, not anew"


@pytest.mark.parametrize("spares", [0, 1])
def test_who_is_lost_behind_the_last_step_is_replaced_only_where_all_are(spares: int) -> None:
    cluster = Cluster(random.Random(3), workers=3, total_steps=5, standby_workers=spares)
    cluster.writes, cluster.may_commit = "hang", False
    cluster.run(lambda: len(cluster.living) == 3 + spares and sum(one.is_sealed for one in cluster.living) == 3)
    job = cluster.coordinator.job
    for worker in [one for one in cluster.living if one.record is None] + cluster.living[:1]:
        cluster.die(worker)
    for _ in range(1000):
        cluster.advance()
    assert (job.spawned, len(cluster.living), job.reason) == (3 + spares, 2, "")
    for worker in cluster.living:
        cluster.die(worker)
    cluster.writes, cluster.may_commit = "well", True
    assert end(cluster) == "succeeded"
    assert job.spawned > 3 + spares


@pytest.mark.parametrize("rolls_back", [False, True])
def test_who_is_lost_while_programs_evaluate_behind_their_loops_is_not_replaced(rolls_back: bool) -> None:
    """That the last step counts is told when they are over; until then only their progress words say so."""
    endless = HangPolicy(1e9, 1e9, 1e9, 1e9)
    cluster = Cluster(random.Random(3), workers=3, total_steps=5, rolls_back=rolls_back, hangs=endless)
    cluster.evaluates_behind = True
    job = cluster.coordinator.job
    cluster.run(lambda: len(job.roster) == 3 and min(worker.step for worker in job.roster) == 5)
    if rolls_back:
        cluster.run(lambda: job.ledger.committed_step == 5)
    assert job.step == 4
    cluster.die(cluster.living[0])
    for _ in range(1000):
        cluster.advance()
    assert job.is_settled
    assert (job.spawned, len(cluster.living), job.restarts) == (3, 2, 0)
    cluster.evaluates_behind = False
    assert end(cluster) == "succeeded"


def finished_and_unsaved(takes_rows: bool) -> Cluster:
    """All have finished, and what they saved last, or the rows, will never be stored."""
    cluster = Cluster(random.Random(3), workers=2, total_steps=5)
    cluster.writes, cluster.takes_rows = "hang" if takes_rows else "well", takes_rows
    cluster.run(lambda: len(cluster.living) == 2 and all(worker.ended for worker in cluster.living))
    for _ in range(500):
        cluster.advance()
    assert len(cluster.living) == 2
    return cluster


@pytest.mark.parametrize("takes_rows", [True, False], ids=["its checkpoint hangs", "its rows are not stored"])
@pytest.mark.parametrize(("grace_s", "force"), [(None, True), (10.0, False), (None, False)])
def test_a_cancel_ends_what_has_finished_and_cannot_be_stored(
    takes_rows: bool, grace_s: float | None, force: bool
) -> None:
    cluster = finished_and_unsaved(takes_rows)
    began = cluster.now
    cluster.ask(run="stop", force=force, grace_s=grace_s)
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "cancelled"
    due_s = 0.0 if force else grace_s or 30.0
    assert due_s <= cluster.now - began < due_s + 5


def test_what_finishes_in_the_grace_of_its_cancel_has_finished() -> None:
    cluster = finished_and_unsaved(takes_rows=True)
    cluster.ask(run="stop")
    cluster.writes = "well"
    assert end(cluster) == "succeeded"
    assert [step for _, step in cluster.checkpoints] == [5]


def test_a_forced_cancel_does_not_wait_for_who_was_released_and_hangs() -> None:
    cluster = Cluster(random.Random(3), workers=2, total_steps=5)
    cluster.takes_rows = False
    cluster.run(lambda: len(cluster.living) == 2 and all(worker.ended for worker in cluster.living))
    stuck = cluster.living[0]
    cluster.hang(stuck)
    cluster.takes_rows = True
    cluster.run(lambda: len(cluster.living) == 1 and stuck.control.is_released)
    cluster.ask(run="stop", force=True)
    began = cluster.now
    assert end(cluster) == "succeeded", "all that it made is stored"
    assert cluster.now - began < 0.5


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("writes", ["well", "fail"])
def test_who_takes_over_behind_the_last_step_hears_what_became_of_its_checkpoint(
    writes: training.Writes, seed: int
) -> None:
    """However long ago that was: it is not over before that is known, and the workers have said it already."""
    cluster = Cluster(random.Random(seed), workers=2, total_steps=5)
    cluster.writes, cluster.may_commit = writes, False

    def is_behind() -> bool:
        for worker in cluster.living:
            if worker.is_sealed:
                cluster.hang(worker)  # what its program does behind the last step goes on
        return len(cluster.living) == 2 and all(worker.is_sealed for worker in cluster.living)

    cluster.run(is_behind)
    for worker in cluster.living:
        while worker.outbox:
            cluster._deliver(worker, cluster.leader)
        worker.stripes_at = -1e9
    cluster.replace_controller()
    for worker in cluster.living:
        cluster.go_on(worker)
    cluster.may_commit = True
    assert end(cluster) == "succeeded"
    told = [event.step for event in cluster.events if event.kind == "checkpoint.failed"]
    assert 5 in (told if writes == "fail" else [step for _, step in cluster.checkpoints])


@pytest.mark.parametrize("seed", range(20))
def test_who_hears_that_its_generation_is_over_is_released_all_the_same(seed: int) -> None:
    """The successor hears of a generation that nobody has entered, and of all that they have ended."""
    cluster = Cluster(random.Random(seed), workers=2, total_steps=5, standby_workers=1)
    cluster.takes_rows = False
    cluster.run(lambda: len(cluster.living) == 3 and sum(one.ended is not None for one in cluster.living) == 2)
    with_pending_joiner(cluster)
    cluster.replace_controller()
    cluster.takes_rows = True
    assert end(cluster) == "succeeded"
