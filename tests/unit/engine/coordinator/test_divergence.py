from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rubato.engine.coordinator import CommitManifest, Coordinator, Terms, Wish
from rubato.engine.coordinator.divergence import Alarm, Divergences, Verdict, decide_divergence
from rubato.wire import worker as wire
from rubato.wire.cluster import Distrust
from tests.unit.engine.coordinator.simulation import Cluster

FIRST = Alarm(generation=3, step=120, agreed=100, what="states")


def test_what_was_saved_since_all_agreed_does_not_count() -> None:
    assert decide_divergence(FIRST, None) == Verdict(100, "")


def test_of_a_joiner_nothing_counts_what_the_members_saved_before_does() -> None:
    assert decide_divergence(replace(FIRST, joined_at=120), None) == Verdict(None, ""), "it has saved nothing yet"
    assert decide_divergence(replace(FIRST, joined_at=119), None) == Verdict(119, "")


def test_at_the_start_it_is_the_program() -> None:
    verdict = decide_divergence(replace(FIRST, step=0, agreed=0, is_at_start=True), None)
    assert "Build model and optimizer inside train()" in verdict.failure


@pytest.mark.parametrize(
    ("again", "fails"),
    [
        (replace(FIRST, generation=4, agreed=110), True),  # the same step, from a checkpoint before it
        (replace(FIRST, generation=4, step=115, agreed=110), True),  # not even there
        (replace(FIRST, generation=4, step=900, agreed=119), True),  # beyond it, without ever having agreed there
        (replace(FIRST, generation=4, step=900, agreed=120), False),  # another accident
        (replace(FIRST, generation=4, step=900, agreed=899), False),
    ],
)
def test_a_second_time_is_an_accident_only_beyond_the_first(again: Alarm, fails: bool) -> None:
    divergences = Divergences()
    divergences.on_alarm(FIRST)
    assert divergences.on_alarm(FIRST) is None, "another worker says the same"
    verdict = divergences.on_alarm(again)
    assert verdict is not None
    assert bool(verdict.failure) == fails
    assert not fails or "not registered with run.register" in verdict.failure


def test_what_a_joiner_sees_of_a_member_and_the_comparison_after_it_are_one_accident() -> None:
    divergences = Divergences()
    seen = divergences.on_alarm(replace(FIRST, joined_at=120))
    assert seen == Verdict(None, "")
    member = replace(FIRST, generation=4)
    assert divergences.on_alarm(member) == Verdict(FIRST.agreed, "")
    again = divergences.on_alarm(replace(FIRST, generation=5))
    assert again is not None
    assert again.failure, "the member's was one, too"


def test_two_joiners_in_a_row_are_no_accident_however_far_the_members_got() -> None:
    first = replace(FIRST, joined_at=120)
    second = Alarm(9, 5000, 4999, "gradients", joined_at=5000)
    for is_overcome in (False, True):
        divergences = Divergences()
        divergences.on_alarm(first)
        if is_overcome:
            divergences.on_joined()
        verdict = divergences.on_alarm(second)
        assert verdict is not None
        assert bool(verdict.failure) != is_overcome


@pytest.mark.parametrize("distrusted", [(), (Distrust(5, attempt=1, generation=1),)])
def test_a_successor_saves_nothing_that_was_found_to_be_wrong(distrusted: tuple[Distrust, ...]) -> None:
    """The workers that it takes over tell it what they have written."""
    record = wire.GenerationRecord(1, 1, (wire.Member("w1.1", "1.1"),), (0,), "store", wire.Origin("fresh"), "start", 0)
    standby = wire.Standby("1.1", "layout", "code", 10)
    told = wire.Snapshot("1.1", wire.Hello("1.1", "store"), standby, record, 1, None, None, 10)
    coordinator = Coordinator(Terms("job", 2, 1), Wish("run", 1), row_step=10, distrusted=distrusted)
    coordinator.adopt([told], [], 0.0)
    orders = coordinator.handle(wire.StripeWritten("1.1", 1, 10, "1-10", 0, 1, (), members=("1.1",)), 0.0)
    assert any(isinstance(order, CommitManifest) for order in orders) == (not distrusted)


@pytest.mark.parametrize("hears_last", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_who_is_cut_off_before_it_knows_that_it_differs_is_out_all_the_same(seed: int, hears_last: bool) -> None:
    """Those who have seen it leave the group. To the odd one that looks like a loss, and it would go on with them."""
    cluster = Cluster(random.Random(seed), workers=3, total_steps=40)
    cluster.run(lambda: cluster.coordinator.job.step >= 5 and cluster.is_settled)
    odd, *others = cluster.living
    step = odd.step
    for worker in [*others, odd] if hears_last else [odd, *others]:
        assert worker.record is not None
        if worker is not odd:
            place = (worker.incarnation, worker.record.number, step)
            worker.say(wire.StateDiverged(*place, ("0", "1", "1"), "states", step, (odd.incarnation,)))
        cluster._recover(worker, "the states of ranks [0] differ from those of the others")
    highest = cluster.minted[-1].number
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded"
    later = [record for record in cluster.minted if record.number > highest]
    assert later
    assert not any(record.rank_of(odd.incarnation) is not None for record in later)
    assert [event.step for event in cluster.events if event.kind == "diverged"] == [step]
    (lost,) = [event for event in cluster.events if event.kind == "worker.lost"]
    assert lost.data["cause"] == "the states differed, and it was not among a majority"
