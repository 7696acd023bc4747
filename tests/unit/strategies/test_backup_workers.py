"""Who computes which piece: each counts once, nobody waits for the slowest, and few are computed twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rubato.strategies.backup_workers import Dealer


@given(
    workers=st.integers(1, 6),
    backups=st.integers(0, 3),
    updates=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    data=st.data(),
)
def test_in_any_order_each_piece_counts_once_and_all_are_there(
    workers: int, backups: int, updates: list[int], data: st.DataObject
) -> None:
    dealer = Dealer(range(1, workers + 1), backups)
    computing: dict[int, tuple[int, int]] = {}
    for number, count in enumerate(updates):
        dealer.begin(range(count))
        counted: list[int] = []
        while not dealer.is_complete:
            for worker, piece in dealer.deal():
                assert worker not in computing
                computing[worker] = number, piece
            missing = {piece for update, piece in computing.values() if update == number} - set(counted)
            holders = [[w for w, held in computing.items() if held == (number, piece)] for piece in missing]
            assert sum(len(found) > 1 for found in holders) <= backups
            assert all(len(found) <= 2 for found in holders)
            if not backups:
                assert all(len(found) == 1 for found in holders)
            assert computing, "somebody can always go on"
            worker = data.draw(st.sampled_from(sorted(computing)))
            update, piece = computing.pop(worker)
            found = dealer.done(worker, data.draw(st.floats(0.001, 10)))
            is_new = update == number and piece not in counted
            assert found == (piece if is_new else None)
            counted += [piece] if is_new else []
        assert sorted(counted) == list(range(count))
    assert sorted([*dealer.free, *computing]) == list(range(1, workers + 1))


@pytest.mark.parametrize("slow", [1, 2, 3, 4])
def test_a_worker_that_never_comes_back_holds_nobody_up(slow: int) -> None:
    dealer = Dealer([1, 2, 3, 4], 1)
    busy: set[int] = set()
    for _ in range(5):
        dealer.begin(range(3))
        while not dealer.is_complete:
            busy.update(worker for worker, _ in dealer.deal())
            others = sorted(busy - {slow})
            assert others, "the others can make the update"
            busy.remove(others[0])
            dealer.done(others[0], 1.0)


def test_the_piece_of_the_slowest_is_computed_a_second_time() -> None:
    dealer = Dealer([1, 2, 3, 4], 1)
    dealer.begin(range(3))
    assert dealer.deal() == [(1, 0), (2, 1), (3, 2), (4, 0)], "nobody is known to be slow"
    for worker, seconds in ((1, 1.0), (2, 5.0), (3, 1.0), (4, 1.0)):
        dealer.done(worker, seconds)
    dealer.begin(range(3))
    assert dealer.deal() == [(1, 0), (2, 1), (3, 2), (4, 1)]


def test_without_backups_all_are_waited_for() -> None:
    dealer = Dealer([1, 2], 0)
    dealer.begin(range(2))
    assert dealer.deal() == [(1, 0), (2, 1)]
    assert dealer.done(1, 1.0) == 0
    assert dealer.deal() == []
    assert not dealer.is_complete
    assert dealer.done(2, 1.0) == 1
    assert dealer.is_complete
