"""Folders on storage as the service touches them: in a file system, or in an object store."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from rubato.errors import UserError
from rubato.wire.storage import StorageUri, describe_missing_driver
from service.threads import DOWNLOADS, run_in

REQUEST_BYTES = 4 * 1024 * 1024
"""Of an object in one request: held in memory for each download that is under way."""
MOST_BYTES = 64 * 1024 * 1024
"""Of a manifest or a pin, which are read whole."""


class ObjectFile:
    """A file in an object store."""

    def __init__(self, filesystem: Any, path: str, size: int) -> None:
        self.size = size
        self._filesystem = filesystem
        self._path = path

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its content."""
        for start in range(0, self.size, REQUEST_BYTES):
            stop = min(start + REQUEST_BYTES, self.size)
            yield await run_in(DOWNLOADS, self._filesystem.cat_file, self._path, start=start, end=stop)


def find_stored(root: StorageUri, *parts: str) -> BinaryIO | ObjectFile | None:
    """A file to send, open where it is local; None: there is none, or it is no plain file below the root.

    Raises:
        UserError: the package that speaks to the storage is missing.
    """
    if root.is_local:
        return LocalStored(Path(root.path), *parts[:-1]).find(parts[-1])
    uri = _below(root, parts)
    filesystem = open_store(uri)
    try:
        return ObjectFile(filesystem, uri.path, int(filesystem.size(uri.path)))
    except FileNotFoundError:
        return None


def open_store(uri: StorageUri) -> Any:
    """The client of an object store; made once for each.

    Raises:
        UserError: the package that speaks to it is missing; the message says what to install.
    """
    try:
        import fsspec  # type: ignore[import-untyped]

        return fsspec.filesystem(uri.scheme, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise UserError(describe_missing_driver(uri.scheme, str(error))) from error


class StoredFolder(Protocol):
    """A folder on storage, as far as the service touches it. All of it raises OSError where storage does not answer."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def read(self, name: str) -> bytes:
        """A small file."""

    def write(self, name: str, data: bytes) -> None:
        """A small file; it appears whole."""

    def remove(self, name: str) -> None:
        """Delete a file; none there is fine."""

    def remove_all(self) -> None:
        """Delete the folder and everything in it; none there is fine."""

    def folders(self) -> list[str]:
        """The names of the folders in it; none where it is not there."""

    def which_hold(self, file: str, folders: Sequence[str]) -> dict[str, bool]:
        """Which of some folders in it have a file of that name."""

    def remove_if_empty(self) -> None:
        """Delete the folder where nothing is in it."""


class LocalStored:
    """In a file system, below the root of the storage.

    Programs of jobs write there too, and may leave a link to files of the service in the place of a folder. So folders
    are opened one by one from the root, and what is done is done in the folder that was opened: no link is followed.
    """

    def __init__(self, root: Path, *parts: str) -> None:
        self._root = root
        self._parts = parts

    def exists(self, name: str) -> bool:
        """See `StoredFolder`, also for what follows. A link is no file."""
        try:
            with self._open() as folder:
                return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def read(self, name: str) -> bytes:
        """Where it is a plain file."""
        file = self.find(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no plain file", name)
        with file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(errno.EFBIG, "too large to be what its name says", name)
        return data

    def find(self, name: str) -> BinaryIO | None:
        """A file, open for reading; None: there is none, or it is no plain file."""
        try:
            with self._open() as folder:
                # Without O_NONBLOCK a named pipe would wait for its writer.
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        return None

    def write(self, name: str, data: bytes) -> None:
        """By a temporary file, synced before it gets its name."""
        part = f".{name}.part"
        with self._open() as folder:
            # Whatever lies there by that name (of a write that was cut off, or planted) is not written to.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(part, flags, 0o666, dir_fd=folder), "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def remove(self, name: str) -> None:
        """And sync: what is deleted next counts on it."""
        with contextlib.suppress(FileNotFoundError), self._open() as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def remove_all(self) -> None:
        """As `rm -rf`: also beside another removal of the same folder."""
        *above, name = self._parts
        with contextlib.suppress(FileNotFoundError), LocalStored(self._root, *above)._open() as folder:
            if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                return
            if sys.version_info >= (3, 12):
                shutil.rmtree(name, onexc=_pass_over_missing, dir_fd=folder)
            else:
                shutil.rmtree(name, onerror=lambda what, path, e: _pass_over_missing(what, path, e[1]), dir_fd=folder)

    def folders(self) -> list[str]:
        """In order; links are not followed."""
        try:
            with self._open() as folder, os.scandir(folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def which_hold(self, file: str, folders: Sequence[str]) -> dict[str, bool]:
        """One after the other: each is a look at a folder."""
        return {name: LocalStored(self._root, *self._parts, name).exists(file) for name in folders}

    def remove_if_empty(self) -> None:
        """As `rmdir`."""
        *above, name = self._parts
        with contextlib.suppress(OSError), LocalStored(self._root, *above)._open() as folder:
            os.rmdir(name, dir_fd=folder)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """The folder's descriptor; NotADirectoryError where a part below the root is a link."""
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in self._parts:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""Also a link, and a socket."""


def _pass_over_missing(what: Callable[..., Any], path: str, error: BaseException) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class ObjectStored:
    """In an object store."""

    def __init__(self, filesystem: Any, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    def exists(self, name: str) -> bool:
        """See `StoredFolder`, also for what follows."""
        return bool(self._filesystem.isfile(f"{self._path}/{name}"))

    def read(self, name: str) -> bytes:
        """One object."""
        return bytes(self._filesystem.cat_file(f"{self._path}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        """One object."""
        self._filesystem.pipe_file(f"{self._path}/{name}", data)

    def remove(self, name: str) -> None:
        """One object."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(f"{self._path}/{name}")

    def remove_all(self) -> None:
        """Everything under the prefix."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.rm(self._path, recursive=True)

    def folders(self) -> list[str]:
        """Common prefixes."""
        try:
            entries = self._filesystem.ls(self._path, detail=True)
        except FileNotFoundError:
            return []
        names = (str(entry["name"]) for entry in entries if entry["type"] == "directory")
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def which_hold(self, file: str, folders: Sequence[str]) -> dict[str, bool]:
        """All asked for at the same time, where the client can: hundreds of requests one by one take many seconds."""
        paths = {name: self._filesystem._strip_protocol(f"{self._path}/{name}/{file}") for name in folders}
        found = self._filesystem.cat(list(paths.values()), on_error="return") if paths else {}
        for content in found.values():
            if isinstance(content, Exception) and not isinstance(content, FileNotFoundError):
                raise content
        return {name: isinstance(found.get(path), bytes) for name, path in paths.items()}

    def remove_if_empty(self) -> None:
        """An object store has no empty folders."""


def open_stored(root: StorageUri, *parts: str) -> StoredFolder:
    """A folder on storage; nothing is looked at yet.

    Raises:
        UserError: the package that speaks to it is missing.
    """
    if root.is_local:
        return LocalStored(Path(root.path), *parts)
    uri = _below(root, parts)
    return ObjectStored(open_store(uri), uri.path)


def _below(root: StorageUri, parts: Sequence[str]) -> StorageUri:
    return functools.reduce(StorageUri.__truediv__, parts, root)
