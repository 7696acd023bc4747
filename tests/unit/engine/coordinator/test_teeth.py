"""What the model of the membership protocol is for, it finds: each fault here is found in the jobs that CI plays.

First that they hold as things are, which is the same property as `test_membership` with more of its time for takeovers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from jobs.shadow import Shadow
from rubato.engine.control import Control
from rubato.engine.coordinator import machine
from rubato.engine.coordinator.ending import Ending
from rubato.engine.coordinator.machine import Coordinator
from rubato.engine.coordinator.repair import Repair
from rubato.engine.entry import EntryPlan, Standing, decide_entry
from rubato.errors import ProtocolError
from rubato.wire import worker as wire
from rubato.wire.worker import GenerationRecord
from tests.unit.engine.coordinator import controllers, simulation, training
from tests.unit.engine.coordinator.simulation import Cluster
from tests.unit.engine.coordinator.takeovers import ENOUGH, play, play_beside
from tests.unit.engine.coordinator.world import World

pytestmark = pytest.mark.timeout(900)
Fault = Callable[[pytest.MonkeyPatch], None]
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
def test_whoever_leads_there_is_one_job(part: int) -> None:
    for number in range(part, ENOUGH, PARTS):
        play(number)


def workers_obey_whom_they_were_taken_from(patch: pytest.MonkeyPatch) -> None:
    """Neither the supervisor nor the process looks at the attempt."""
    obey = Control.obey
    patch.setattr(World, "passes_on", lambda self, worker, by: True)
    patch.setattr(Control, "obey", lambda self, command: obey(self, _of_now(self, command)))


def _of_now(control: Control, command: Any) -> Any:
    return replace(command, attempt=max(control.attempt, command.attempt))


def who_did_not_answer_is_left_alive(patch: pytest.MonkeyPatch) -> None:
    """A new controller leads while some workers still follow the one before."""
    patch.setattr(Cluster, "end_unanswered", lambda self, worker, by: None)


def a_change_under_way_is_not_told(patch: pytest.MonkeyPatch) -> None:
    """A snapshot names the generation, and none that its worker has heard of since."""
    describe = Control._snapshot
    patch.setattr(Control, "_snapshot", lambda self, rows: _without_pending(describe(self, rows)))


def _without_pending(told: wire.Snapshot) -> wire.Snapshot:
    return replace(told, pending=told.record.number if told.record is not None else 0)


def snapshots_are_older_than_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A worker describes itself before it follows: what it says and obeys in between nobody knows of."""
    attach = controllers.Controller.attach

    def attach_late(self: controllers.Controller, worker: Any, now: float) -> None:
        before, worker.attempt = worker.attempt, min(worker.attempt, self.attempt)
        attach(self, worker, now)
        worker.attempt = before

    def lead(self: Cluster, one: controllers.Controller) -> None:
        for incarnation in one.is_called:
            worker = self.workers[incarnation]
            worker.attempt = max(worker.attempt, one.attempt)
        begin(self, one)

    begin = Cluster.lead
    patch.setattr(controllers.Controller, "attach", attach_late)
    patch.setattr(Cluster, "lead", lead)


def the_successor_trusts_that_all_is_whole(patch: pytest.MonkeyPatch) -> None:
    """It does not repair what changed while nobody led."""
    adopt = Coordinator.adopt

    def adopt_as_it_is(self: Coordinator, *told: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Repair, "begin", lambda *_, **__: None)
            return adopt(self, *told)

    patch.setattr(Coordinator, "adopt", adopt_as_it_is)


def strays_are_taken_over(patch: pytest.MonkeyPatch) -> None:
    """Workers of a controller that began anew beside the job are of the job."""
    patch.setattr(simulation, "left_behind", lambda told: set())


def numbers_begin_anew(patch: pytest.MonkeyPatch) -> None:
    """A new controller does not count on from what its workers have heard of."""
    mint = machine.JobState.mint

    def mint_low(self: Any, *told: Any, **more: Any) -> None:
        numbers = self.__dict__.setdefault("numbers", itertools.count(1))
        self.highest = next(numbers) - 1
        mint(self, *told, **more)

    patch.setattr(machine.JobState, "mint", mint_low)


def microbatches_are_computed_twice(patch: pytest.MonkeyPatch) -> None:
    """After a loss the step is shared out anew, and what survivors hold counts, too."""

    def decide(record: GenerationRecord, standings: Sequence[Standing]) -> EntryPlan:
        return replace(decide_entry(record, standings), owners_of_step=None, orphans=())

    patch.setattr(training, "decide_entry", decide)


def a_step_is_taken_twice(patch: pytest.MonkeyPatch) -> None:
    """Who completed an exchange that others missed takes that step again with them."""

    def decide(record: GenerationRecord, standings: Sequence[Standing]) -> EntryPlan:
        return replace(decide_entry(record, standings), behind=())

    patch.setattr(training, "decide_entry", decide)


def whoever_is_ahead_can_serve(patch: pytest.MonkeyPatch) -> None:
    """A member behind is kept although nobody has what it missed."""
    fence = Repair._without_laggards

    def trust(self: Repair, survivors: list[Any]) -> list[Any]:
        for one in survivors:
            one.broken = replace(one.broken, serves=True)
        return fence(self, survivors)

    patch.setattr(Repair, "_without_laggards", trust)


def failed_parts_are_not_told_again(patch: pytest.MonkeyPatch) -> None:
    """A supervisor tells a new controller what of the last checkpoint is written, and not what is not."""
    take_in = Shadow.on_message
    patch.setattr(
        Shadow, "on_message", lambda self, said: None if isinstance(said, wire.StripeFailed) else take_in(self, said)
    )


def parts_of_the_end_are_told_while_they_are_fresh(patch: pytest.MonkeyPatch) -> None:
    """As those of any other checkpoint."""
    patch.setattr(Shadow, "is_at_end", False)


def a_cancel_waits_for_what_finished_to_be_stored(patch: pytest.MonkeyPatch) -> None:
    """However long it is given, or by force."""
    patch.setattr(Ending, "_is_cut_short", lambda self, now: False)


FAULTS: dict[Fault, int] = {
    workers_obey_whom_they_were_taken_from: 145,
    who_did_not_answer_is_left_alive: 8,
    a_change_under_way_is_not_told: 3,
    snapshots_are_older_than_the_fence: 1,
    the_successor_trusts_that_all_is_whole: 4,
    numbers_begin_anew: 30,
    microbatches_are_computed_twice: 14,
    a_step_is_taken_twice: 26,
    whoever_is_ahead_can_serve: 147,
    failed_parts_are_not_told_again: 11,
    parts_of_the_end_are_told_while_they_are_fresh: 133,
    a_cancel_waits_for_what_finished_to_be_stored: 21,
}
"""With the number of a job that finds it: where that changes, another one does, and this test takes longer."""


def play_all(first: int) -> None:
    """All that CI plays, from this one on."""
    for number in range(ENOUGH):
        play((first + number) % ENOUGH)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, ProtocolError)):
        play_all(FAULTS[fault])


@pytest.mark.parametrize("number", range(5))
def test_a_job_that_was_begun_anew_beside_its_successor_is_ended_by_the_next_one(number: int) -> None:
    play_beside(number)


def test_such_a_job_would_be_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    strays_are_taken_over(monkeypatch)
    with pytest.raises((AssertionError, ProtocolError)):
        play_beside(0)
