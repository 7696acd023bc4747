"""Who computes what where layers are separated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Roles:
    """Of a round, by rank."""

    keepers: Sequence[int]
    """Those that compute the module at the cut; the first one leads the round."""
    front: Sequence[int]
    """Those that compute what comes before it; at least as many."""

    @classmethod
    def of(cls, leader: int, others: Sequence[int], keepers: int) -> Roles:
        """Of those that are there: as many keepers as are wanted, but no more than half, so that each is asked by one.

        Args:    others: all but the leader, at least one.
        """
        more = min(keepers, (1 + len(others)) // 2) - 1
        return cls((leader, *others[:more]), tuple(others[more:]))

    def asks(self, rank: int) -> int:
        """The keeper of one of the front."""
        return self.keepers[self.front.index(rank) % len(self.keepers)]

    def asked_by(self, keeper: int) -> Sequence[int]:
        """Those of the front that ask a keeper."""
        return self.front[self.keepers.index(keeper) :: len(self.keepers)]
