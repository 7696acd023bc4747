"""One epoch as user code sees it."""

from __future__ import annotations

from collections.abc import Iterator

from rubato.engine.step import Step
from rubato.errors import ModelError


class Epoch:
    """One pass over the dataset, or what is left of it for a worker that joins late: iterating yields its steps.

    What the program does behind the loop over its steps belongs to the last of them, which commits when the loop over
    the epochs comes round: a worker that joins between two epochs never misses it.
    """

    def __init__(self, first: Step, steps: Iterator[Step]) -> None:
        self._first = first
        self._steps = steps
        self._is_begun = False
        self.index = first.epoch
        """Counted from 0."""
        self.is_done = False
        """Whether all of its steps were gone through."""

    def __iter__(self) -> Iterator[Step]:
        if self._is_begun:
            raise ModelError(
                f"the steps of epoch {self.index} can be gone through once, in one loop without break; "
                "go on to the next epoch of run.epochs()"
            )
        self._is_begun = True
        step = self._first
        yield step
        while not step.is_last_of_epoch:
            step = next(self._steps)
            yield step
        step.check_reduced()
        self.is_done = True

    def check_done(self) -> None:
        """Raises:  ModelError: steps were left out."""
        if not self.is_done:
            raise ModelError(
                f"epoch {self.index} ended before its steps were gone through: go through all of them "
                "(`for step in epoch:`), without break"
            )
