"""The rows of numbers that steps leave: all members keep those of every step, and the lowest rank tells them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from rubato.engine.control import MAX_KEPT_ROWS, Control
from rubato.wire.cluster import MetricRow


class Rows:
    """Those of one worker. The control's thread takes away what is acknowledged."""

    def __init__(self, control: Control) -> None:
        self.logged: dict[str, float] = {}
        """What the user logged since the last row."""
        self.latest: dict[str, float] = {}
        """Of every name, for checkpoints: rows go when they are acknowledged."""
        self._control = control
        self._newest: MetricRow | None = None
        """Of the last committed step, until it is kept: that of the last one waits for what is logged at the end."""
        self._kept: tuple[MetricRow, ...] = ()
        """The last one that was."""
        self._told_in = 0

    def untold(self) -> tuple[dict[str, Any], ...]:
        """What nobody acknowledged: who tells it may be lost."""
        return tuple(map(asdict, tuple(self._control.rows)))

    @property
    def open_row(self) -> dict[str, Any] | None:
        """The newest row, where it is not kept yet."""
        return None if self._newest is None else asdict(self._newest)

    def take_over(
        self,
        latest: Mapping[str, float],
        untold: Iterable[Mapping[str, Any]],
        open_row: Mapping[str, Any] | None = None,
    ) -> None:
        """Go on from what another run or worker had."""
        self.logged.clear()
        self.latest = dict(latest)
        self._control.rows = rows = deque((MetricRow(**row) for row in untold), MAX_KEPT_ROWS)
        is_told = open_row is None or (rows and rows[-1].step >= open_row["step"])
        self._newest = None if is_told or open_row is None else MetricRow(**open_row)

    def commit(self, row: MetricRow) -> None:
        """The step of this row counts."""
        self.keep()  # where another run goes on behind the last step of one
        self._newest = row
        self.latest.update(row.values)

    def add(self, logged: Mapping[str, float]) -> None:
        """To the newest row, which is not kept yet."""
        if self._newest is not None:
            self._newest.values.update(logged)

    def keep(self) -> None:
        """The newest row is complete."""
        row, self._newest = self._newest, None
        if row is not None:
            self._control.rows.append(row)
            self._kept = (row,)

    def tell(self, generation: int, rank: int, step: int, pace: tuple[tuple[int, int], ...] = ()) -> None:
        """Say that so many steps are done.

        Args:    pace: by rank, as `Decision` has it; only the lowest rank tells it.
        """
        if rank == 0:
            self._control.say_committed(generation, step, self._new_in(generation), pace)
        else:
            self._control.say_committed(generation, step)

    def _new_in(self, generation: int) -> tuple[MetricRow, ...]:
        """The lowest rank tells all rows that nobody acknowledged when it becomes that, and then each new one."""
        if self._told_in == generation:
            return self._kept
        self._told_in = generation
        return tuple(self._control.rows)  # at once: the control's thread takes acknowledged ones away meanwhile
