from __future__ import annotations

import pytest

from rubato.engine.control import Control
from rubato.engine.rows import Rows
from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow

START = wire.Start(1, "job", "w1", "0.1", {}, "127.0.0.1", "")


def row(step: int, **values: float) -> MetricRow:
    return MetricRow(step, "2026-01-01T00:00:00Z", 1, 2, {"loss": float(step), **values})


class Teller:
    """A worker's rows, and what it said of them: (steps done, steps of the rows)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.control = Control(START)
        self.said: list[tuple[int, list[int]]] = []
        monkeypatch.setattr(self.control, "say_committed", self._say)
        self.rows = Rows(self.control)

    def _say(self, generation: int, step: int, rows: tuple[MetricRow, ...] = (), pace: object = ()) -> None:
        self.said.append((step, [one.step for one in rows]))

    def commit(self, step: int, *, generation: int = 1, rank: int = 0) -> None:
        self.rows.commit(row(step))
        self.rows.keep()
        self.rows.tell(generation, rank, step)


@pytest.fixture
def teller(monkeypatch: pytest.MonkeyPatch) -> Teller:
    return Teller(monkeypatch)


def test_the_lowest_rank_tells_each_row_once_a_generation(teller: Teller) -> None:
    for step in (1, 2, 3):
        teller.commit(step)
    teller.commit(4, generation=2)
    teller.rows.tell(2, 0, 4)
    assert teller.said == [(1, [1]), (2, [2]), (3, [3]), (4, [1, 2, 3, 4]), (4, [4])]


def test_whoever_becomes_the_lowest_rank_tells_what_nobody_acknowledged(teller: Teller) -> None:
    teller.commit(1, rank=1)
    teller.commit(2, rank=1)
    teller.control.rows.popleft()
    teller.commit(3, generation=2)
    assert teller.said == [(1, []), (2, []), (3, [2, 3])]


def test_the_last_row_waits_for_what_is_logged_at_the_end(teller: Teller) -> None:
    teller.rows.commit(row(9))
    teller.rows.add({"accuracy": 0.5})
    assert not teller.control.rows
    teller.rows.keep()
    teller.rows.keep()
    teller.rows.add({"late": 1.0})
    assert list(teller.control.rows) == [row(9, accuracy=0.5)]


def test_another_goes_on_with_them(teller: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    teller.commit(1)
    teller.commit(2)
    other = Teller(monkeypatch)
    other.rows.logged["dropped"] = 1.0
    other.rows.take_over(teller.rows.latest, teller.rows.untold())
    assert (other.control.rows, other.rows.latest, other.rows.logged) == (teller.control.rows, {"loss": 2.0}, {})


def test_the_last_row_goes_on_from_the_checkpoint_of_the_end(teller: Teller, monkeypatch: pytest.MonkeyPatch) -> None:
    """All were lost in what the program does behind its last step: whoever does it again logs into the same row."""
    teller.rows.commit(row(9))
    saved = teller.rows.open_row
    assert saved is not None
    heir = Teller(monkeypatch)
    heir.rows.take_over({}, [vars(row(8))], saved)
    heir.rows.add({"accuracy": 0.5})
    heir.rows.keep()
    heir.rows.tell(2, 0, 9)
    assert heir.said == [(9, [8, 9])]
    assert heir.control.rows[-1] == row(9, accuracy=0.5)


def test_a_longer_run_goes_on_behind_the_last_step_of_another(teller: Teller) -> None:
    teller.rows.take_over({}, [], vars(row(9)))
    teller.commit(10)
    assert teller.said == [(10, [9, 10])]


def test_a_last_row_that_was_told_is_not_open_any_more(teller: Teller) -> None:
    teller.rows.take_over({}, [vars(row(9))], vars(row(9)))
    assert teller.rows.open_row is None
