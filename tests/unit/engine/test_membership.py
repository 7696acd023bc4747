"""A session's way through the generations: what it says on the way out, and what it lets go of."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from groups import FakeCommunicator, record_of
from torch import nn

from rubato.data.order import BatchPlan
from rubato.engine.control import Control
from rubato.engine.flat import FlatLayout
from rubato.engine.membership import Membership
from rubato.engine.results import Completed
from rubato.engine.session import Session
from rubato.engine.sums import Sums
from rubato.engine.tree import Tree
from rubato.errors import LeaveTraining
from rubato.wire import worker as wire

START = wire.Start(1, "job", "w1", "0.1", {}, "127.0.0.1", "")


class Group(FakeCommunicator):
    """Remembers that it was buried."""

    def __init__(self, number: int) -> None:
        super().__init__(0, 2, {})
        self.number = number
        self.is_buried = False

    def bury(self) -> None:
        self.is_buried = True


class Fixture:
    """A session of which only the membership is real, at step 7 of generation 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[Any] = []
        self.control = Control(START)
        self.control.say = self.said.append  # type: ignore[method-assign, assignment]
        flat = FlatLayout(list(nn.Linear(3, 2).named_parameters()), [])
        order = Tree.of(12)
        session = SimpleNamespace(
            control=self.control, host="127.0.0.1", device=torch.device("cpu"), flat=flat, order=order
        )
        session.sums = Sums(order, flat, BatchPlan(64, 12, 12, seed=0))
        session.num_microbatches, session.step, session.has_state = 12, 7, True
        session.completed, session.record = Completed((6, 0), None), record_of(1)
        session.exchange = session.comm = session.feeder = session.aggregation = None
        self.session = session
        self.membership = Membership(cast(Session, session))
        self.formed: list[Group] = []

        def form(record: wire.GenerationRecord, *_: Any, **__: Any) -> Group:
            self.formed.append(Group(record.number))
            return self.formed[-1]

        monkeypatch.setattr("rubato.engine.membership.form", form)

    def form(self, number: int) -> wire.GenerationRecord:
        """The group of a generation that others are to join is formed, as the control's thread does it."""
        record = replace(record_of(2, number), follows=1, joining=("1.1",))
        self.control.highest = max(self.control.highest, number)
        comm = self.membership.form(record, 0, lambda: False)
        with self.control._changed:
            self.control._offer(record, comm)
        return record

    @property
    def held(self) -> tuple[list[int], list[int]]:
        """Generations whose buffers, and whose groups, it holds."""
        return sorted(self.membership._prepared), [one.number for one in self.formed if not one.is_buried]


@pytest.fixture
def fixture(monkeypatch: pytest.MonkeyPatch) -> Fixture:
    return Fixture(monkeypatch)


def test_what_was_given_up_is_let_go_at_the_next_boundary_and_its_buffers_before(fixture: Fixture) -> None:
    for number in range(2, 9):
        fixture.form(number)
        assert fixture.held[0] == [number]
    fixture.membership.drop_failed()
    assert fixture.held == ([8], [8]), "the last one may come about yet"


def test_a_join_that_failed_here_is_let_go_without_waiting_for_another(fixture: Fixture) -> None:
    record = fixture.form(2)
    fixture.session.feeder = SimpleNamespace(record=record, has_failed=False)
    fixture.control.may_switch(2)
    fixture.membership.drop_failed()
    assert fixture.held == ([2], [2])
    fixture.session.feeder.has_failed = True
    fixture.membership.drop_failed()
    assert fixture.held == ([], [])
    assert fixture.session.feeder is None
    assert fixture.control.ready == 0, "nobody may agree on what is gone"
    fixture.control.may_switch(2)
    assert fixture.control.ready == 0


def test_what_failed_after_the_switch_is_not_let_go(fixture: Fixture) -> None:
    """The first exchange in it says so, and is repaired."""
    record = fixture.form(2)
    fixture.session.record = record
    fixture.session.feeder = SimpleNamespace(record=record, has_failed=True)
    fixture.membership.drop_failed()
    assert fixture.session.feeder is not None


def test_a_group_whose_buffers_find_no_memory_is_buried(fixture: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(Membership, "_make_exchange", refuse)
    with pytest.raises(RuntimeError, match="out of memory"):
        fixture.form(2)
    assert fixture.held == ([], [])


def test_a_group_that_is_formed_when_a_later_one_is_minted_already_is_buried_at_once(fixture: Fixture) -> None:
    fixture.control.highest = 3
    fixture.form(2)
    assert fixture.held[1] == []
    assert not fixture.said, "the controller has given it up"


@pytest.mark.parametrize(
    ("completed", "step"),
    [
        ((6, 0), 7),  # its exchange was interrupted
        ((7, 0), 8),  # it is complete, and user code goes on behind it
        ((7, 2), 8),  # or in an evaluation
        ((6, 3), 7),
    ],
)
def test_where_a_worker_stands_is_told_by_the_exchanges_it_completed(
    fixture: Fixture, completed: tuple[int, int], step: int
) -> None:
    """Who missed one more than its result is kept for is out, and must not bring all others down at the entry."""
    fixture.session.completed = Completed(completed, None)
    fixture.membership._say_broken(1)
    (told,) = fixture.said
    assert (told.step, told.has_state) == (step, True)


def test_a_leaver_that_writes_what_it_owes_is_at_a_checkpoint(fixture: Fixture) -> None:
    stages: list[str] = []
    fixture.session.saver = SimpleNamespace(wait=lambda: stages.append(fixture.control.present_stage))
    fixture.control._formed[2] = (record_of(1, 2), None)
    with pytest.raises(LeaveTraining):
        fixture.membership.switch(2)
    assert stages == ["checkpoint"]
    assert [type(one) for one in fixture.said] == [wire.Left]
