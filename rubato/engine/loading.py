"""The state of a checkpoint, read from storage for the members that begin with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rubato.checkpoint.due import due_s, within
from rubato.checkpoint.manifest import Manifest, read_manifest
from rubato.checkpoint.storage import Folder
from rubato.checkpoint.stripes import read_state
from rubato.data.order import BatchPlan, check_order
from rubato.data.stream import StreamPlan
from rubato.engine.arithmetic import arithmetic_of, describe_changes
from rubato.engine.saver import versions
from rubato.errors import CheckpointError
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


def program_of(code_digest: str, plan: BatchPlan) -> dict[str, Any]:
    """What a checkpoint tells of the program, to be compared by whoever goes on from it."""
    return {"code_digest": code_digest, "num_samples": 0 if isinstance(plan, StreamPlan) else plan.num_samples}


def load_checkpoint(
    folder: Folder,
    on_wait: Callable[[], None],
    device: torch.device,
    notice: Callable[..., None],
    program: Mapping[str, Any],
) -> Loaded:
    """What a checkpoint holds.

    Args:
        on_wait: called again and again until it is there: many gigabytes may take longer than a stage of the training
            ever does, and their own deadline grows with their number.
        device: on which training goes on.
        notice: takes an event: versions, processors or the program have changed since it was made, so that bits may
            differ.
        program: that goes on, see `program_of`.
    Raises:
        CheckpointError: it cannot be read, or was made of other batches: by another release, of another dataset.
        StorageUnreachable: the storage hangs.
    """
    what = f"reading checkpoint {folder.name} in {folder}"
    manifest = within(due_s(), lambda: read_manifest(folder), what, on_wait)
    check_order(manifest.versions, folder.name)
    _check_dataset(manifest, folder.name, program["num_samples"])
    now = versions() | arithmetic_of(device)
    if changes := describe_changes(manifest.versions, now):
        text = f"training goes on from checkpoint {folder.name} with other arithmetic, so bits may differ: {changes}"
        before = {name: manifest.versions[name] for name in now if name in manifest.versions}
        notice(EventKind.ARITHMETIC_CHANGED, text, checkpoint_id=folder.name, before=before, now=now)
    made_by, code = manifest.code_digest, program["code_digest"]
    # The digest is of versions, too: where these have changed it tells nothing of the files.
    is_of_files = all(manifest.versions.get(name) == version for name, version in versions().items())
    if is_of_files and made_by and made_by != code:
        text = (
            f"training goes on from checkpoint {folder.name} with another program than made it: one of its files has "
            "changed, so the result is that of neither"
        )
        notice(EventKind.CODE_CHANGED, text, checkpoint_id=folder.name, before=made_by, now=code)
    size = sum(file.bytes for file in manifest.files)
    return Loaded(*within(due_s(size), lambda: read_state(folder, manifest.files), what, on_wait), manifest)


def _check_dataset(manifest: Manifest, checkpoint: str, num_samples: int) -> None:
    """Refuse to go on in an epoch of another dataset. That its samples are others is not seen."""
    if manifest.num_samples and num_samples and manifest.num_samples != num_samples:
        raise CheckpointError(
            f"checkpoint {checkpoint} was trained on a dataset of {manifest.num_samples} samples, and now it has "
            f"{num_samples}: the rest of the epoch would repeat some and leave out others. Go on with the same one, or "
            "begin a new run with these weights: `rubato export` takes them out, and the program loads them "
            "(model.load_state_dict)"
        )
