"""One shard of a parameter server that makes an update of each push: when it answers who pulls.

Workers push gradients and pull weights; the server holds weights and optimizer state of its shard, and applies each
push at once. Two consistencies:

- *asp*: each pull is answered at once.
- *ssp*: who has pushed c steps waits with its pull until the slowest has pushed c - s: so nobody computes with weights
  that lack a gradient older than s steps.

A push that was computed with older weights may count less (damping): by 1/max(1, t), where t updates were made since
its worker pulled.

Who joins begins at the clock of the slowest; who leaves or is lost holds nobody up any more.
Effects are left to the caller: this is told what arrives, and says what to do.
Source: Dean et al. 2012 (DistBelief; asp); Ho et al. 2013 (SSP); Zhang et al. 2016, arXiv:1511.05950 (damping by
staleness).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Update:
    """The update that a push makes."""

    version: int
    """Updates that were in the weights it was computed with."""
    scale: float
    """What the learning rate is multiplied by."""


class ShardServer:
    """The protocol of one shard. Workers are named by numbers.

    Args:
        staleness: s of ssp; 0: each waits for all; None: asp.
        damps: whether stale pushes count less.
    """

    def __init__(self, staleness: int | None, *, damps: bool = False) -> None:
        self._staleness = staleness
        self._damps = damps
        self.version = 0
        """Updates made so far."""
        self._clocks: dict[int, int] = {}
        """By worker, steps it has pushed."""
        self._reached = 0
        """The clock, where nobody takes part."""
        self._computing: dict[int, int] = {}
        """By worker that was sent weights and has not pushed since, the version of these."""
        self._waiting: set[int] = set()
        """Who has pulled and was not answered."""

    @property
    def clock(self) -> int:
        """Steps that the slowest has pushed."""
        return min(self._clocks.values(), default=self._reached)

    def join(self, worker: int) -> None:
        """A worker takes part from now on; it pulls first."""
        self._clocks[worker] = self.clock

    def leave(self, worker: int) -> list[int]:
        """A worker has left or was lost. Returns: to whom to send the weights now."""
        self._reached = self.clock
        for kept in (self._clocks, self._computing):
            kept.pop(worker, None)
        self._waiting.discard(worker)
        return self._answers()

    def pull(self, worker: int) -> list[int]:
        """A worker wants the weights for its next step.

        Returns: to whom to send the weights now.
        Raises:  KeyError: it takes no part.
        """
        self._clocks[worker]
        self._waiting.add(worker)
        return self._answers()

    def push(self, worker: int) -> tuple[Update, list[int]]:
        """A worker has computed the gradient of its step.

        Returns: the update to make of it now, and to whom to send the weights then.
        Raises:  KeyError: it was sent no weights since its last push.
        """
        version = self._computing.pop(worker)
        staleness = self.version - version
        self._clocks[worker] += 1
        self.version += 1
        return Update(version, 1.0 / max(1, staleness) if self._damps else 1.0), self._answers()

    def _answers(self) -> list[int]:
        """Who can be answered now."""
        ready = sorted(worker for worker in self._waiting if self._may_read(worker))
        for worker in ready:
            self._waiting.remove(worker)
            self._computing[worker] = self.version
        return ready

    def _may_read(self, worker: int) -> bool:
        return self._staleness is None or self._clocks[worker] - self.clock <= self._staleness
