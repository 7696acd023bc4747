"""What a supervisor knows of its training process: all that it said and all that it was told passes through here. Pure.

A process whose interpreter lock is held in C answers nothing, for minutes where it says so (`run.long_phase`), and is
well. Where it stands follows from its messages, each said as soon as it holds: a new controller that begins with this
and takes in what is said from here on knows what one knows that has listened all the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from rubato.wire import worker as wire
from rubato.wire.cluster import MetricRow

MAX_KEPT_ROWS = 100_000
"""As many as the process itself keeps."""


class Shadow:
    """The snapshot that a worker would give of itself."""

    def __init__(self, incarnation: str) -> None:
        self._incarnation = incarnation
        self._hello: wire.Hello | None = None
        self._standby: wire.Standby | None = None
        self._record: wire.GenerationRecord | None = None
        self._records: dict[int, wire.GenerationRecord] = {}
        """That it may enter, by number."""
        self._highest = 0
        self._broken: wire.Broken | None = None
        self._ended: wire.Ended | None = None
        self._has_ended = False
        """At some time, in whichever generation."""
        self.parts: tuple[wire.StripeWritten | wire.StripeFailed, ...] = ()
        """What it said of the newest checkpoint: of its own part, and maybe of that of a dead neighbour."""
        self._step = 0
        self._saved_step = -1
        self._rows: deque[MetricRow] = deque(maxlen=MAX_KEPT_ROWS)
        """Only who has the lowest rank tells them: of others it keeps none, and those have them."""

    @property
    def is_at_end(self) -> bool:
        """Nothing is trained behind its newest checkpoint, however long its program still runs."""
        total_steps = self._standby.total_steps if self._standby is not None else None
        return self._has_ended or any(part.step == total_steps for part in self.parts)

    def on_command(self, command: wire.Command) -> None:
        """Something was passed to the process, which takes it in before anything that comes later."""
        match command:
            case wire.Prepare(record=record):
                self._records[record.number] = record
                self._highest = max(self._highest, record.number)
            case wire.Revoke(through=through):
                self._highest = max(self._highest, through)
            case wire.ForgetStripes(folder=folder):
                self._saved_step = max(self._saved_step, int(folder.rsplit("-", 1)[1]))
            case wire.Acknowledge(step=step):
                while self._rows and self._rows[0].step <= step:
                    self._rows.popleft()
            case _:
                pass

    def on_message(self, message: object) -> None:
        """The process said something."""
        match message:
            case wire.Hello():
                self._hello = message
            case wire.Standby():
                self._standby = message
            case wire.Entered(generation=generation, step=step):
                self._record, self._broken, self._ended, self._step = self._records[generation], None, None, step
                self._records = {number: one for number, one in self._records.items() if number > generation}
            case wire.Committed(step=step, rows=rows):
                self._step = step
                self._keep(rows)
            case wire.Broken():  # whose step may be one that it has not committed yet
                self._broken, self._ended = message, None
            case wire.StripeWritten() | wire.StripeFailed():
                self._keep_part(message)
            case wire.Stopped(step=step) if self._standby is not None:
                self._standby = replace(self._standby, total_steps=step)
            case wire.Ended(step=step):
                self._ended, self._step, self._has_ended = message, step, True
            case _:
                pass

    def snapshot(self) -> wire.Snapshot:
        """Where it stands."""
        return wire.Snapshot(
            incarnation=self._incarnation,
            hello=self._hello,
            standby=self._standby,
            record=self._record,
            pending=self._highest,
            broken=self._broken,
            ended=self._ended,
            step=self._step,
            rows=tuple(self._rows),
            saved_step=self._saved_step,
        )

    def _keep_part(self, part: wire.StripeWritten | wire.StripeFailed) -> None:
        """One of an older checkpoint comes late where its write had hung, and was given up."""
        parts = (*self.parts, part)
        newest = max((one.step, one.generation) for one in parts)
        self.parts = tuple(one for one in parts if (one.step, one.generation) == newest)

    def _keep(self, rows: tuple[MetricRow, ...]) -> None:
        """Who comes to have the lowest rank tells all anew, and so comes what lies behind a checkpoint gone back to."""
        while rows and self._rows and self._rows[-1].step >= rows[0].step:
            self._rows.pop()
        self._rows.extend(rows)
