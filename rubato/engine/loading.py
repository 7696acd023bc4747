"""The state of a checkpoint, read from storage for the members that begin with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rubato.checkpoint.due import due_s, within
from rubato.checkpoint.manifest import Manifest, read_manifest
from rubato.checkpoint.storage import Folder
from rubato.checkpoint.stripes import read_state
from rubato.data.order import check_order
from rubato.engine.arithmetic import arithmetic_of, describe_changes
from rubato.engine.saver import versions
from rubato.wire.events import EventKind


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory."""

    document: dict[str, Any]
    tensors: list[torch.Tensor]
    """Those that the document names, on the CPU."""
    manifest: Manifest

    def rows_of(self, job_id: str) -> dict[str, Any]:
        """Metric rows of this job that it took along: the controller that tells of them now may be lost, too.

        Returns: rows: that were told.  open_row: that of the last step of all, for whoever begins here to tell.
        """
        if self.manifest.job != job_id:
            return {"rows": [], "open_row": None}
        extra = self.document["extra"]
        return {"rows": [asdict(row) for row in self.manifest.rows], "open_row": extra.get("open_row")}


def load_checkpoint(
    folder: Folder, on_wait: Callable[[], None], device: torch.device, notice: Callable[..., None]
) -> Loaded:
    """What a checkpoint holds.

    Args:
        on_wait: called again and again until it is there: many gigabytes may take longer than a stage of the training
            ever does, and their own deadline grows with their number.
        device: on which training goes on.
        notice: takes an event: versions or processors have changed since it was made, so that bits may differ.
    Raises:
        CheckpointError: it cannot be read, or is of a release that cut its batches differently.
        StorageUnreachable: the storage hangs.
    """
    what = f"reading checkpoint {folder.name} in {folder}"
    manifest = within(due_s(), lambda: read_manifest(folder), what, on_wait)
    check_order(manifest.versions, folder.name)
    now = versions() | arithmetic_of(device)
    if changes := describe_changes(manifest.versions, now):
        text = f"training goes on from checkpoint {folder.name} with other arithmetic, so bits may differ: {changes}"
        before = {name: manifest.versions[name] for name in now if name in manifest.versions}
        notice(EventKind.ARITHMETIC_CHANGED, text, checkpoint_id=folder.name, before=before, now=now)
    size = sum(file.bytes for file in manifest.files)
    return Loaded(*within(due_s(size), lambda: read_state(folder, manifest.files), what, on_wait), manifest)
