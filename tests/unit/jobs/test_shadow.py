"""What a supervisor knows of its training process is enough to take it over, whatever happens before and after."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.shadow import Shadow
from rubato.engine.coordinator import Coordinator, Order, Rows, Terms, Wish
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from tests.unit.engine.coordinator.controllers import Controller
from tests.unit.engine.coordinator.simulation import Cluster
from tests.unit.engine.coordinator.test_machine import PROPERTIES, fault_lists, play

STEPS = 25


class Told(Cluster):
    """A job of which every row must be passed on. New controllers find some of its workers silent (`answer_for`)."""

    def __init__(self, schedule: random.Random, **terms: object) -> None:
        self.told: dict[int, int] = {}
        """By attempt, the last row that its controller passed on, or knew to be stored."""
        super().__init__(schedule, total_steps=STEPS, max_restarts=50, **terms)

    def carry_out(self, orders: list[Order], by: Controller) -> None:
        for order in orders:
            for row in order.rows if isinstance(order, Rows) else ():
                known = self.told.get(by.attempt, max(self.rows, default=0))
                assert row.step <= known + 1, f"rows between {known} and {row.step} were left out"
                self.told[by.attempt] = row.step
        super().carry_out(orders, by)


@PROPERTIES
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), spares=st.integers(0, 2), faults=fault_lists(250))
def test_silent_workers_are_taken_over_and_the_job_ends_well(
    seed: int, workers: int, spares: int, faults: list[tuple[int, str]]
) -> None:
    cluster = Told(random.Random(seed), workers=workers, standby_workers=spares)
    play(cluster, [*faults, (40, "replace"), (40, "replace")])
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded", cluster.outcome
    assert cluster.outcome.result is not None
    assert cluster.outcome.result.step == STEPS
    assert sorted(cluster.rows) == list(range(1, STEPS + 1)), "one row a step, none lost"


def test_what_became_of_its_parts_is_known_of_the_newest_checkpoint() -> None:
    def part(step: int, index: int, generation: int = 1) -> wire.StripeWritten:
        return wire.StripeWritten("1.1", generation, step, f"1-{step}", index, 2, ())

    failed = wire.StripeFailed("1.1", "1-25", 25, "the disk is full", 1)
    shadow = Shadow("1.1")
    shadow.on_message(wire.Standby("1.1", "layout", "code", 25))
    for message in (part(10, 0), part(10, 1)):
        shadow.on_message(message)
    assert shadow.parts == (part(10, 0), part(10, 1))
    assert not shadow.is_at_end
    for message in (part(25, 0), failed):
        shadow.on_message(message)
    assert shadow.parts == (part(25, 0), failed)
    assert shadow.is_at_end, "also while its program still runs"
    shadow.on_message(part(25, 0, generation=2))
    assert shadow.parts == (part(25, 0, generation=2),)
    shadow.on_message(part(25, 1))
    assert shadow.parts == (part(25, 0, generation=2),), "that one had hung"


def test_a_job_that_its_program_has_stopped_has_as_many_steps_also_for_a_controller_that_comes_later() -> None:
    shadow = Shadow("1.1")
    shadow.on_message(wire.Standby("1.1", "layout", "code", 25))
    shadow.on_message(wire.Stopped("1.1", 10))
    shadow.on_message(wire.StripeWritten("1.1", 1, 10, "1-10", 0, 1, ()))
    assert shadow.is_at_end
    late = Shadow("1.2")  # it joins, and its program has not stopped yet
    late.on_message(wire.Standby("1.2", "layout", "code", 25))
    for snapshots in ([shadow.snapshot(), late.snapshot()], [late.snapshot(), shadow.snapshot()]):
        coordinator = Coordinator(Terms("job", 2, num_microbatches=1), Wish("run", 1))
        coordinator.adopt(snapshots, [], 0.0)
        assert coordinator.observed().total_steps == 10


def test_a_worker_that_has_ended_is_at_the_end_wherever_that_was() -> None:
    shadow = Shadow("1.1")
    for message in (wire.Ended("1.1", "paused", 10), wire.Broken("1.1", 1, True, 10)):
        shadow.on_message(message)
        assert shadow.is_at_end


def test_rows_that_only_the_process_has_come_once_it_answers() -> None:
    """Another member told them, which is lost; of many they come as a snapshot and what follows it."""
    rows = [MetricRow(step, "2026-01-01T00:00:00Z", 1, 1, {"loss": 1.0}) for step in range(1, 4)]
    record = wire.GenerationRecord(1, 1, (wire.Member("w1.1", "1.1"),), (0,), "store", wire.Origin("fresh"), "start", 0)
    shadow = Shadow("1.1")
    shadow.on_command(wire.Prepare(1, record))
    for message in (wire.Entered("1.1", 1, 0), wire.Committed("1.1", 1, 3)):
        shadow.on_message(message)
    coordinator = Coordinator(Terms("job", 2, num_microbatches=1), Wish("run", 1))
    coordinator.adopt([shadow.snapshot()], [], 0.0)
    late = replace(shadow.snapshot(), rows=tuple(rows[:2]))
    orders = [*coordinator.handle(late, 1.0), *coordinator.handle(wire.Committed("1.1", 1, 3, (rows[2],)), 1.0)]
    assert [row for order in orders if isinstance(order, Rows) for row in order.rows] == rows
