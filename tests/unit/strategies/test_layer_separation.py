"""Who asks whom; `tests/unit/engine/test_separation.py` has what they do."""

from __future__ import annotations

import pytest

from rubato.strategies.layer_separation import Roles


def test_every_other_worker_has_a_keeper_and_the_leader_is_the_first() -> None:
    roles = Roles.led(3, [0, 1, 2, 4, 5, 6], keepers=2)
    assert list(roles.keepers) == [3, 0]
    assert [roles.asks(rank) for rank in (1, 2, 4, 5, 6)] == [3, 0, 3, 0, 3]
    assert [roles.asked_by(rank) for rank in (3, 0)] == [[1, 4, 6], [2, 5]]


@pytest.mark.parametrize(
    ("others", "wanted", "kept"), [(1, 1, 1), (1, 4, 1), (2, 2, 1), (3, 2, 2), (4, 9, 2), (5, 9, 3)]
)
def test_no_keeper_is_asked_by_nobody(others: int, wanted: int, kept: int) -> None:
    roles = Roles.led(0, range(1, 1 + others), wanted)
    assert len(roles.keepers) == kept
    assert all(roles.asked_by(rank) for rank in roles.keepers)
    assert sorted([*roles.keepers, *roles.front]) == list(range(1 + others))
