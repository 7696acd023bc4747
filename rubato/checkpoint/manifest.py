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
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rubato.checkpoint.files import FileRecord as FileRecord
from rubato.checkpoint.files import hash_file, sync_folder, write_file
from rubato.errors import CheckpointCorrupt, CheckpointError, SpecError
from rubato.wire.codec import from_json, to_json

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
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
    """Of python, torch, rubato: what else the bits depend on."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Latest values at the step."""
    format_version: int = FORMAT_VERSION


def folder_name(attempt: int, step: int) -> str:
    """Name of a checkpoint's folder under the job's root."""
    return f"{attempt}-{step}"


def commit_manifest(folder: Path, manifest: Manifest) -> FileRecord:
    """Write the manifest, which makes the checkpoint exist. Its files must lie in the folder already.

    Raises:
        CheckpointError: a file is missing or has another size, or the storage refused; no manifest was written.
    """
    for record in manifest.files:
        path = folder / record.name
        if not path.is_file() or path.stat().st_size != record.bytes:
            raise CheckpointError(
                f"checkpoint {folder.name} is not whole: {record.name} is missing or not fully written"
            )
    body = to_json(replace(manifest, metrics={}))
    # JSON has no NaN or infinity, and readers in other languages refuse what Python writes for them.
    body["metrics"] = {name: value if math.isfinite(value) else repr(value) for name, value in manifest.metrics.items()}
    text = json.dumps({_CHECKSUM: _checksum(body), **body}, indent=1)
    record = write_file(folder / MANIFEST_NAME, [text.encode()])
    try:
        sync_folder(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot sync {folder.parent}: {error.strerror or error}") from error
    return record


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest; its files are not looked at.

    Raises:
        CheckpointCorrupt: it is missing, damaged, or of another folder.
        CheckpointError: it has a newer format.
    """
    where = f"{MANIFEST_NAME} of checkpoint {folder.name}"
    try:
        data = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
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
    return _parse(data, folder, where)


def verify(folder: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest: presence, size, SHA-256.

    Raises:
        CheckpointCorrupt: names the first file that differs, and how.
    """
    for record in manifest.files:
        where = f"{record.name} of checkpoint {folder.name}"
        path = folder / record.name
        try:
            size = path.stat().st_size
            if size != record.bytes:
                raise CheckpointCorrupt(f"{where} has {size} bytes, the manifest says {record.bytes}")
            sha256 = hash_file(path)
        except FileNotFoundError as error:
            raise CheckpointCorrupt(f"{where} is missing") from error
        except OSError as error:
            raise CheckpointCorrupt(f"{where} cannot be read: {error.strerror or error}") from error
        if sha256 != record.sha256:
            raise CheckpointCorrupt(
                f"{where} has SHA-256 {sha256[:16]}..., the manifest says {record.sha256[:16]}...: its bytes changed"
            )


def find_latest(root: Path, on_corrupt: Callable[[Path, str], None]) -> tuple[Path, Manifest] | None:
    """The checkpoint with the highest (attempt, step) that verifies; None where there is none.

    Every folder passed over on the way is told to `on_corrupt` with the reason, also one that was never finished.
    """
    for folder in reversed(_folders(root)):
        try:
            manifest = read_manifest(folder)
            verify(folder, manifest)
        except CheckpointError as error:
            on_corrupt(folder, str(error))
        else:
            return folder, manifest
    return None


def prune(root: Path, keep_last: int) -> list[str]:
    """Delete all finished checkpoints but the newest `keep_last`, and what older attempts left unfinished.

    Nothing is deleted unless the newest finished one verifies: until then an older one may be the only way back.

    Returns:
        The names of the deleted folders.
    """
    if keep_last < 1:
        raise ValueError(f"keep_last must be at least 1, got {keep_last}")
    folders = _folders(root)
    finished = [folder for folder in folders if (folder / MANIFEST_NAME).is_file()]
    if not finished:
        return []
    newest = finished[-1]
    try:
        verify(newest, read_manifest(newest))
    except CheckpointError:
        return []
    attempt, _ = _key(newest)
    unfinished = [folder for folder in folders if folder not in finished and _key(folder)[0] < attempt]
    removed = []
    for folder in finished[:-keep_last] + unfinished:
        try:
            # Manifest first: a crash halfway leaves an unfinished checkpoint, not a corrupt one.
            (folder / MANIFEST_NAME).unlink(missing_ok=True)
            sync_folder(folder)
            shutil.rmtree(folder)
        except OSError:
            continue  # storage hiccup: the next pruning tries again
        removed.append(folder.name)
    return removed


def _parse(data: dict[str, Any], folder: Path, where: str) -> Manifest:
    try:
        metrics = {name: float(value) for name, value in data.get("metrics", {}).items()}
        manifest = from_json(Manifest, {**data, "metrics": metrics})
    except (SpecError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointCorrupt(f"{where} does not hold: {error}") from error
    if folder.name != folder_name(manifest.attempt, manifest.step):
        raise CheckpointCorrupt(
            f"{where} is that of {folder_name(manifest.attempt, manifest.step)}: the folder was renamed or copied"
        )
    for record in manifest.files:
        if record.name in ("", ".", "..") or "/" in record.name or "\\" in record.name:
            raise CheckpointCorrupt(f"{where} names the file {record.name!r}, which is not a plain name")
    return manifest


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _key(folder: Path) -> tuple[int, int]:
    attempt, step = folder.name.split("-")
    return int(attempt), int(step)


def _folders(root: Path) -> list[Path]:
    """Checkpoint folders, finished or not, oldest first."""
    if not root.is_dir():
        return []
    return sorted((path for path in root.iterdir() if _FOLDER.fullmatch(path.name) and path.is_dir()), key=_key)
