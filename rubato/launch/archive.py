"""Checkpoints on a folder, as a host needs them: found, committed and pruned beside the loop, in one helper thread."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rubato.checkpoint.manifest import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    commit_manifest,
    find_latest,
    prune,
    read_manifest,
    verify,
)
from rubato.engine.coordinator.orders import CheckpointFound, CommitManifest, Emit, ManifestCommitted
from rubato.engine.tree import radices_of
from rubato.errors import CheckpointError
from rubato.launch.host import Post
from rubato.wire.codec import to_json
from rubato.wire.events import EventKind
from rubato.wire.spec import JobSpec


@dataclass(frozen=True)
class ArchiveTerms:
    """What a job's manifests have in common."""

    job_id: str
    root: Path | None
    """The job's folder; None: nothing is saved."""
    num_microbatches: int
    seed: int
    keep_last: int
    origin: Path | None = None
    """A checkpoint of another job to begin from, while there is none of this one."""

    @classmethod
    def of(cls, job_id: str, root: Path | None, spec: JobSpec, origin: Path | None = None) -> ArchiveTerms:
        """From a job spec."""
        return cls(job_id, root, spec.num_microbatches, spec.seed, spec.checkpoint.keep_last, origin)


class FolderArchive:
    """Answers the host's questions about checkpoints, one after the other, without making it wait for the storage."""

    def __init__(self, terms: ArchiveTerms, post: Post) -> None:
        self._terms = terms
        self._post = post
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a storage that hangs for ever must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)
        self._thread.start()

    def find(self) -> None:
        """Look for the newest checkpoint that verifies; `CheckpointFound` is posted."""
        self._work.put(self._find)

    def commit(self, order: CommitManifest) -> None:
        """Write the manifest, then prune; `ManifestCommitted` is posted, and the events before it."""
        self._work.put(lambda: self._commit(order))

    def close(self, timeout_s: float = 10.0) -> None:
        """End the thread after what it has been asked for."""
        self._work.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (task := self._work.get()) is not None:
            task()

    def _find(self) -> None:
        corrupt: list[str] = []

        def pass_over(folder: Path, cause: str) -> None:
            # Without a manifest it was never finished: nothing is wrong with that.
            if (folder / MANIFEST_NAME).exists():
                corrupt.append(f"{folder.name}: {cause}")

        found, unusable = None, ""
        try:
            if self._terms.root is not None:
                found = find_latest(self._terms.root, pass_over)
        except (CheckpointError, OSError) as error:
            corrupt.append(str(error))
        if found is None and self._terms.origin is not None:
            try:
                found = _open(self._terms.origin)
            except (CheckpointError, OSError) as error:
                unusable = str(error)
        if found is None:
            self._post(CheckpointFound(corrupt=tuple(corrupt), unusable=unusable))
            return
        folder, manifest = found
        self._post(CheckpointFound(str(folder), manifest.step, tuple(corrupt)))

    def _commit(self, order: CommitManifest) -> None:
        try:
            self._write(order)
        except Exception as error:  # whatever it is: training goes on without this checkpoint, and the answer must come
            self._post(ManifestCommitted(order.folder, order.step, error=f"{error}"))
            return
        # Told last: an end that waits for it comes after the events.
        self._post(ManifestCommitted(order.folder, order.step))

    def _write(self, order: CommitManifest) -> None:
        terms = self._terms
        if terms.root is None:
            raise CheckpointError("this job has no storage for checkpoints")
        begun = time.monotonic()
        manifest = self._manifest(order)
        record = commit_manifest(terms.root / order.folder, manifest)
        files = [*manifest.files, record]
        size = sum(file.bytes for file in files)
        self._emit(
            EventKind.CHECKPOINT_COMMITTED,
            f"the checkpoint of step {order.step} was saved, {size / 1e6:.1f} MB",
            order,
            checkpoint_id=order.folder,
            bytes=size,
            seconds=round(float(order.terms.get("seconds", time.monotonic() - begun)), 4),
            metrics={name: value for name, value in manifest.metrics.items() if abs(value) < float("inf")},
            files=to_json(files),
        )
        for name in prune(terms.root, terms.keep_last):
            message = f"checkpoint {name} was deleted: the newest {terms.keep_last} are kept"
            self._emit(EventKind.CHECKPOINT_DELETED, message, order, checkpoint_id=name)

    def _manifest(self, order: CommitManifest) -> Manifest:
        match = re.fullmatch(r"(\d+)-(\d+)", order.folder)
        if match is None or int(match.group(2)) != order.step:
            raise CheckpointError(f"{order.folder!r} is no folder of a checkpoint of step {order.step}")
        return Manifest(
            job=self._terms.job_id,
            attempt=int(match.group(1)),
            generation=order.generation,
            step=order.step,
            num_microbatches=self._terms.num_microbatches,
            radices=radices_of(self._terms.num_microbatches),
            seed=self._terms.seed,
            code_digest=str(order.terms.get("code_digest", "")),
            files=tuple(FileRecord(str(one["name"]), int(one["bytes"]), str(one["sha256"])) for one in order.files),
            created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            versions={str(key): str(value) for key, value in order.terms.get("versions", {}).items()},
            metrics={str(key): float(value) for key, value in order.terms.get("metrics", {}).items()},
        )

    def _emit(self, kind: EventKind, message: str, order: CommitManifest, **data: object) -> None:
        self._post(Emit(kind.value, message, order.step, order.generation, {"step": order.step, **data}))


def _open(folder: Path) -> tuple[Path, Manifest]:
    """A checkpoint by its folder.

    Raises:
        CheckpointError: it is not whole.
    """
    manifest = read_manifest(folder)
    verify(folder, manifest)
    return folder, manifest
