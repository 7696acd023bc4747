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


def load_checkpoint(folder: Folder, on_wait: Callable[[], None]) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The document of a checkpoint and the tensors that it names, on the CPU.

    Args:
        on_wait: called again and again until it is there: many gigabytes may take longer than a stage of the training
            ever does, and their own deadline grows with their number.
    Raises:
        CheckpointError: it cannot be read, or is of a release that cut its batches differently.
        StorageUnreachable: the storage hangs.
    """
    what = f"reading checkpoint {folder.name} in {folder}"
    manifest = within(due_s(), lambda: read_manifest(folder), what, on_wait)
    check_order(manifest.versions, folder.name)
    size = sum(file.bytes for file in manifest.files)
    return within(due_s(size), lambda: read_state(folder, manifest.files), what, on_wait)
