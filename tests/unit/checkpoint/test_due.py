from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rubato.checkpoint import due
from rubato.checkpoint.due import DUE_S, Lane, due_s, within
from rubato.errors import CheckpointError, StorageUnreachable

LONG_S = 60.0


@pytest.fixture
def returns() -> Iterator[threading.Event]:
    """What hangs waits for this."""
    event = threading.Event()
    yield event
    event.set()


def test_more_bytes_get_more_time() -> None:
    assert due_s() == DUE_S
    assert due_s(10**9) > due_s(10**8) > DUE_S


def test_within_gives_the_outcome_or_its_exception(returns: threading.Event) -> None:
    assert within(LONG_S, lambda: 7, "counting") == 7
    with pytest.raises(CheckpointError, match="as bad"):
        within(LONG_S, raises, "failing")
    with pytest.raises(StorageUnreachable, match="reading has not come to an end for 0 s: the storage hangs"):
        within(0.01, returns.wait, "reading")


def test_who_waits_within_its_time_gives_signs_of_life(
    returns: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due, "SIGN_OF_LIFE_S", 0.01)
    signs: list[int] = []

    def on_wait() -> None:
        signs.append(len(signs))
        if len(signs) == 3:
            returns.set()

    assert within(LONG_S, returns.wait, "reading", on_wait)
    assert len(signs) >= 3


def raises() -> None:
    raise CheckpointError("as bad as expected")


def test_a_lane_does_one_thing_after_the_other() -> None:
    lane, done = Lane("test"), []
    for number in range(20):
        lane.put(lambda number=number: done.append(number), lambda: done.append(-1), LONG_S)  # type: ignore[misc]
    assert lane.wait()
    assert done == list(range(20))
    lane.close(LONG_S)


def test_what_hangs_is_given_up_and_nothing_is_begun_behind_it(returns: threading.Event) -> None:
    lane, told = Lane("test"), list[str]()
    hung, behind = threading.Event(), threading.Event()

    def hang() -> None:
        returns.wait()
        told.append("late")

    lane.put(hang, hung.set, 0.01)
    lane.put(lambda: told.append("begun"), behind.set, LONG_S)
    assert hung.wait(LONG_S)
    assert behind.wait(LONG_S)
    assert lane.is_hung
    assert not lane.wait(), "it waited for what hangs"
    threads = threading.active_count()
    for _ in range(10):
        lane.put(lambda: told.append("begun"), lambda: told.append("refused"), LONG_S)
    assert threading.active_count() <= threads, "a thread for each"
    assert told == ["refused"] * 10
    lane.close(0.0)


def test_what_is_kept_is_done_once_what_hung_has_returned(returns: threading.Event) -> None:
    lane, overdue, told, done = Lane("test"), threading.Event(), threading.Event(), threading.Event()
    lane.put(lambda: bool(returns.wait()) and None, overdue.set, 0.01)
    assert overdue.wait(LONG_S)
    lane.put(done.set, told.set, LONG_S, is_kept=True)
    assert told.wait(LONG_S), "that it waits was not said"
    assert not done.is_set()
    returns.set()
    assert done.wait(LONG_S)
    lane.close(LONG_S)


def test_a_lane_outlives_what_raises(capsys: pytest.CaptureFixture[str]) -> None:
    lane, done = Lane("test"), threading.Event()
    lane.put(raises, lambda: None, LONG_S)
    lane.put(done.set, lambda: None, LONG_S)
    assert done.wait(LONG_S)
    assert "as bad as expected" in capsys.readouterr().err
    lane.close(LONG_S)


def test_a_lane_works_again_when_the_storage_does(returns: threading.Event) -> None:
    lane, told, overdue = Lane("test"), list[str](), threading.Event()
    lane.put(lambda: (returns.wait(), told.append("late"))[1], overdue.set, 0.01)
    assert overdue.wait(LONG_S)
    returns.set()
    ended = threading.Event()
    while not ended.wait(0.01):  # refused as long as the late one has not ended
        lane.put(ended.set, lambda: None, LONG_S)
    assert lane.wait(LONG_S)
    assert not lane.is_hung
    assert told == ["late"]
    lane.close(LONG_S)


def test_waiting_has_an_end(returns: threading.Event) -> None:
    lane = Lane("test")
    lane.put(lambda: bool(returns.wait()) and None, lambda: None, LONG_S)
    assert not lane.wait(0.01)
    assert not lane.is_hung
