"""The files of a run on its storage: Ray Train's snapshot of its checkpoints, a copy of it, the steps, recent reports.

Ray Train overwrites its snapshot in place, and finds nothing to go on from where it was ended within that. The copy is
written after it, and put back before a run begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.train.v2._internal.constants import CHECKPOINT_MANAGER_SNAPSHOT_FILENAME as SNAPSHOT

from jobs.ray_train.messages import CheckpointSeen, Reported
from jobs.ray_train.steps import NO_SNAPSHOT, Record, Snapshot, decode, encode

if TYPE_CHECKING:
    from ray.train import Checkpoint
    from ray.train.v2._internal.execution.storage import StorageContext

RECORDS, REPORTS, COPY = "rubato-steps.json", "rubato-reports.json", "rubato-snapshot.json"


class RunFiles:
    """Those of one run."""

    def __init__(self, storage: StorageContext) -> None:
        self._store: Any = storage.storage_filesystem
        self._folder = storage.experiment_fs_path
        self._name = storage.experiment_dir_name

    def snapshot(self) -> Snapshot:
        """What Ray Train keeps."""
        return self._parsed(SNAPSHOT) or NO_SNAPSHOT

    def mend(self) -> bool:
        """Put the copy in the place of a snapshot that does not hold; whether that was needed."""
        if self._read(SNAPSHOT) is None or self._parsed(SNAPSHOT) is not None or self._parsed(COPY) is None:
            return False
        self._write(SNAPSHOT, (self._read(COPY) or "").encode())
        return True

    def records(self) -> tuple[Record, ...]:
        """The steps of the checkpoints."""
        return decode(Record, self._read(RECORDS) or "")

    def reports(self) -> tuple[Reported, ...]:
        """The newest when the last checkpoint was reported."""
        return decode(Reported, self._read(REPORTS) or "")

    def keep(self, records: tuple[Record, ...], reports: tuple[Reported, ...]) -> None:
        """Write down the steps and the reports, and copy the snapshot."""
        self._write(REPORTS, encode(reports))
        self._write(RECORDS, encode(records))
        self._write(COPY, (self._read(SNAPSHOT) or "").encode())

    def remove_unfinished(self, snapshot: Snapshot) -> None:
        """Take away checkpoints that were being reported when a run was ended: Ray Train forgets them.

        Only while no run writes any.
        """
        from pyarrow import fs  # type: ignore[import-untyped]

        for one in self._store.get_file_info(fs.FileSelector(self._folder)):
            if is_unfinished(one.base_name, snapshot) and one.type == fs.FileType.Directory:
                self._store.delete_dir(one.path)

    def describe(self, record: Record, checkpoint: Checkpoint) -> CheckpointSeen:
        """A checkpoint, with its size."""
        from pyarrow import fs

        store: Any = checkpoint.filesystem
        found = store.get_file_info(fs.FileSelector(checkpoint.path, recursive=True))
        size = sum(one.size for one in found if one.type == fs.FileType.File)
        return CheckpointSeen(record.checkpoint_id, f"{self._name}/{record.folder}", size)

    def _parsed(self, name: str) -> Snapshot | None:
        text = self._read(name)
        try:
            return Snapshot.parse(text) if text else None
        except (KeyError, TypeError, ValueError):
            return None

    def _read(self, name: str) -> str | None:
        try:
            with self._store.open_input_stream(f"{self._folder}/{name}") as file:
                return bytes(file.read()).decode(errors="replace")
        except FileNotFoundError:
            return None

    def _write(self, name: str, data: bytes) -> None:
        with self._store.open_output_stream(f"{self._folder}/{name}") as file:
            file.write(data)


def is_unfinished(folder: str, snapshot: Snapshot) -> bool:
    """Whether a folder is a checkpoint, by the name that Ray Train gives them, which it does not keep."""
    return folder.startswith("checkpoint_") and folder not in (*snapshot.kept, snapshot.newest)
