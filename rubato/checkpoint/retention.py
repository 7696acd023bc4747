"""Which checkpoints are kept; the deleting of the others, and of what never became one.

Standard library only: controllers prune too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rubato.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    checkpoint_folders,
    key_of,
    open_checkpoint,
    read_manifest,
)
from rubato.checkpoint.storage import Folder
from rubato.errors import CheckpointError
from rubato.wire.cluster import Distrust
from rubato.wire.spec import CheckpointSpec, KeepBestSpec
from rubato.wire.storage import PIN_NAME as PIN_NAME
from rubato.wire.storage import PIN_TEXT


@dataclass(frozen=True)
class Retention:
    """What to keep besides what is pinned."""

    keep_last: int
    """The newest so many, at least 1."""
    keep_best: KeepBestSpec | None = None
    """Also the best by a metric."""

    def __post_init__(self) -> None:
        if self.keep_last < 1:
            raise ValueError(f"keep_last must be at least 1, got {self.keep_last}")

    @classmethod
    def of(cls, spec: CheckpointSpec) -> Retention:
        """From a job spec."""
        return cls(spec.keep_last, spec.keep_best)

    def __str__(self) -> str:
        best = self.keep_best
        return f"the newest {self.keep_last}" + (f" and the best {best.keep} by {best.metric}" if best else "")


def decide_deletions(
    names: Sequence[str], metrics: Mapping[str, Mapping[str, float]], retention: Retention
) -> list[str]:
    """Which of the finished checkpoints may go, oldest first. Of equally good ones the older counts as better.

    Args:
        names: of the finished checkpoints that are not pinned, oldest first.
        metrics: of each whose manifest could be read. Without the metric (or with nan) a checkpoint is never the best.
        retention: what to keep.
    """
    kept = set(names[-retention.keep_last :])
    best = retention.keep_best
    if best is not None:
        sign = 1.0 if best.mode == "min" else -1.0
        values = {name: metrics.get(name, {}).get(best.metric, math.nan) for name in names}
        ranked = sorted((name for name in names if not math.isnan(values[name])), key=lambda name: sign * values[name])
        kept |= set(ranked[: best.keep])
    return [name for name in names if name not in kept]


def prunable(root: Folder, retention: Retention) -> tuple[list[Folder], Folder | None]:
    """The finished checkpoints that are not to be kept, oldest first, and the newest finished one.

    None of them may be deleted before the newest was read again and `holds`: until then an older one may be the only
    way back.

    Raises:
        OSError: the storage cannot be listed.
    """
    finished = [folder for folder in checkpoint_folders(root) if folder.exists(MANIFEST_NAME)]
    free = [folder for folder in finished if not folder.exists(PIN_NAME)]
    metrics = {}
    if retention.keep_best is not None:
        metrics = {folder.name: manifest.metrics for folder in free if (manifest := _manifest_of(folder)) is not None}
    doomed = set(decide_deletions([folder.name for folder in free], metrics, retention))
    return [folder for folder in free if folder.name in doomed], finished[-1] if finished else None


def sweep(root: Folder, before: tuple[int, int]) -> list[str]:
    """Delete checkpoints that were begun and will never be finished: writers died, or a controller gave them up.

    A writer finishes one checkpoint before it begins the next, and one that dies finishes nothing. So when a checkpoint
    is whole nobody writes to an older one any more, and where no worker lives nobody writes to any.

    Args:    before: (attempt, step) of the one that is whole now; older ones without a manifest are dead.
    Returns: the names of the deleted folders.
    Raises:  OSError: the storage cannot be listed.
    """
    older = [folder for folder in checkpoint_folders(root) if key_of(folder.name) < before]
    dead = [folder for folder in older if not folder.exists(MANIFEST_NAME) and not folder.exists(PIN_NAME)]
    return [folder.name for folder in dead if delete(folder)]


def drop(root: Folder, which: Distrust) -> list[str]:
    """Take what may hold a wrong state out of the way: none of these checkpoints is found any more.

    Of a pinned one the files stay, without the manifest. Files that the storage does not let go are swept later.

    Returns: the names of the checkpoints that are none any more.
    Raises:  OSError, CheckpointError: the storage refused; some may still be found.
    """
    by_key = {key_of(folder.name): folder for folder in checkpoint_folders(root)}
    later = [
        folder
        for (attempt, step), folder in by_key.items()
        if step > which.after_step and attempt <= which.attempt and folder.exists(MANIFEST_NAME)
    ]
    wrong = [folder for folder in later if not _is_made_since(folder, which)]
    for folder in wrong:
        folder.remove(MANIFEST_NAME)
    for folder in wrong:
        if not folder.exists(PIN_NAME):
            delete(folder)
    return [folder.name for folder in wrong]


def _is_made_since(folder: Folder, which: Distrust) -> bool:
    """Whether a checkpoint is of a later generation. Of one that cannot be read nothing good is known."""
    if key_of(folder.name)[0] < which.attempt:
        return False
    manifest = _manifest_of(folder)
    return manifest is not None and manifest.generation > which.generation


def pin(folder: Folder) -> None:
    """Keep a checkpoint whatever the retention says.

    Raises:
        CheckpointError: it is no whole checkpoint, or the storage refused.
    """
    read_manifest(folder)
    folder.write_new(PIN_NAME, PIN_TEXT)
    if not folder.exists(MANIFEST_NAME):
        folder.remove(PIN_NAME)
        raise CheckpointError(f"checkpoint {folder.name} was deleted while it was being pinned")


def unpin(folder: Folder) -> None:
    """Leave a checkpoint to the retention again."""
    folder.remove(PIN_NAME)


def _manifest_of(folder: Folder) -> Manifest | None:
    try:
        return read_manifest(folder)
    except CheckpointError:
        return None


def holds(folder: Folder, on_block: Callable[[], None] = lambda: None) -> bool:
    """Whether a checkpoint, read again from end to end, is as its manifest says.

    Args:    on_block: called after every block that was read; what it raises ends the reading.
    """
    try:
        open_checkpoint(folder, on_block)
    except CheckpointError:
        return False
    return True


def delete(folder: Folder) -> bool:
    """Delete a checkpoint, unless it was pinned meanwhile; whether it is gone."""
    try:
        manifest = b"".join(folder.read(MANIFEST_NAME)) if folder.exists(MANIFEST_NAME) else None
        # Manifest first: a crash halfway leaves an unfinished checkpoint, not a corrupt one.
        folder.remove(MANIFEST_NAME)
        if manifest is not None and folder.exists(PIN_NAME):
            # Pinned meanwhile. Whoever pins looks for the manifest after writing the pin, and we look for the pin after
            # removing the manifest: one of the two sees the other.
            folder.write_new(MANIFEST_NAME, manifest)
            return False
        folder.remove_all()
    except (OSError, CheckpointError):
        return False  # storage hiccup: the next pruning tries again
    return True
