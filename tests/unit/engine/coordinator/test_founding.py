"""With whom training begins."""

from __future__ import annotations

import pytest

from rubato.engine.coordinator import CheckpointFound, Coordinator, Order, Send, Spawn, Terms, Wish
from rubato.engine.coordinator.founding import LEAST_WARMING_GRACE_S, PLACEMENT_GRACE_S
from rubato.engine.coordinator.state import JobState
from rubato.wire import worker as wire

TICK_S = 0.1


class Start:
    """Workers that have a slot, and warm up as they are told."""

    def __init__(self, workers: int, least: int = 1) -> None:
        self.coordinator = Coordinator(Terms("job", 1, num_microbatches=8, min_workers=least), Wish("run", workers))
        self.now = 0.0
        self.founded: wire.GenerationRecord | None = None
        orders = self.coordinator.tick(self.now)
        self.workers = [order.incarnation for order in orders if isinstance(order, Spawn)]
        self.say(CheckpointFound())

    def say(self, *messages: object) -> None:
        for message in messages:
            self._take(self.coordinator.handle(message, self.now))

    def place(self, *workers: str) -> None:
        for one in workers:
            self.say(wire.Spawned(one, 1, 2, "node"), wire.Hello(one, "host:1"))

    def stand_by(self, *workers: str) -> None:
        self.say(*(wire.Standby(one, "layout", "code", 100) for one in workers))

    def pass_time(self, seconds: float) -> None:
        """Until a generation is founded, at most so long."""
        end = self.now + seconds
        while self.now < end and self.founded is None:
            self.now += TICK_S
            for worker in self.coordinator.job.roster:
                worker.heard_at = self.now
            self._take(self.coordinator.tick(self.now))

    def _take(self, orders: list[Order]) -> None:
        for order in orders:
            if isinstance(order, Send) and isinstance(order.command, wire.Prepare):
                self.founded = order.command.record


@pytest.mark.parametrize("warm_up_s", [2.0, 60.0])
def test_one_that_hangs_in_its_warm_up_holds_nobody_up(warm_up_s: float) -> None:
    start = Start(workers=3)
    start.place(*start.workers)
    start.pass_time(warm_up_s)
    *quick, slow = start.workers
    start.stand_by(*quick)
    began = start.now
    start.pass_time(1000.0)
    assert start.founded is not None
    assert [member.incarnation for member in start.founded.members] == quick
    assert start.now - began == pytest.approx(max(LEAST_WARMING_GRACE_S, warm_up_s), abs=2 * TICK_S)
    assert start.coordinator.job.roster.get(slow) is not None, "it joins when it is warm"


def test_who_warms_up_at_about_the_same_time_begins_together() -> None:
    start = Start(workers=3)
    start.place(*start.workers)
    for worker in start.workers:
        start.pass_time(0.9 * LEAST_WARMING_GRACE_S)
        assert start.founded is None
        start.stand_by(worker)
    assert start.founded is not None
    assert start.founded.world == 3


def test_a_worker_without_a_slot_is_waited_for_only_a_moment() -> None:
    start = Start(workers=3)
    start.place(*start.workers[:2])
    start.stand_by(*start.workers[:2])
    start.pass_time(1000.0)
    assert start.founded is not None
    assert start.founded.world == 2
    assert start.now == pytest.approx(PLACEMENT_GRACE_S, abs=2 * TICK_S)


def test_fewer_than_the_job_needs_are_too_few_however_long_it_takes() -> None:
    start = Start(workers=3, least=3)
    start.place(*start.workers)
    start.stand_by(*start.workers[:2])
    start.pass_time(500.0)
    assert start.founded is None
    start.stand_by(start.workers[2])
    assert start.founded is not None


def test_who_founds_the_job_anew_is_told_of_no_step_for_it_may_go_back() -> None:
    job = JobState(Terms("job", 1, num_microbatches=1), Wish("run", 1), restarts=1, scalings=0)
    job.step = 57
    job.spawn(1, 0.0)
    member = wire.Member("w1.1", "1.1")
    job.current = wire.GenerationRecord(1, 1, (member,), (0,), "store", wire.Origin("fresh"), "start", 0)
    job.spawn(1, 0.0)
    assert [order.step for order in job.flush() if isinstance(order, Spawn)] == [0, 57]


def test_who_founds_the_job_anew_forgets_where_all_had_stopped_the_steps() -> None:
    start = Start(workers=2)
    start.place(*start.workers)
    start.stand_by(*start.workers)
    start.pass_time(10.0)
    start.say(*(wire.Entered(one, 1, 0) for one in start.workers))
    start.say(*(wire.Stopped(one, 40) for one in start.workers))
    job = start.coordinator.job
    assert job.total_steps == 40
    start.say(*(wire.Exited(one, None, "SIGKILL") for one in start.workers))
    assert job.restarts == 1
    assert job.total_steps is None, "nobody has said it yet"
    start.pass_time(30.0)
    job.learn_total(100)
    assert job.total_steps == 100
