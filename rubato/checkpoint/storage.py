"""Storage as checkpoints need it: folders of files that are there whole or not at all, whatever keeps them.

Two kinds stand behind one seam: `LocalFolder`, a folder that all nodes see (rename, fsync), and `ObjectFolder`,
whatever fsspec speaks to (S3, GCS, Azure, ...). Needs no torch; fsspec is loaded where an object store is named.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from rubato.checkpoint.files import FileRecord, sync_folder, write_file, write_new_file
from rubato.errors import CheckpointError, StorageUnreachable, UserError
from rubato.wire.storage import StorageUri, describe_missing_driver, parse_storage

BLOCK_BYTES = 4 * 2**20
"""One read of a file: large enough for SHA-256's full speed, small enough to stay out of the way."""
REQUEST_BYTES = 16 * 2**20
"""One read of an object: a request costs some ten milliseconds whatever its size."""
PART_BYTES = 2**20
"""One write to an object: its buffer is sent when it holds a part of an upload."""
_PROBE = "rubato-probe"
_PROBE_TEXT = b"Rubato may write here.\n"


class Folder(Protocol):
    """A folder on storage. `str` of it is the path or URI that opens it again.

    Reading raises OSError (FileNotFoundError where there is no such file), and StorageUnreachable where an object store
    does not answer: of an object nothing is known then, while a local file that cannot be read is damaged.
    """

    @property
    def name(self) -> str:
        """The last part of its path."""

    def __truediv__(self, name: str) -> Folder: ...

    def prepare(self) -> None:
        """Make sure that it can be written to, before a run relies on it.

        Raises:
            CheckpointError: it cannot; the message says why.
        """

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileRecord:
        """Write a file; it appears whole, in place of one that was there.

        Raises:
            CheckpointError: the storage refused, for example because it is full.
        """

    def write_new(self, name: str, data: bytes) -> FileRecord | None:
        """Write a small file only where there is none of that name; None: there is one.

        Raises:
            CheckpointError: as for `write`.
        """

    def read(self, name: str) -> Iterator[bytes]:
        """The content of a file, in blocks."""

    def size(self, name: str) -> int:
        """Bytes of a file."""

    def exists(self, name: str) -> bool:
        """Whether there is a file of that name."""

    def folders(self) -> list[str]:
        """Names of the folders in it, in no order; a folder that is not there has none."""

    def remove(self, name: str) -> None:
        """Delete a file, for good; none there is fine."""

    def remove_all(self) -> None:
        """Delete the folder and everything in it."""


def open_folder(uri: StorageUri | str) -> Folder:
    """A folder by its path or URI; nothing is looked at or made yet.

    Raises:
        UserError: it is no storage, or the package that speaks to it is missing; the message says what to do.
    """
    parsed = parse_storage(uri) if isinstance(uri, str) else uri
    return LocalFolder(Path(parsed.path)) if parsed.is_local else ObjectFolder.open(parsed)


class LocalFolder:
    """A folder of this machine's file system, which may be a network's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """See `Folder`, also for what follows."""
        return self.path.name

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> LocalFolder:
        return LocalFolder(self.path / name)

    def prepare(self) -> None:
        """Makes the folder, writes a small file and deletes it: that is how a folder shows that may only be read."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot make the folder {self.path}: {error.strerror or error}") from error
        self.write(_PROBE, [_PROBE_TEXT])
        try:
            self.remove(_PROBE)
        except OSError as error:
            raise CheckpointError(
                f"cannot delete {_PROBE} in {self.path}: {error.strerror or error}; give a storage where this process "
                "may also delete"
            ) from error

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileRecord:
        """By a temporary file that is renamed."""
        return write_file(self.path / name, chunks)

    def write_new(self, name: str, data: bytes) -> FileRecord | None:
        """By a temporary file that gets the name as a second one: `link` fails where the name is taken."""
        return write_new_file(self.path / name, [data])

    def read(self, name: str) -> Iterator[bytes]:
        """In blocks."""
        with (self.path / name).open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                yield block

    def size(self, name: str) -> int:
        """Bytes."""
        return (self.path / name).stat().st_size

    def exists(self, name: str) -> bool:
        """As a file."""
        return (self.path / name).is_file()

    def folders(self) -> list[str]:
        """Not those behind a file's name."""
        return [path.name for path in self.path.iterdir() if path.is_dir()] if self.path.is_dir() else []

    def remove(self, name: str) -> None:
        """And sync: what is deleted next counts on it."""
        (self.path / name).unlink(missing_ok=True)
        sync_folder(self.path)

    def remove_all(self) -> None:
        """As `rm -r`."""
        shutil.rmtree(self.path)


class ObjectFolder:
    """A prefix in an object store.

    An object appears when its upload is complete, and a manifest is put on condition that there is none (on S3 by
    `If-None-Match`). A store that takes no condition is asked before, and read back after: of two that write at the
    same time the last one stays, and the other finds that out.
    """

    def __init__(self, uri: StorageUri, filesystem: Any) -> None:
        self.uri = uri
        self._filesystem = filesystem
        self._root: str = filesystem._strip_protocol(str(uri))
        """As the driver names it: without the host, where it is told that when it is set up."""

    @classmethod
    def open(cls, uri: StorageUri) -> ObjectFolder:
        """With the credentials that the environment gives.

        Raises:
            UserError: the package that speaks to it is missing, or cannot be set up or reach its server.
        """
        try:
            import fsspec  # type: ignore[import-untyped]

            fsspec.get_filesystem_class(uri.scheme)
        except (ImportError, ValueError) as error:
            raise UserError(describe_missing_driver(uri.scheme, str(error))) from error
        try:
            # Listings are not kept: other processes write here. Some drivers want the address's host, and connect here.
            filesystem, _ = fsspec.url_to_fs(str(uri), use_listings_cache=False)
        except Exception as error:  # drivers have trees of their own
            cause = str(error).strip().partition("\n")[0] or type(error).__name__
            raise UserError(
                f"storage {uri} cannot be opened: {cause}; is the address right, its server there, and what its fsspec "
                "package needs installed and set up here?"
            ) from error
        return cls(uri, filesystem)

    @property
    def place(self) -> tuple[Any, str]:
        """The file system of fsspec, and the path in it."""
        return self._filesystem, self._root

    @property
    def name(self) -> str:
        """See `Folder`, also for what follows."""
        return self.uri.name

    def __str__(self) -> str:
        return str(self.uri)

    def __truediv__(self, name: str) -> ObjectFolder:
        return ObjectFolder(self.uri / name, self._filesystem)

    def prepare(self) -> None:
        """Writes a small object and deletes it: that is how a missing bucket or permission shows."""
        with _refusals(_PROBE, self):
            self._filesystem.pipe_file(self._path(_PROBE), _PROBE_TEXT)
            self._filesystem.rm_file(self._path(_PROBE))

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> FileRecord:
        """By an upload in parts, which is given up where anything fails."""
        digest = hashlib.sha256()
        size = 0
        with _refusals(name, self):
            file = self._open_new(name)
            try:
                for chunk in chunks:
                    digest.update(chunk)
                    view = memoryview(chunk).cast("B")
                    for start in range(0, len(view), PART_BYTES):
                        size += file.write(view[start : start + PART_BYTES])
                file.close()  # sends the last part, and makes the object of all of them
            except BaseException:
                _give_up(file)
                raise
        return FileRecord(name, size, digest.hexdigest())

    def _open_new(self, name: str) -> Any:
        try:
            return self._filesystem.open(self._path(name), "wb")
        except FileNotFoundError:  # a store with real folders
            self._filesystem.makedirs(self._root, exist_ok=True)
            return self._filesystem.open(self._path(name), "wb")

    def write_new(self, name: str, data: bytes) -> FileRecord | None:
        """On condition, and read back."""
        with _refusals(name, self):
            try:
                self._filesystem.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return None
            except (NotImplementedError, TypeError, ValueError):
                if self._filesystem.exists(self._path(name)):
                    return None
                self._filesystem.pipe_file(self._path(name), data)
            if self._filesystem.cat_file(self._path(name)) != data:
                return None
        return FileRecord(name, len(data), hashlib.sha256(data).hexdigest())

    def read(self, name: str) -> Iterator[bytes]:
        """By requests for ranges."""
        size, at = self.size(name), 0
        while at < size:
            with _failures():
                block = self._filesystem.cat_file(self._path(name), start=at, end=min(at + REQUEST_BYTES, size))
            if not block:
                return  # it became shorter meanwhile
            yield block
            at += len(block)

    def size(self, name: str) -> int:
        """Bytes."""
        with _failures():
            return int(self._filesystem.size(self._path(name)))

    def exists(self, name: str) -> bool:
        """As an object."""
        with _failures():
            return bool(self._filesystem.isfile(self._path(name)))

    def folders(self) -> list[str]:
        """Common prefixes."""
        with _failures():
            try:
                listed = self._filesystem.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        return [entry["name"].rstrip("/").rpartition("/")[2] for entry in listed if entry["type"] == "directory"]

    def remove(self, name: str) -> None:
        """One object."""
        with _failures(), contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(self._path(name))

    def remove_all(self) -> None:
        """Everything under the prefix."""
        with _failures(), contextlib.suppress(FileNotFoundError):
            self._filesystem.rm(self._root, recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _give_up(file: Any) -> None:
    """Drop what was uploaded so far. Closing would finish the upload, as would the file's destructor."""
    with contextlib.suppress(Exception):
        file.discard()
    file.closed = True


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    """One error for whatever the client of a store raises: they have trees of their own for networks and credentials.

    Raises:
        FileNotFoundError: there is no such object.  StorageUnreachable: anything else.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise StorageUnreachable(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _refusals(name: str, folder: ObjectFolder) -> Iterator[None]:
    """CheckpointError with advice for what fails while writing."""
    try:
        with _failures():
            yield
    except (FileNotFoundError, StorageUnreachable) as error:
        raise CheckpointError(
            f"cannot write {name} in {folder}: {str(error) or type(error).__name__}; does the bucket exist, and may "
            "this process write to it (credentials, AWS_ENDPOINT_URL for another S3 than Amazon's)?"
        ) from error
