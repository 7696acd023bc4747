"""How long a change of membership stopped the training, measured from the commits themselves."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass, field
from datetime import datetime

from rubato.wire.cluster import MetricRow

SETTLING_STEPS = 10
"""Steps after the event whose median is taken as the time of a step (the worker count before may differ)."""
PATIENCE_S = 3.0
"""With long steps the event does not wait for all of them."""


@dataclass
class PauseMeter:
    """Watches the rows of one new generation. Downtime = gap between the commits around it, less a median step."""

    generation: int
    before: MetricRow | None
    """The last row of the generation before; None at the start of a job."""
    first_at: float = 0.0
    rows: list[MetricRow] = field(default_factory=list)

    def see(self, row: MetricRow, now: float) -> None:
        """Take in a committed step; a late row of the generation before moves the point from which the gap counts."""
        if row.generation < self.generation and self.before is not None and row.step > self.before.step:
            self.before = row
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
        if self.before is None or not self.rows:
            return None
        times = [datetime.fromisoformat(row.time).timestamp() for row in (self.before, *self.rows)]
        gap = times[1] - times[0]
        after = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
        usual = statistics.median(after) if after else float(self.rows[0].values.get("step_seconds", 0.0))
        return max(0.0, gap - usual)
