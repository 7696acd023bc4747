"""Joins, and other planned changes, that fail again and again: the members train on, and it is not tried for ever."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from rubato.engine.coordinator import CheckpointFound, Coordinator, Emit, Kill, Order, Send, Spawn, Terms, Wish
from rubato.engine.coordinator.changes import LONGEST_MOVE_WAIT_S, LONGEST_WAIT_S, MOST_JOINS, decide_retry
from rubato.engine.coordinator.hangs import HangPolicy
from rubato.engine.coordinator.starting import FIRST_WAIT_S, NEVER, OWN_ROUNDS
from rubato.wire import worker as wire
from tests.unit.engine.coordinator.simulation import Cluster
from tests.unit.engine.coordinator.test_machine import ENDLESS, train


class Story:
    """A coordinator whose members train, told by hand; workers that are started are warm at once."""

    def __init__(self, workers: int, hangs: HangPolicy | None = None) -> None:
        terms = Terms("job", 1, num_microbatches=12, hangs=hangs or HangPolicy())
        self.coordinator = Coordinator(terms, Wish("run", workers))
        self.job = self.coordinator.job
        self.now = 0.0
        self.orders: list[Order] = []
        self.minted: list[tuple[float, wire.GenerationRecord]] = []
        self.say(CheckpointFound())
        self.wait(lambda: self.job.pending is not None)
        self.enter()

    def take(self, orders: list[Order]) -> None:
        self.orders += orders
        for order in orders:
            if isinstance(order, Spawn):
                one = order.incarnation
                self.say(wire.Spawned(one, 1, 2, "node"))
                self.say(wire.Hello(one, "host:1"))
                self.say(wire.Standby(one, "layout", "code", ENDLESS))
            elif isinstance(order, Kill):
                self.say(wire.Exited(order.incarnation, None, "SIGKILL"))
            elif isinstance(order, Send) and isinstance(order.command, wire.Prepare):
                record = order.command.record
                if record.number > max((one.number for _, one in self.minted), default=0):
                    self.minted.append((self.now, record))

    def say(self, *messages: object) -> None:
        for message in messages:
            self.take(self.coordinator.handle(message, self.now))

    def enter(self) -> None:
        pending = self.job.pending
        assert pending is not None
        self.say(*(wire.Entered(one.incarnation, pending.number, 0) for one in pending.members))

    def wait(self, until: Callable[[], bool], most_s: float = 100.0) -> None:
        end = self.now + most_s
        while not until():
            assert self.now < end, "it never came to pass"
            self.now += 0.1
            for worker in self.job.roster:
                worker.heard_at = self.now
            self.take(self.coordinator.tick(self.now))

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        self.wait(lambda: self.now >= end, seconds + 1)

    def events(self, kind: str = "change.failed") -> list[Emit]:
        return [order for order in self.orders if isinstance(order, Emit) and order.kind == kind]


def refuses(story: Story, joiner: str, number: int) -> None:
    """It says so, and stays."""
    story.say(wire.FormFailed(joiner, number, "no memory"))


def leaves(story: Story, joiner: str, number: int) -> None:
    story.say(wire.FormFailed(joiner, number, "no memory"), wire.Left(joiner, number, 5))
    story.say(wire.Exited(joiner, 0, None))


def dies_unseen(story: Story, joiner: str, number: int) -> None:
    """Its member notices before its supervisor does."""
    story.say(wire.FormFailed("1.1", number, "a peer was lost: no memory"), wire.Exited(joiner, None, "SIGKILL"))


def dies(story: Story, joiner: str, number: int) -> None:
    told = "the kernel killed it, as there was no memory left"
    story.say(wire.Exited(joiner, None, "SIGKILL", (), told), wire.FormFailed("1.1", number, "a peer was lost"))


@pytest.mark.parametrize("fails", [refuses, leaves, dies_unseen, dies])
def test_a_join_that_fails_is_tried_again_after_waits_that_grow_and_then_no_more(
    fails: Callable[[Story, str, int], None],
) -> None:
    story = Story(workers=1)
    begun = len(story.minted)
    story.say(Wish("run", 2))
    for _ in range(MOST_JOINS):
        story.wait(lambda: story.job.pending is not None)
        pending = story.job.pending
        assert pending is not None
        fails(story, pending.joining[0], pending.number)
        assert story.job.pending is None, "at once"
        assert "no memory" in story.coordinator.observed().reason or not story.job.changes.has_given_up_joins
    tried = [at for at, _ in story.minted[begun:]]
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert len(gaps) == MOST_JOINS - 1
    for index, gap in enumerate(gaps):
        assert gap >= min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**index) - 0.11
    told = story.events()
    assert [one.data["times"] for one in told] == list(range(1, MOST_JOINS + 1))
    assert all("no memory" in one.data["cause"] and one.data["joining"] for one in told)
    assert told[-1].data["seconds"] is None
    assert "no more are added until the wish changes" in told[-1].message
    story.pass_time(200)
    assert len(story.minted) == begun + MOST_JOINS
    assert "no memory" in story.coordinator.observed().reason, "why there are fewer than wished for"
    assert [one.incarnation for one in story.job.roster] == ["1.1"], "nobody stands by for nothing"
    assert not any(isinstance(one, Send) and isinstance(one.command, wire.Revoke) for one in story.orders)
    story.say(Wish("run", 3))
    story.wait(lambda: story.job.pending is not None)
    story.enter()
    story.pass_time(1)
    assert (story.coordinator.observed().workers, story.coordinator.observed().reason) == (3, "")


def test_joiners_that_die_by_themselves_are_given_up_sooner_and_the_reason_says_so() -> None:
    story = Story(workers=1)
    story.say(Wish("run", 2))
    for _ in range(OWN_ROUNDS):
        story.wait(lambda: story.job.pending is not None)
        joiner = story.minted[-1][1].joining[0]
        story.say(wire.UserFailed(joiner, "setup", "ValueError: no", "Traceback", None, None))  # it is no member yet
        worker = story.job.roster.get(joiner)
        assert worker is None or worker.error
        story.say(wire.Exited(joiner, 1, None))
    story.pass_time(5)
    reason = story.coordinator.observed().reason
    assert "ValueError: no" in reason
    assert "no more are added" in reason


def test_a_join_that_comes_about_forgets_those_that_failed() -> None:
    story = Story(workers=1)
    story.say(Wish("run", 2))
    for _ in range(3):
        for _ in range(MOST_JOINS - 1):
            story.wait(lambda: story.job.pending is not None)
            refuses(story, story.minted[-1][1].joining[0], story.minted[-1][1].number)
        story.wait(lambda: story.job.pending is not None)
        story.enter()
        assert story.job.changes.because == ""
        story.say(wire.Exited(story.minted[-1][1].joining[0], None, "SIGKILL"))
        story.say(wire.Broken("1.1", story.job.highest, True, 5, ""))
        story.enter()
    assert not story.job.changes.has_given_up_joins


def test_a_joiner_that_somebody_kills_is_no_join_that_failed() -> None:
    story = Story(workers=1)
    story.say(Wish("run", 2))
    story.wait(lambda: story.job.pending is not None)
    worker = story.job.roster.get(story.minted[-1][1].joining[0])
    assert worker is not None
    worker.is_killed_by_hand = True
    story.say(wire.Exited(worker.incarnation, None, "SIGKILL"))
    assert not story.events()


def test_a_leave_that_fails_is_tried_without_end_and_not_at_once() -> None:
    story = Story(workers=3)
    story.say(Wish("run", 2))
    for _ in range(3 * MOST_JOINS):
        story.wait(lambda: story.job.pending is not None)
        story.say(wire.FormFailed("1.1", story.minted[-1][1].number, "cannot connect"))
        assert story.job.pending is None
    gaps = [after[0] - before[0] for before, after in zip(story.minted[1:], story.minted[2:], strict=False)]
    assert min(gaps[-5:]) >= LONGEST_MOVE_WAIT_S - 0.11
    assert max(gaps) <= LONGEST_MOVE_WAIT_S + 0.5
    assert len(story.events()) == MOST_JOINS, "and not an event for each"
    story.wait(lambda: story.job.pending is not None)
    story.enter()
    assert story.job.changes.because == ""


def test_a_leave_that_fails_is_told_as_the_reason() -> None:
    story = Story(workers=3)
    story.say(Wish("run", 2))
    story.wait(lambda: story.job.pending is not None)
    story.say(wire.FormFailed("1.1", story.minted[-1][1].number, "cannot connect"))
    story.pass_time(0.2)
    assert "cannot connect" in story.coordinator.observed().reason
    story.wait(lambda: story.job.pending is not None)
    story.enter()
    story.pass_time(0.2)
    assert story.coordinator.observed().reason == ""


def test_a_rebalancing_that_fails_is_no_reason_and_is_forgotten_once_one_holds() -> None:
    story = Story(workers=2)
    members = story.job.roster.of(story.job.current)
    number = story.job.number
    for times in range(1, 4):
        story.job.mint(members, wire.Origin("members"), "rebalance", follows=number)
        story.say(wire.FormFailed("1.1", story.job.highest, "cannot connect"))
        assert story.events()[-1].data["times"] == times
        assert "cannot connect" in story.events()[-1].message
        story.pass_time(0.2)
        assert story.coordinator.observed().reason == "", "the members are as they were wished"
    assert not story.job.changes.may_try(story.now, joins=False)
    story.job.mint(members, wire.Origin("members"), "rebalance", follows=number)
    story.enter()
    assert story.job.changes.may_try(story.now, joins=False)


def test_members_that_are_through_left_out_nothing_that_a_joiner_waits_for() -> None:
    story = Story(workers=2, hangs=HangPolicy.fixed(5.0))
    story.say(Wish("run", 3))
    story.wait(lambda: story.job.pending is not None)
    for incarnation, stage in (("1.1", "done"), ("1.2", "done"), ("1.3", "standby")):
        worker = story.job.roster.get(incarnation)
        assert worker is not None
        worker.beat = wire.Beat(incarnation, story.job.number, 5, stage, 60.0)
    story.wait(lambda: bool(story.events()))
    (told,) = story.events()
    assert "could not join" in told.message
    assert not any(isinstance(one, Send) and isinstance(one.command, wire.Revoke) for one in story.orders)


def test_whoever_has_not_formed_a_generation_in_time_is_named() -> None:
    story = Story(workers=1)
    story.say(Wish("run", 2))
    story.wait(lambda: story.job.pending is not None)
    story.say(wire.Formed("1.1", story.minted[-1][1].number))
    story.wait(lambda: story.job.pending is None)
    (told,) = story.events()
    assert told.message.startswith("w1.2 could not join: w1.2 had not formed it after 60 s; it is tried again in 0.5 s")


def test_the_wait_grows_to_its_longest() -> None:
    waits = [decide_retry(times, joins=False).wait_s for times in range(1, 40)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (FIRST_WAIT_S, LONGEST_MOVE_WAIT_S)
    assert decide_retry(MOST_JOINS, joins=True).wait_s == NEVER


@pytest.mark.parametrize("seed", range(5))
def test_members_train_on_while_no_joiner_can_take_over_the_state(seed: int) -> None:
    cluster = Cluster(random.Random(seed), workers=2, total_steps=ENDLESS)
    train(cluster, 3)
    members = [worker.incarnation for worker in cluster.living]
    cluster.may_join = False
    cluster.ask(workers=4)
    cluster.run(lambda: cluster.coordinator.job.changes.has_given_up_joins, limit=100_000)
    step = cluster.coordinator.job.step
    cluster.run(lambda: cluster.coordinator.job.step > step + 5 and len(cluster.living) == 2)
    assert [worker.incarnation for worker in cluster.living] == members
    assert not cluster.revokes
    assert len(cluster.minted) == 1 + MOST_JOINS
    cluster.may_join = True
    cluster.ask(workers=3)
    cluster.run(lambda: cluster.is_settled)
