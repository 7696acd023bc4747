"""Files that are there whole or not at all. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rubato.errors import CheckpointError

TEMPORARY_SUFFIX = ".partial"

_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What file systems without hard links answer (FAT, some network and FUSE ones)."""
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What file systems answer that cannot sync a folder: they keep names in another way, or not at all."""


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
    with _temporary(path, chunks) as (temporary, record):
        temporary.replace(path)
        sync_folder(path.parent)
    return record


def write_new_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileRecord | None:
    """The same, only where there is no such file yet; None: there is one. Of several at once one writes.

    Raises:
        CheckpointError: as for `write_file`.
    """
    with _temporary(path, chunks) as (temporary, record):
        try:
            os.link(temporary, path)
        except FileExistsError:
            return None
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if path.exists():
                return None
            temporary.replace(path)
        sync_folder(path.parent)
        # It may be new, and the job's folder above it. The file is there by now, and a folder further up may be one
        # that this process may pass through and not open.
        for folder in path.parent.parents[:2]:
            with contextlib.suppress(OSError):
                sync_folder(folder)
    return record


@contextlib.contextmanager
def _temporary(path: Path, chunks: Iterable[bytes | memoryview]) -> Iterator[tuple[Path, FileRecord]]:
    """A file beside `path` with this content, on disk; gone afterwards unless it was renamed."""
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
        yield temporary, FileRecord(path.name, size, digest.hexdigest())
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path.name} in {path.parent}: {error.strerror or error}; make room or give a storage "
            "that this process may write to"
        ) from error
    finally:
        # Gone after the rename; there only when something failed, and then it must not count as a file.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames and deletions inside the folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
