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
"""With long steps the event does not wait for all of them."""


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
        """Whether the figure can be given."""
        if not self.rows:
            return False
        return len(self.rows) > SETTLING_STEPS or now - self.first_at >= PATIENCE_S

    def paused_s(self) -> float | None:
        """Seconds lost; None where nothing was training before."""
        if not self.earlier or not self.rows:
            return None
        is_bridged = len(self.rows) > 1 and self.rows[0].workers < self.world
        if not is_bridged:
            return _excess(self.earlier[-1], self.rows[0], self.rows)
        before = [row for row in self.earlier if row.generation == self.earlier[-1].generation]
        bridge = _excess(self.earlier[-1], self.rows[0], before if len(before) > 1 else self.rows[:1])
        return bridge + _excess(self.rows[0], self.rows[1], self.rows[1:])


def _excess(earlier: MetricRow, later: MetricRow, usual: Sequence[MetricRow]) -> float:
    """Seconds between two commits beyond the median time between consecutive `usual` ones."""
    times = [_time(row) for row in usual]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    step = statistics.median(gaps) if gaps else float(usual[-1].values.get("step_seconds", 0.0))
    return max(0.0, _time(later) - _time(earlier) - step)


def _time(row: MetricRow) -> float:
    return datetime.fromisoformat(row.time).timestamp()
