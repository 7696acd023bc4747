"""The state of a checkpoint, read from storage for the members that begin with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rubato.checkpoint.due import due_s, within
from rubato.checkpoint.manifest import read_manifest
from rubato.checkpoint.storage import Folder
from rubato.checkpoint.stripes import read_state
from rubato.data.order import check_order
from rubato.engine.arithmetic import arithmetic_of, describe_changes
from rubato.engine.saver import versions
from rubato.wire.events import EventKind


def load_checkpoint(
    folder: Folder, on_wait: Callable[[], None], device: torch.device, notice: Callable[..., None]
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The document of a checkpoint and the tensors that it names, on the CPU.

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
    return within(due_s(size), lambda: read_state(folder, manifest.files), what, on_wait)
