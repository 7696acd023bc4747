"""One shard of a parameter server: when it applies what is pushed, and when it answers who pulls.

Workers push gradients and pull weights; the server holds weights and optimizer state of its shard. Three consistencies:

- *bsp*: a step is applied when all workers (or all but the slowest `backups`) have pushed it, as the sum in the order
  of their names; then all who pulled get the new weights. A push of a step that is over is dropped.
- *ssp*: each push is applied at once. Who has pushed c steps waits with its pull until the slowest has pushed c - s:
  so nobody computes with weights that lack a gradient older than s steps. s = 0 is bsp.
- *asp*: each push is applied at once, and each pull answered at once.

A push that was computed with older weights may count less (damping): by 1/max(1, t), where t updates were applied since
its worker pulled. Every update has a row in the log: with the gradients it gives the same bits again, in the only sense
in which an asynchronous run can.

Who joins begins at the clock of the slowest; who leaves or is lost holds nobody up any more.
Effects are left to the caller: this is told what arrives, and says what to do.
Source: Dean et al. 2012 (DistBelief; asp); Ho et al. 2013 (SSP); Chen et al. 2016, arXiv:1604.00981 (backup workers);
Zhang et al. 2016, arXiv:1511.05950 (damping by staleness).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

G = TypeVar("G")
Consistency = Literal["bsp", "ssp", "asp"]


@dataclass(frozen=True)
class Update:
    """A row of the log: which pushes make an update, in the order in which they are added up."""

    version: int
    """Of the weights after it, from 1."""
    pushes: tuple[tuple[str, int], ...]
    """Worker and its step."""
    staleness: int
    """t: updates between the pull and this one."""
    scale: float
    """What the learning rate is multiplied by."""


@dataclass(frozen=True)
class Todo(Generic[G]):
    """What to do now, in this order."""

    update: tuple[Update, tuple[G, ...]] | None = None
    """Apply the sum of these gradients."""
    answers: tuple[str, ...] = ()
    """Send the weights to these workers."""


class ShardServer(Generic[G]):
    """The protocol of one shard. G: the type of a gradient, which is passed through.

    Args:
        staleness: s of ssp.
        backups: of bsp; so many of the slowest are not waited for.
        damps: whether stale pushes count less.
    """

    def __init__(
        self, consistency: Consistency, *, staleness: int = 0, backups: int = 0, damps: bool = False, version: int = 0
    ) -> None:
        self._consistency = "bsp" if consistency == "ssp" and staleness == 0 else consistency
        self._staleness = staleness
        self._backups = backups
        self._damps = damps
        self.version = version
        """Updates applied so far."""
        self._clocks: dict[str, int] = {}
        """By worker, steps it has pushed."""
        self._reached = 0
        """The clock, where nobody takes part."""
        self._pulled_at: dict[str, int] = {}
        """By worker, the version of the weights it was last sent."""
        self._waiting: set[str] = set()
        """Who has pulled and was not answered."""
        self._box: dict[str, G] = {}
        """Pushes of the present step (bsp)."""

    @property
    def workers(self) -> list[str]:
        """Who takes part."""
        return sorted(self._clocks)

    @property
    def clock(self) -> int:
        """Steps that the slowest has pushed; bsp: the step that is collected."""
        return min(self._clocks.values(), default=self._reached)

    def join(self, worker: str) -> None:
        """A worker takes part from now on; it pulls first.

        Args:    worker: a name that no other one has had.
        """
        self._clocks[worker] = self.clock

    def leave(self, worker: str) -> Todo[G]:
        """A worker has left or was lost. A push of it that is not applied yet counts nothing."""
        self._reached = self.clock
        for kept in (self._clocks, self._pulled_at, self._box):
            kept.pop(worker, None)
        self._waiting.discard(worker)
        return self._go_on()

    def pull(self, worker: str) -> Todo[G]:
        """A worker wants the weights for its next step.

        Raises:  KeyError: it takes no part.
        """
        self._clocks[worker]
        self._waiting.add(worker)
        return self._go_on()

    def push(self, worker: str, step: int, gradient: G) -> Todo[G]:
        """A worker has computed the gradient of its step.

        Raises:  KeyError: it takes no part.  ValueError: another step was expected of it.
        """
        if step != self._clocks[worker]:
            raise ValueError(f"{worker} pushed step {step}, but step {self._clocks[worker]} was expected of it")
        if self._consistency == "bsp":
            self._box[worker] = gradient
            return self._go_on()
        self._clocks[worker] += 1
        staleness = self.version - self._pulled_at[worker]
        update = self._note([(worker, step)], staleness)
        return Todo((update, (gradient,)), self._answers())

    def is_late(self, worker: str, step: int) -> bool:
        """Whether the push of this step comes too late (bsp with backups): it is to be dropped."""
        return self._consistency == "bsp" and step < self._clocks[worker]

    def _go_on(self) -> Todo[G]:
        needed = max(1, len(self._clocks) - self._backups)
        if self._consistency != "bsp" or len(self._box) < needed:
            return Todo(None, self._answers())
        chosen = sorted(self._box)
        step = self.clock
        gradients = tuple(self._box[worker] for worker in chosen)
        self._box.clear()
        for worker in self._clocks:
            self._clocks[worker] = step + 1
        return Todo((self._note([(worker, step) for worker in chosen], 0), gradients), self._answers())

    def _note(self, pushes: Iterable[tuple[str, int]], staleness: int) -> Update:
        self.version += 1
        scale = 1.0 / max(1, staleness) if self._damps else 1.0
        return Update(self.version, tuple(pushes), staleness, scale)

    def _answers(self) -> tuple[str, ...]:
        """Who can be answered now."""
        ready = sorted(worker for worker in self._waiting if self._may_read(worker))
        for worker in ready:
            self._waiting.remove(worker)
            self._pulled_at[worker] = self.version
        return tuple(ready)

    def _may_read(self, worker: str) -> bool:
        match self._consistency:
            case "bsp":
                return worker not in self._box  # who has pushed waits for the step to be applied
            case "ssp":
                return self._clocks[worker] - self.clock <= self._staleness
            case "asp":
                return True
