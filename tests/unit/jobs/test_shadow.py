"""What a supervisor knows of its training process is enough to take it over, whatever happens before and after."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.shadow import Shadow
from rubato.engine.coordinator import Coordinator, Order, Rows, Send, Terms, Wish
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from tests.unit.engine.coordinator.actors import Worker
from tests.unit.engine.coordinator.simulation import Cluster
from tests.unit.engine.coordinator.test_machine import PROPERTIES, fault_lists, play

STEPS = 25


class Shadowed(Cluster):
    """A cluster of which new controllers find some workers silent, and begin with what their supervisors know."""

    def __init__(self, schedule: random.Random, **terms: object) -> None:
        self.shadows: dict[str, Shadow] = {}
        self.passed_on = 0
        """The last row."""
        super().__init__(schedule, total_steps=STEPS, max_restarts=50, **terms)

    def carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            for row in order.rows if isinstance(order, Rows) else ():
                assert row.step <= self.passed_on + 1, f"rows between {self.passed_on} and {row.step} were left out"
                self.passed_on = row.step
        super().carry_out(orders)

    def replace_controller(self) -> None:
        self.passed_on = max(self.rows, default=0)
        super().replace_controller()

    def shadow_of(self, worker: Worker) -> Shadow:
        return self.shadows.setdefault(worker.incarnation, Shadow(worker.incarnation))

    def _send(self, order: Send) -> None:
        super()._send(order)
        self.shadow_of(self.workers[order.incarnation]).on_command(order.command)

    def _deliver(self, worker: Worker) -> None:
        self.shadow_of(worker).on_message(worker.outbox[0])
        super()._deliver(worker)

    def _adopt(
        self,
        worker: Worker,
        snapshots: list[wire.Snapshot],
        placed: list[wire.Spawned],
        backlog: list[wire.Message],
    ) -> None:
        shadow = self.shadow_of(worker)
        for message in worker.outbox:
            shadow.on_message(message)
        known, own = shadow.snapshot(), self.snapshot_of(worker)
        if not worker.inbox and worker.said:
            # A joiner knows its rows from the members, and who has not the lowest rank does not tell its own.
            assert replace(known, rows=own.rows, step=own.step) == own
            is_trained = own.record is not None and own.broken is None
            assert not is_trained or known.step == own.step
        if not worker.said or self.random.random() < 0.5:
            super()._adopt(worker, snapshots, placed, backlog)
            return
        # What it has not taken in yet it takes in when it runs again, and only then it answers.
        unread, attempt = [*worker.inbox, wire.Attach(self.attempt)], worker.attempt
        worker.inbox.clear()
        super()._adopt(worker, snapshots, placed, backlog)
        worker.attempt = attempt
        worker.inbox.extend(unread)
        snapshots[-1] = known


@PROPERTIES
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), spares=st.integers(0, 2), faults=fault_lists(250))
def test_silent_workers_are_taken_over_and_the_job_ends_well(
    seed: int, workers: int, spares: int, faults: list[tuple[int, str]]
) -> None:
    cluster = Shadowed(random.Random(seed), workers=workers, standby_workers=spares)
    play(cluster, [*faults, (40, "replace"), (40, "replace")])
    cluster.run(lambda: cluster.outcome is not None)
    assert cluster.outcome is not None
    assert cluster.outcome.state == "succeeded", cluster.outcome
    assert cluster.outcome.result is not None
    assert cluster.outcome.result.step == STEPS
    assert sorted(cluster.rows) == list(range(1, STEPS + 1)), "one row a step, none lost"
    numbers = [(record.attempt, record.number) for record in cluster.minted]
    assert numbers == sorted(set(numbers))


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
