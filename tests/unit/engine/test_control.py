"""The child's end of the line, over a real socketpair; the test is the supervisor."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from groups import FakeCommunicator, record_of

from rubato.engine.comm import Communicator
from rubato.engine.control import Control, committed
from rubato.engine.header import Leaving
from rubato.errors import GenerationLost, LeaveTraining
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow
from rubato.wire.progress import ProgressWord

START = wire.Start(3, "job", "w0", "0.1", {}, "127.0.0.1", "")
PATIENCE_S = 20.0


def record(number: int, *, is_member: bool = True) -> wire.GenerationRecord:
    plain = record_of(2, number)
    members = plain.members if is_member else plain.members[1:]
    return wire.GenerationRecord(3, number, members, (0,) * 12, "", wire.Origin("fresh"), "start", 0)


class Line:
    """A control with its threads, and the supervisor's end of its socket."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        self.near.settimeout(PATIENCE_S)
        self._told = self.near.makefile("rb")
        self._orders = self.far.makefile("rb")
        self.word = ProgressWord()
        self.control = Control(START, self.far, self._orders, self.word)
        self.formed: dict[int, FakeCommunicator | BaseException] = {}
        self.is_over: dict[int, Callable[[], bool]] = {}
        """By generation: whether waits of its group must end."""
        self.may_form = threading.Event()
        self.may_form.set()
        self.control.serve(self._form)

    def _form(self, one: wire.GenerationRecord, rank: int, is_revoked: Callable[[], bool]) -> Communicator:
        assert self.may_form.wait(PATIENCE_S)
        self.is_over[one.number] = is_revoked
        if is_revoked():
            raise GenerationLost("the generation was revoked")
        outcome = self.formed.setdefault(one.number, Buried())
        if isinstance(outcome, BaseException):
            raise outcome
        assert rank == 0
        return outcome

    def order(self, *commands: wire.Command) -> None:
        for command in commands:
            self.near.sendall(json.dumps(wire.encode(command)).encode() + b"\n")

    def close(self) -> None:
        for one in (self._told, self._orders, self.near, self.far):
            one.close()

    def hear(self, kind: type) -> Any:
        """The next message, which is of this kind."""
        message = wire.decode(json.loads(self._told.readline()))
        assert isinstance(message, kind), f"{message} came before a {kind.__name__}"
        return message

    def sync(self) -> wire.Snapshot:
        """Everything ordered so far has been obeyed when this returns."""
        self.order(wire.Attach(self.control.attempt))
        answer: wire.Snapshot = self.hear(wire.Snapshot)
        return answer


class Buried(FakeCommunicator):
    """Remembers that it was buried."""

    def __init__(self) -> None:
        super().__init__(0, 1, {})
        self.is_buried = False

    def bury(self) -> None:
        self.is_buried = True


class ProcessEnded(BaseException):
    """Ends a thread, where the process would end."""


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    left = threading.Event()
    exits: list[int] = []

    def leave(code: int) -> None:
        exits.append(code)
        left.set()
        raise ProcessEnded

    reported = threading.excepthook
    monkeypatch.setattr(threading, "excepthook", lambda told: None if told.exc_type is ProcessEnded else reported(told))
    monkeypatch.setattr("rubato.engine.control.os._exit", leave)
    monkeypatch.setattr("rubato.engine.control.BEAT_EVERY_S", 0.01)
    one = Line()
    yield one
    one.may_form.set()
    one.near.shutdown(socket.SHUT_RDWR)
    assert left.wait(PATIENCE_S), "an end of the line must end the process"
    assert set(exits) == {1}
    monkeypatch.setattr(one.word, "beat", lambda: leave(1))
    for thread in threading.enumerate():
        if thread.name in ("control", "beat"):
            thread.join(PATIENCE_S)
    one.close()


def test_a_generation_is_formed_in_the_background_and_taken_when_all_agree(line: Line) -> None:
    line.order(wire.Prepare(3, record(1)))
    assert line.hear(wire.Formed) == wire.Formed("0.1", 1)
    assert (line.control.ready, line.control.highest) == (1, 1)
    assert line.control.take(1) == (record(1), line.formed[1])


def test_the_first_generation_is_waited_for(line: Line) -> None:
    entered: list[Any] = []
    thread = threading.Thread(target=lambda: entered.append(line.control.wait_for_generation(0, lambda _: None)))
    thread.start()
    line.order(wire.Prepare(3, record(1)))
    thread.join(PATIENCE_S)
    assert entered == [(record(1), line.formed[1])]


def test_who_waits_tells_each_revoke_and_gets_only_what_comes_after(line: Line) -> None:
    revokes: list[int] = []
    entered: list[Any] = []
    line.order(wire.Prepare(3, record(1)))
    line.hear(wire.Formed)
    line.order(wire.Revoke(3, 2), wire.Prepare(3, record(2)))  # 2 is over before it began
    line.sync()
    thread = threading.Thread(target=lambda: entered.append(line.control.wait_for_generation(0, revokes.append)))
    thread.start()
    line.order(wire.Prepare(3, record(3)))
    thread.join(PATIENCE_S)
    assert [one.number for one, _ in entered] == [3]
    assert revokes in ([2], [])  # none where generation 3 stood before the wait began
    one = line.formed[1]
    assert isinstance(one, Buried)
    assert one.is_buried


def test_who_has_lost_touch_enters_nothing_that_was_to_follow(line: Line) -> None:
    entered: list[Any] = []
    line.order(wire.Prepare(3, replace(record(2), follows=1)))
    line.hear(wire.Formed)
    thread = threading.Thread(target=lambda: entered.append(line.control.wait_for_generation(1, lambda _: None)))
    thread.start()
    line.order(wire.Revoke(3, 2), wire.Prepare(3, record(3)))
    thread.join(PATIENCE_S)
    assert [one.number for one, _ in entered] == [3]


def test_a_release_that_meets_a_revoke_lets_it_leave(line: Line) -> None:
    revokes: list[int] = []

    def wait() -> None:
        with pytest.raises(LeaveTraining):
            line.control.wait_for_generation(1, revokes.append)

    thread = threading.Thread(target=wait)
    thread.start()
    line.order(wire.Revoke(3, 2), wire.Release(3))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert revokes in ([2], [])
    wait()


def test_a_joiner_leaves_the_group_of_a_generation_that_another_superseded(line: Line) -> None:
    first = replace(record(2), follows=1, joining=("0.1",))
    line.order(wire.Prepare(3, first))
    line.hear(wire.Formed)
    assert not line.is_over[2]()
    line.order(wire.Prepare(3, replace(first, number=3)))
    line.hear(wire.Formed)
    assert line.is_over[2]()
    assert not line.is_over[3]()
    line.control.begin(replace(first, number=3))
    line.order(wire.Prepare(3, replace(first, number=4)))
    line.sync()
    assert not line.is_over[3](), "it has joined: only a revoke ends that"


def test_who_is_no_member_may_leave(line: Line) -> None:
    line.order(wire.Prepare(3, record(4, is_member=False)))
    assert line.hear(wire.Formed).generation == 4
    assert line.control.ready == 4
    assert line.control.take(4) == (record(4, is_member=False), None)


def test_a_generation_that_was_passed_over_is_buried(line: Line) -> None:
    for number in (1, 2):
        line.order(wire.Prepare(3, record(number)))
        line.hear(wire.Formed)
    line.control.take(2)
    one = line.formed[1]
    assert isinstance(one, Buried)
    assert one.is_buried
    with pytest.raises(KeyError):
        line.control.take(1)


def test_prepare_said_twice_or_late_is_obeyed_once(line: Line) -> None:
    line.order(wire.Prepare(3, record(2)), wire.Prepare(3, record(2)), wire.Prepare(3, record(1)))
    assert line.hear(wire.Formed).generation == 2
    assert line.sync().pending == 2
    assert list(line.formed) == [2]


def test_a_group_that_cannot_be_built_is_told(line: Line) -> None:
    line.formed[1] = GenerationLost("a member did not come")
    line.order(wire.Prepare(3, record(1)))
    assert line.hear(wire.FormFailed) == wire.FormFailed("0.1", 1, "a member did not come")
    assert line.control.ready == 0


def test_a_group_that_was_revoked_while_it_was_built_is_nobodys_concern(line: Line) -> None:
    line.may_form.clear()
    line.order(wire.Prepare(3, record(1)), wire.Revoke(3, 1))
    line.sync()
    line.may_form.set()
    line.order(wire.Prepare(3, record(2)))
    assert line.hear(wire.Formed).generation == 2
    assert line.control.ready == 2


def test_revokes_never_go_back(line: Line) -> None:
    line.order(wire.Revoke(3, 5), wire.Revoke(3, 2))
    assert line.sync().pending == 5
    assert line.control.is_revoked(5)
    assert not line.control.is_revoked(6)


def test_orders_of_the_past_are_ignored(line: Line) -> None:
    line.order(wire.Attach(4))
    line.hear(wire.Snapshot)
    line.order(
        wire.Revoke(3, 9), wire.Leave(3, "stop"), wire.Checkpoint(3, 7), wire.Release(3), wire.Prepare(3, record(8))
    )
    line.order(wire.Attach(3))
    line.sync()
    control = line.control
    assert (control.attempt, control.revoked_through, control.highest) == (4, 0, 0)
    assert (control.leaving, control.checkpoint_request, control.is_released) == (Leaving.NO, 0, False)
    assert not line.formed


def test_leaving_and_checkpoints(line: Line) -> None:
    line.order(wire.Checkpoint(3, 5), wire.Checkpoint(3, 4), wire.Leave(3, "pause"))
    line.sync()
    assert line.control.checkpoint_request == 5
    assert line.control.leaving is Leaving.PAUSE
    line.order(wire.Leave(3, "stop"))
    line.sync()
    assert line.control.leaving.value == Leaving.STOP.value


def row(step: int) -> MetricRow:
    return MetricRow(step, "2026-01-01T00:00:00Z", 1, 2, {"loss": 1.0 / step})


def test_rows_are_kept_until_they_are_acknowledged(line: Line) -> None:
    line.control.rows.extend(row(step) for step in (4, 5, 6))
    assert line.sync().rows == (row(4), row(5), row(6))
    line.order(wire.Acknowledge(3, 5))
    assert line.sync().rows == (row(6),)
    line.order(wire.Acknowledge(3, 4), wire.Acknowledge(2, 6))
    assert line.sync().rows == (row(6),)
    line.order(wire.Acknowledge(3, 9))
    assert line.sync().rows == ()


def test_more_rows_than_fit_into_a_message_follow_in_order(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rubato.engine.control.ROWS_IN_MESSAGE", 3)
    line.control.record = record(2)
    line.control.rows.extend(row(step) for step in range(1, 9))
    told = list(line.sync().rows)
    assert len(told) == 3
    while len(told) < 8:
        message = line.hear(wire.Committed)
        assert len(message.rows) <= 3
        told += message.rows
    assert told == [row(step) for step in range(1, 9)]


def test_steps_without_rows_are_told_in_one_message() -> None:
    assert committed("0.1", 2, 7, ()) == [wire.Committed("0.1", 2, 7)]


def test_a_new_controller_is_told_everything(line: Line) -> None:
    control = line.control
    control.hello = wire.Hello("0.1", "127.0.0.1:5")
    control.standby = wire.Standby("0.1", "layout", "code", 60)
    control.record = record(2)
    control.broken = wire.Broken("0.1", 2, has_state=True, step=7, cause="a peer was lost")
    control.ended = wire.Ended("0.1", "paused", 7)
    control.rows.append(row(7))
    control.stage("enter", 7)
    line.order(wire.Revoke(3, 2), wire.Attach(5))
    assert line.hear(wire.Snapshot) == wire.Snapshot(
        "0.1", control.hello, control.standby, record(2), 2, control.broken, control.ended, 7, (row(7),)
    )
    assert control.attempt == 5


def test_signs_of_life_say_what_the_main_thread_does(line: Line) -> None:
    before = line.word.read()
    assert before is not None
    assert before.stage == "setup"
    line.control.record = record(2)
    line.control.stage("compute", 11, 3)
    line.control.stage("evaluate")
    said = line.word.read()
    assert said is not None
    assert (said.generation, said.step, said.stage, said.microbatch) == (2, 11, "evaluate", None)
    assert said.since_ns > before.since_ns
    deadline = time.monotonic() + PATIENCE_S
    while (now := line.word.read()) is None or now.pulse_ns <= before.pulse_ns:
        assert time.monotonic() < deadline, "a thread says that the interpreter runs"


@pytest.mark.parametrize("is_released", [True, False])
def test_the_end_waits_for_a_release_or_a_revoke(line: Line, is_released: bool) -> None:
    results: list[object] = []

    def wait() -> None:
        try:
            results.append(line.control.wait_for_release(2, 7))
        except GenerationLost as error:
            results.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    line.order(wire.Revoke(3, 1))
    line.sync()
    assert results == []
    line.order(wire.Release(3) if is_released else wire.Revoke(3, 2))
    thread.join(PATIENCE_S)
    assert (results == [True]) if is_released else isinstance(results[0], GenerationLost)


def test_the_end_is_told_that_its_checkpoint_was_lost(line: Line) -> None:
    line.order(wire.Checkpoint(3, 1, lost_step=6))  # an earlier one: that of the end takes its place
    line.order(wire.Release(3))
    line.sync()
    assert line.control.wait_for_release(2, 7)


def test_the_end_saves_again_what_was_lost(line: Line) -> None:
    line.order(wire.Checkpoint(3, 1, lost_step=7))
    line.sync()
    assert not line.control.wait_for_release(2, 7)
    line.order(wire.Release(3))
    line.sync()
    assert line.control.wait_for_release(2, 7), "told once"


def test_alone_nobody_listens() -> None:
    control = Control(START)
    assert control.is_alone
    control.say(wire.Formed("0.1", 1))
