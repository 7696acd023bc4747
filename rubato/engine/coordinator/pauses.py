"""How long a change of membership stopped the training, measured from the commits themselves.

Downtime is the time between the last commit before the change and the first after it, less what a step takes. After a
join there is a step between, the bridge, which the members computed without the joiners: it is measured against the
steps before, the one after it against the steps after.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from rubato.wire.cluster import MetricRow

SETTLING_STEPS = 10
"""Steps after the event whose median is taken as the time of a step (the worker count before may differ)."""
PATIENCE_S = 3.0
"""With long steps the event waits for two of them only."""


@dataclass
class PauseMeter:
    """Watches the rows of one new generation."""

    generation: int
    world: int
    """Members of the generation."""
    earlier: list[MetricRow]
    """The last rows before it, oldest first; none at the start of a job."""
    first_at: float = 0.0
    rows: list[MetricRow] = field(default_factory=list)

    def see(self, row: MetricRow, now: float) -> None:
        """Take in a committed step; a late row of the generation before moves the point from which the gap counts."""
        if row.generation < self.generation and self.earlier and row.step > self.earlier[-1].step:
            self.earlier.append(row)
        if row.generation != self.generation or len(self.rows) > SETTLING_STEPS:
            return
        if not self.rows:
            self.first_at = now
        self.rows.append(row)

    def is_ripe(self, now: float) -> bool:
        """Whether the figure can be given: it needs two steps of the new membership, however long they are."""
        if len(self._complete) < 2:
            return False
        return len(self.rows) > SETTLING_STEPS or now - self.first_at >= PATIENCE_S

    def paused_s(self) -> float | None:
        """Seconds lost; None where nothing was training before, or too little to know what a step takes.

        Where the generation ended before two of its steps, a step is taken to last as long as before.
        """
        before = _gaps([row for row in self.earlier if row.generation == self.earlier[-1].generation])
        after = _gaps(self._complete)
        if not self.earlier or not self.rows or not (before or after):
            return None
        is_bridged = self._complete != self.rows
        first, later = statistics.median(before or after), statistics.median(after or before)
        paused = _excess(self.earlier[-1], self.rows[0], first if is_bridged else later)
        if is_bridged and len(self.rows) > 1:
            paused += _excess(self.rows[0], self.rows[1], later)
        return paused

    @property
    def _complete(self) -> list[MetricRow]:
        """The steps that all members computed: the rows without the bridge."""
        return self.rows[1:] if self.rows and self.rows[0].workers < self.world else self.rows


def _excess(earlier: MetricRow, later: MetricRow, usual_s: float) -> float:
    """Seconds between two commits beyond the usual ones."""
    return max(0.0, _time(later) - _time(earlier) - usual_s)


def _gaps(rows: Sequence[MetricRow]) -> list[float]:
    """Seconds between consecutive commits."""
    return [_time(later) - _time(earlier) for earlier, later in itertools.pairwise(rows)]


def _time(row: MetricRow) -> float:
    return datetime.fromisoformat(row.time).timestamp()
