"""Which step a report is, and which checkpoint belongs to which step. Pure.

Ray Train counts no steps. Here a report is one, counted from the beginning of the job; a worker group that goes on from
a checkpoint counts on from the step at which that was reported. Lists beside the checkpoints keep the steps, and the
newest reports: their like in a controller's memory is lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jobs.ray_train.messages import Reported
from rubato.errors import SpecError
from rubato.wire.codec import from_json, to_json

T = TypeVar("T", "Record", Reported)

REMEMBERED = 500
"""Reports. A service that is away for longer than these took, and a controller lost meanwhile, leave a gap."""


@dataclass(frozen=True)
class Record:
    """A checkpoint that Ray Train keeps."""

    folder: str
    step: int
    index: int
    """Reports that Ray Train had counted then, repeated ones included."""
    checkpoint_id: str


@dataclass(frozen=True)
class Snapshot:
    """What Ray Train keeps of a run on the storage."""

    newest: str | None
    """The folder of the checkpoint it goes on from."""
    kept: tuple[str, ...]
    index: int

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From the file that Ray Train writes."""
        data: dict[str, Any] = json.loads(text)
        newest = data.get("latest_checkpoint_result")
        kept = [one["checkpoint_dir_name"] for one in data.get("checkpoint_results", [])]
        return cls(newest["checkpoint_dir_name"] if newest else None, tuple(kept), int(data["current_report_index"]))


NO_SNAPSHOT = Snapshot(None, (), 0)


def encode(kept: Collection[Record] | Collection[Reported]) -> bytes:
    """As they are kept beside the checkpoints."""
    return json.dumps([to_json(one) for one in kept]).encode()


def decode(cls: type[T], text: str) -> tuple[T, ...]:
    """The other way; what does not hold is as if it were not there."""
    try:
        return tuple(from_json(cls, one) for one in json.loads(text))
    except (SpecError, TypeError, ValueError):
        return ()


class StepCount:
    """The steps of one run of Ray Train.

    Args:
        records, reports, snapshot: what the run before left beside its checkpoints.
    """

    def __init__(
        self, attempt: int, records: Collection[Record], snapshot: Snapshot, reports: Collection[Reported] = ()
    ) -> None:
        self._attempt = attempt
        self.records = tuple(record for record in records if record.folder in snapshot.kept)
        self.newest_step = _step_of(snapshot, records)
        """Of the newest checkpoint: a group that starts goes on behind it."""
        self.step = self.newest_step
        kept = {record.checkpoint_id for record in self.records}
        self.reports = tuple(_without_deleted(report, kept) for report in reports if report.step <= self.newest_step)
        """The newest, up to the present step."""

    def begin_group(self) -> int:
        """A worker group starts; the step behind which it goes on."""
        self.step = self.newest_step
        self.reports = tuple(report for report in self.reports if report.step <= self.step)
        return self.step

    def report(self) -> int:
        """The step of the next report."""
        self.step += 1
        return self.step

    def remember(self, report: Reported) -> None:
        """The present step was reported."""
        self.reports = (*self.reports, report)[-REMEMBERED:]

    def keep(self, folder: str, snapshot: Snapshot) -> tuple[Record, tuple[str, ...]]:
        """The present step was reported with a checkpoint.

        Returns: its record, and the ids of those that Ray Train has deleted since. An id that was made again, because
        the job went back, is not gone with its first folder.
        """
        made = Record(folder, self.step, snapshot.index, f"{self._attempt}-{self.step}")
        before = [record for record in self.records if record.folder != folder]
        kept = [record for record in before if record.folder in snapshot.kept]
        self.records = (*kept, made)
        self.newest_step = self.step
        ids = {record.checkpoint_id for record in self.records}
        deleted = sorted({record.checkpoint_id for record in before} - ids)
        return made, tuple(deleted)


def _without_deleted(report: Reported, kept: Collection[str]) -> Reported:
    """Without its checkpoint, where that is not kept any more."""
    seen = report.checkpoint
    return report if seen is None or seen.checkpoint_id in kept else replace(report, checkpoint=None)


def _step_of(snapshot: Snapshot, records: Collection[Record]) -> int:
    """The step of the newest checkpoint. Where the run ended before that was written down, from the reports since."""
    if snapshot.newest is None:
        return 0
    known = {record.folder: record for record in records}
    if snapshot.newest in known:
        return known[snapshot.newest].step
    last = max(records, key=lambda record: record.index, default=None)
    return snapshot.index if last is None else last.step + max(0, snapshot.index - last.index)
