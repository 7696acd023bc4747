"""The manifest: the file that makes a checkpoint whole, written last. Standard library only: controllers read it too.

A checkpoint is a folder `{attempt}-{step}` under the job's root. Without a readable manifest it does not exist; with
one it holds if every file has the size and hash that the manifest names. The newest is the one with the highest
(attempt, step): a later attempt resumed from an earlier step knows better than the one it replaced.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rubato.checkpoint.files import FileRecord as FileRecord
from rubato.checkpoint.storage import Folder
from rubato.errors import CheckpointCorrupt, CheckpointError, SpecError, StorageUnreachable, UserError
from rubato.wire.cluster import MetricRow
from rubato.wire.codec import from_json, to_json
from rubato.wire.storage import MANIFEST_NAME as MANIFEST_NAME
from rubato.wire.units import utc_timestamp

FORMAT_VERSION = 2
_CHECKSUM = "manifest_sha256"
_FOLDER = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class Manifest:
    """All that must be known of a checkpoint before its files are opened."""

    job: str
    attempt: int
    generation: int
    step: int
    """Committed steps; training goes on with the step of this number, counted from 0."""
    num_microbatches: int
    radices: tuple[int, ...]
    """Shape of the reduction tree."""
    seed: int
    code_digest: str
    """Of the user's code, so that a resume with other code can be told."""
    files: tuple[FileRecord, ...]
    created_at: str
    """RFC 3339, UTC."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of python, torch, machine, sample order and arithmetic: what else the bits depend on."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Latest values at the step."""
    global_batch: int = 0
    """Samples in one step; 0: written by a Rubato that did not say."""
    num_samples: int = 0
    """Of the dataset, which says what a step reads; 0: it is a stream, or written by a Rubato that did not say."""
    rows: tuple[MetricRow, ...] = ()
    """Metric rows up to the step that were not known to be stored: nobody computes them again."""
    format_version: int = FORMAT_VERSION


@dataclass(frozen=True)
class JobTerms:
    """What all manifests of a job have in common."""

    job_id: str
    num_microbatches: int
    radices: tuple[int, ...]
    seed: int
    global_batch: int

    def manifest(
        self,
        folder: str,
        *,
        step: int,
        generation: int,
        files: Sequence[Mapping[str, Any]],
        terms: Mapping[str, Any],
        rows: Sequence[MetricRow] = (),
    ) -> Manifest:
        """The manifest of a checkpoint whose stripes are written.

        Args:
            folder: its name, `{attempt}-{step}`.
            files: name, bytes, sha256 of each.
            terms: what the workers say besides: code_digest, num_samples, versions, metrics.
            rows: metric rows up to the step that are not known to be stored.

        Raises:
            CheckpointError: that is no name of a checkpoint of this step.
        """
        match = _FOLDER.fullmatch(folder)
        if match is None or int(match[2]) != step:
            raise CheckpointError(f"{folder!r} is no folder of a checkpoint of step {step}")
        return Manifest(
            job=self.job_id,
            attempt=int(match[1]),
            generation=generation,
            step=step,
            num_microbatches=self.num_microbatches,
            radices=self.radices,
            seed=self.seed,
            code_digest=str(terms.get("code_digest", "")),
            files=tuple(FileRecord(str(one["name"]), int(one["bytes"]), str(one["sha256"])) for one in files),
            created_at=utc_timestamp(),
            versions={str(key): str(value) for key, value in terms.get("versions", {}).items()},
            metrics={str(key): float(value) for key, value in terms.get("metrics", {}).items()},
            global_batch=self.global_batch,
            num_samples=int(terms.get("num_samples", 0)),
            rows=tuple(rows),
        )

    def check(self, manifest: Manifest, where: str) -> None:
        """Refuse to go on from a checkpoint under other terms: the bits would be those of neither run.

        Raises:
            UserError: names what differs, and what to do.
        """
        pairs: list[tuple[str, object, object]] = [
            ("the seed", manifest.seed, self.seed),
            ("the number of microbatches", manifest.num_microbatches, self.num_microbatches),
            ("the global batch", manifest.global_batch or self.global_batch, self.global_batch),
        ]
        if self.radices:  # else no bits are promised
            pairs.append(("the shape of the sums", manifest.radices or "`reproducible: false`", self.radices))
        differing = [f"{name} was {saved}, now it is {mine}" for name, saved, mine in pairs if saved != mine]
        if differing:
            raise UserError(
                f"{where} was trained under other terms: {'; '.join(differing)}. Go on with the same ones, or give "
                "another folder to begin anew"
            )


def folder_name(attempt: int, step: int) -> str:
    """Name of a checkpoint's folder under the job's root."""
    return f"{attempt}-{step}"


def commit_manifest(folder: Folder, manifest: Manifest) -> tuple[Manifest, FileRecord]:
    """Write the manifest, which makes the checkpoint exist. Its files must lie in the folder already.

    A manifest that is there already stays if its checkpoint holds: equal steps of a job are equal bits, however many
    workers wrote them, and files that may differ have different names, so of two controllers that commit the same one
    either may win.

    Returns:
        The manifest that counts, and its file.

    Raises:
        CheckpointError: a file is missing or has another size, the folder is another job's, or the storage refused; no
            manifest was written.
    """
    for record in manifest.files:
        if _size_of(folder, record.name) != record.bytes:
            raise CheckpointError(
                f"checkpoint {folder.name} is not whole: {record.name} is missing or not fully written"
            )
    body = to_json(replace(manifest, metrics={}))
    # JSON has no NaN or infinity, and readers in other languages refuse what Python writes for them.
    body["metrics"] = {name: value if math.isfinite(value) else repr(value) for name, value in manifest.metrics.items()}
    data = json.dumps({_CHECKSUM: _checksum(body), **body}, indent=1).encode()
    written = folder.write_new(MANIFEST_NAME, data)
    if written is not None:
        return manifest, written
    present = _present(folder, manifest)
    if present is None:
        return manifest, folder.write(MANIFEST_NAME, [data])
    there = b"".join(folder.read(MANIFEST_NAME))
    return present, FileRecord(MANIFEST_NAME, len(there), hashlib.sha256(there).hexdigest())


def _size_of(folder: Folder, name: str) -> int | None:
    try:
        return folder.size(name)
    except FileNotFoundError:
        return None


def _present(folder: Folder, manifest: Manifest) -> Manifest | None:
    """The manifest that is there, if its checkpoint holds; None: it may be replaced."""
    try:
        present = read_manifest(folder)
        if present.job != manifest.job:
            raise CheckpointError(
                f"checkpoint {folder.name} in {folder} is that of {present.job}: two runs write to one folder, give "
                "each its own"
            )
        if set(present.files) != set(manifest.files):
            verify(folder, present)
    except CheckpointCorrupt:
        return None
    return present


def read_manifest(folder: Folder, *, any_name: bool = False) -> Manifest:
    """Read a checkpoint's manifest; its files are not looked at.

    Args:
        folder: of the checkpoint.
        any_name: the folder may be called otherwise than its checkpoint, as a copy that a person made and names is.

    Raises:
        CheckpointCorrupt: it is missing, damaged, or of another folder.
        CheckpointError: it has a newer format.
    """
    where = f"{MANIFEST_NAME} of checkpoint {folder.name}"
    try:
        data = json.loads(b"".join(folder.read(MANIFEST_NAME)))
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{where} is missing: the checkpoint was never finished") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointCorrupt(f"{where} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointCorrupt(f"{where} is no JSON object")
    if isinstance(data.get("format_version"), int) and data["format_version"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{where} has format {data['format_version']}, this Rubato reads {FORMAT_VERSION}: use a newer Rubato"
        )
    checksum = data.pop(_CHECKSUM, None)
    if checksum != _checksum(data):
        raise CheckpointCorrupt(f"{where} does not match its own hash: it was damaged or edited")
    return _parse(data, folder, where, any_name=any_name)


def verify(folder: Folder, manifest: Manifest, on_block: Callable[[], None] = lambda: None) -> None:
    """Compare every file with the manifest: presence, size, SHA-256.

    Args:    on_block: called after every block that was read; what it raises ends the reading.
    Raises:
        CheckpointCorrupt: names the first file that differs, and how.
    """
    for record in manifest.files:
        where = f"{record.name} of checkpoint {folder.name}"
        try:
            size = folder.size(record.name)
            if size != record.bytes:
                raise CheckpointCorrupt(f"{where} has {size} bytes, the manifest says {record.bytes}")
            for _ in read_checked(folder, record):
                on_block()
        except FileNotFoundError as error:
            raise CheckpointCorrupt(f"{where} is missing") from error
        except OSError as error:
            raise CheckpointCorrupt(f"{where} cannot be read: {error.strerror or error}") from error


def read_checked(folder: Folder, record: FileRecord) -> Iterator[bytes]:
    """A file of a checkpoint in blocks; behind the last one its hash is compared with the manifest's.

    Raises:
        CheckpointCorrupt: it differs.  OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    for block in folder.read(record.name):
        digest.update(block)
        yield block
    if digest.hexdigest() != record.sha256:
        raise CheckpointCorrupt(
            f"{record.name} of checkpoint {folder.name} has SHA-256 {digest.hexdigest()[:16]}..., the manifest says "
            f"{record.sha256[:16]}...: its bytes changed"
        )


def open_checkpoint(folder: Folder, on_block: Callable[[], None] = lambda: None, *, any_name: bool = False) -> Manifest:
    """The manifest of a checkpoint that holds.

    Args:
        folder: of the checkpoint.
        on_block: see `verify`.
        any_name: see `read_manifest`.
    Raises:
        CheckpointCorrupt: it does not.  CheckpointError: it has a newer format.
    """
    manifest = read_manifest(folder, any_name=any_name)
    verify(folder, manifest, on_block)
    return manifest


def find_latest(root: Folder, on_corrupt: Callable[[Folder, str], None]) -> tuple[Folder, Manifest] | None:
    """The checkpoint with the highest (attempt, step) that verifies; None where there is none.

    Every folder passed over on the way is told to `on_corrupt` with the reason, also one that was never finished.

    Raises:
        StorageUnreachable, OSError: the storage does not answer.
    """
    for folder in reversed(checkpoint_folders(root)):
        try:
            manifest = open_checkpoint(folder)
        except StorageUnreachable:
            raise  # it may be as good as ever
        except CheckpointError as error:
            on_corrupt(folder, str(error))
        else:
            return folder, manifest
    return None


def checkpoint_folders(root: Folder) -> list[Folder]:
    """Folders of checkpoints, finished or not, oldest first."""
    return [root / name for name in sorted(filter(_FOLDER.fullmatch, root.folders()), key=key_of)]


def key_of(name: str) -> tuple[int, int]:
    """(attempt, step) of a checkpoint's folder: the order in which they count."""
    attempt, step = name.split("-")
    return int(attempt), int(step)


def _parse(data: dict[str, Any], folder: Folder, where: str, *, any_name: bool) -> Manifest:
    try:
        metrics = {name: float(value) for name, value in data.get("metrics", {}).items()}
        manifest = from_json(Manifest, {**data, "metrics": metrics})
    except (SpecError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{where} does not hold: {error}") from error
    if not any_name and folder.name != folder_name(manifest.attempt, manifest.step):
        raise CheckpointCorrupt(
            f"{where} is that of {folder_name(manifest.attempt, manifest.step)}: the folder was renamed or copied"
        )
    for record in manifest.files:
        if record.name in ("", ".", "..") or "/" in record.name or "\\" in record.name:
            raise CheckpointCorrupt(f"{where} names the file {record.name!r}, which is not a plain name")
    return manifest


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
