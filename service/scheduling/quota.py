"""Quotas of projects while a round is decided: what is left of them now, and soon. Pure.

A quota counts slots that processes hold or may hold, in all clusters together: a grant of the round takes from it at
once, and what is given back counts only when its workers have left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.scheduling.view import Placed, Waiting

UNLIMITED = 10**9


@dataclass
class Quotas:
    """Of all projects that have one."""

    limits: Mapping[str, int]
    now: dict[str, int] = field(default_factory=dict)
    """Slots left; below zero where a quota was lowered."""
    soon: dict[str, int] = field(default_factory=dict)
    """The same when all that is being given back has been."""
    reserved_for: dict[str, Waiting] = field(default_factory=dict)
    """By project the first of its queued jobs that waits: the others of the project leave it what it needs."""

    @classmethod
    def of(cls, limits: Mapping[str, int], placed: Iterable[Placed]) -> Quotas:
        """As they are before anything is decided."""
        left = dict(limits)
        for job in placed:
            if job.project in left:
                left[job.project] -= job.occupied
        return cls(limits, dict(left), dict(left))

    def copy(self) -> Quotas:
        """For trying something out."""
        return Quotas(self.limits, dict(self.now), dict(self.soon), dict(self.reserved_for))

    def left(self, project: str) -> int:
        """Slots that may be granted now."""
        return max(0, self.now.get(project, UNLIMITED))

    def left_soon(self, project: str) -> int:
        """Slots that may be granted when all that is on its way has come back."""
        return max(0, self.soon.get(project, UNLIMITED))

    def left_beside(self, project: str) -> int:
        """Slots that may be granted now to others than the first that waits."""
        return max(0, self.left(project) - self._kept(project))

    def left_beside_soon(self, project: str) -> int:
        """The same when all that is on its way has come back."""
        return max(0, self.left_soon(project) - self._kept(project))

    def _kept(self, project: str) -> int:
        first = self.reserved_for.get(project)
        return 0 if first is None else first.min_workers

    def used(self, project: str) -> int:
        """Slots that are held now."""
        return self.limits[project] - self.now[project]

    def over(self) -> list[str]:
        """Projects that will still hold more than they may."""
        return sorted(project for project, left in self.soon.items() if left < 0)

    def take(self, project: str, slots: int) -> None:
        """Grant some."""
        if project in self.now:
            self.now[project] -= slots
            self.soon[project] -= slots

    def give_back(self, project: str, slots: int) -> None:
        """Count on some."""
        if project in self.soon:
            self.soon[project] += slots
