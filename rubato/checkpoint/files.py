"""Files that are there whole or not at all, and their hashes. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rubato.errors import CheckpointError

READ_BYTES = 4 * 2**20
"""One read while hashing: large enough for SHA-256's full speed, small enough to stay out of the way."""

TEMPORARY_SUFFIX = ".partial"


@dataclass(frozen=True)
class FileRecord:
    """A file as the manifest names it."""

    name: str
    """Plain name inside the checkpoint's folder."""
    bytes: int
    sha256: str
    """64 hexadecimal digits."""


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write the chunks to `path`: a temporary file, fsync, rename, fsync of the folder. Makes the folder.

    Raises:
        CheckpointError: the storage refused, for example because it is full; nothing is left behind.
    """
    digest = hashlib.sha256()
    size = 0
    # Random, not the process id: two nodes that share the storage may have equal ids and write the same stripe, the one
    # of them for the other that was given up too early.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            for chunk in chunks:
                digest.update(chunk)
                size += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path.name} in {path.parent}: {error.strerror or error}; make room or give a storage "
            "that this process may write to"
        ) from error
    finally:
        # Gone after the rename; there only when something failed, and then it must not count as a file.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return FileRecord(path.name, size, digest.hexdigest())


def sync_folder(folder: Path) -> None:
    """Make renames and deletions inside the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
