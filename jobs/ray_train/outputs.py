"""Whose lines a worker's output is: its process says, whichever of two senders is heard first."""

from __future__ import annotations

from collections.abc import Iterable

from jobs.ray_train.messages import WorkerOutput
from rubato.wire.cluster import LogLine, WorkerReport


class Outputs:
    """The lines of one driver's workers.

    A worker and the controller of its group speak over lines of their own. So a worker may be heard before its group is
    told of, or once more when the next group has started.
    """

    def __init__(self) -> None:
        self._names: dict[tuple[str, int | None], str] = {}
        self._early: list[WorkerOutput] = []
        self._is_over = False

    def name(self, workers: Iterable[WorkerReport]) -> list[LogLine]:
        """A group has started; what its workers have written by now."""
        self._names |= {(one.node_id, one.pid): one.worker_id for one in workers}
        early, self._early = self._early, []
        return [line for output in early for line in self.take(output)]

    def take(self, output: WorkerOutput) -> list[LogLine]:
        """Its lines; none yet, where its worker is not known."""
        worker_id = self._names.get((output.node_id, output.pid))
        if worker_id is None and not self._is_over:
            self._early.append(output)
            return []
        return [LogLine(worker_id or "", output.rank, moment, stream, line) for moment, stream, line in output.lines]

    def end(self) -> list[LogLine]:
        """The driver has ended; what workers wrote whose group never started."""
        self._is_over = True
        return self.name(())
