"""Remote files behind two caches: this process's memory, and a folder on the node's disk that all processes share.

    folder/ab/KEY/SHA256        the bytes of one file, as they are; KEY is the hash of its URL, SHA256 that of its bytes
    folder/.rubato-fetch-*      one that is being fetched
    folder/.rubato-lock         held while somebody makes room

Nobody else names files so, and nothing of any other name is counted, changed or deleted: the folder may hold more.

An entry appears whole, by a rename, and says by its name what its bytes must be: what was cut off by a crash or changed
by the disk is found when it is read, and fetched again. Nothing is lost when the folder is, or when it is full.
(fsspec's own caches neither bound their size nor check what they read.)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import tempfile
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from rubato.errors import ModelError
from rubato.wire.units import parse_size_bytes

Opener = Callable[[str], BinaryIO]

_CHUNK_BYTES = 1 << 20
_SLACK = 16
"""Room is made after each 1/16 of the bound that a process has written, down to 15/16: so the folder is looked through
rarely, and grows beyond its bound by no more than a sixteenth for each process."""
_LOCK_WAIT_S = 1.0
"""Who makes room does not see what comes meanwhile, so the others wait for it; not for one that is stopped."""
_ABANDONED_S = 3600.0
"""A fetch that takes longer has lost its process."""
_FETCH = ".rubato-fetch-"
_FETCH_NAME = re.compile(re.escape(_FETCH) + "[a-z0-9_]{8}")
_HASH = re.compile("[0-9a-f]{64}")


@dataclass
class CacheCounts:
    """Where reads were served from, in this process."""

    memory: int = 0
    disk: int = 0
    remote: int = 0
    corrupt: int = 0
    """Entries on disk whose bytes were not what their name says; each was fetched again."""


class CachedFiles:
    """Files by URL, read through memory and disk. Safe to use from several threads and processes, and to pickle.

    files = rubato.data.CachedFiles("/var/tmp/images", disk="20GiB", memory="256MiB")
    image = decode(files.read("s3://bucket/0001.jpg"))

    The least recently used go first, on both levels. A URL is taken to mean the same bytes for ever.

    Args:
        folder: on a disk of this node; made where it is missing. All processes of the node may share it.
        disk: bytes on disk, or a size such as `20GiB`.
        memory: bytes in memory, of each process.
        opener: opens a URL for reading; default: fsspec's (https, s3, gs, ...), without its own caches.
    Raises:
        ModelError: a size that is none.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        disk: int | str = "10GiB",
        memory: int | str = "64MiB",
        opener: Opener | None = None,
    ) -> None:
        try:
            self.disk_bytes, self.memory_bytes = parse_size_bytes(disk), parse_size_bytes(memory)
        except ValueError as error:
            raise ModelError(f"CachedFiles: {error}") from error
        self.folder = Path(folder).absolute()
        self._opener = opener or _open_by_fsspec
        self._clear()

    def _clear(self) -> None:
        self.counts = CacheCounts()
        self._lock = threading.Lock()
        self._memory: OrderedDict[str, bytes] = OrderedDict()
        self._in_memory = 0
        self._written: int | None = None
        """Since room was made last; None: never yet."""
        self._is_warned = False

    def __getstate__(self) -> dict[str, Any]:
        """What memory holds stays here."""
        return {name: getattr(self, name) for name in ("folder", "disk_bytes", "memory_bytes", "_opener")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._clear()

    def read(self, url: str) -> bytes:
        """The bytes of a file.

        Raises:  whatever the opener raises, where the file is in no cache.
        """
        with self._lock:
            data = self._memory.get(url)
            if data is not None:
                self._memory.move_to_end(url)
                self.counts.memory += 1
                return data
        with self.open(url) as file:
            data = file.read()
        self._remember(url, data)
        return data

    def open(self, url: str) -> BinaryIO:
        """A file of this node's disk with the bytes, open for reading; what is too large for memory is read so.

        Raises:  as `read`.
        """
        found = self._find(url)
        if found is not None:
            self.counts.disk += 1
            return found
        self.counts.remote += 1
        return self._fetch(url)

    # --- disk ---------------------------------------------------------------------------------------------------------

    def _entry(self, url: str) -> Path:
        key = hashlib.sha256(url.encode()).hexdigest()
        return self.folder / key[:2] / key

    def _find(self, url: str) -> BinaryIO | None:
        """The entry, if its bytes are what its name says."""
        try:
            path = next(path for path in self._entry(url).iterdir() if _HASH.fullmatch(path.name))
            file = path.open("rb")
        except (OSError, StopIteration):
            return None
        try:
            is_whole = hashlib.file_digest(file, "sha256").hexdigest() == path.name
        except OSError:  # the disk cannot read it
            is_whole = False
        if not is_whole:
            file.close()
            self.counts.corrupt += 1
            _remove_entry(path)
            return None
        with contextlib.suppress(OSError):  # removed meanwhile, to make room
            os.utime(path)  # it was used last
        file.seek(0)
        return file

    def _fetch(self, url: str) -> BinaryIO:
        """Fetch a file into the folder; into memory, where the folder cannot take it."""
        try:
            with contextlib.closing(self._opener(url)) as remote:
                return self._fetch_to_disk(url, remote)
        except _CannotWrite as error:
            if not self._is_warned:
                self._is_warned = True
                warnings.warn(f"the cache in {self.folder} cannot be written: {error}; it is left out", stacklevel=4)
        with contextlib.closing(self._opener(url)) as remote:
            return io.BytesIO(remote.read())

    def _fetch_to_disk(self, url: str, remote: BinaryIO) -> BinaryIO:
        with _writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_FETCH, dir=self.folder)
            local: BinaryIO = os.fdopen(handle, "w+b")
        try:
            digest = hashlib.sha256()
            while chunk := remote.read(_CHUNK_BYTES):
                digest.update(chunk)
                with _writing():
                    local.write(chunk)
            with _writing():
                local.flush()
                size = local.tell()
                if size <= self.disk_bytes:
                    entry = self._entry(url)
                    entry.mkdir(parents=True, exist_ok=True)
                    Path(name).replace(entry / digest.hexdigest())
        except BaseException:
            with contextlib.suppress(OSError):  # it writes once more what the disk has not taken
                local.close()
            raise
        finally:
            with contextlib.suppress(OSError):  # renamed, or the disk takes nothing any more
                Path(name).unlink()
        self._make_room_after(size)
        local.seek(0)
        return local

    def _make_room_after(self, size: int) -> None:
        with self._lock:
            written = self._written
            is_due = written is None or (written + size) * _SLACK > self.disk_bytes
            self._written = 0 if is_due else (written or 0) + size
        if is_due and not self._make_room():
            with self._lock:
                self._written = (self._written or 0) + (written or 0) + size  # it is due again after the next fetch

    def _make_room(self) -> bool:
        """Remove the least recently used. Returns False where another process is at it, and has been for long."""
        with contextlib.suppress(OSError), (self.folder / ".rubato-lock").open("w") as lock:
            if not _is_taken_within(_LOCK_WAIT_S, lock):
                return False
            entries = sorted(self._entries())
            total = sum(size for _, size, _ in entries)
            allowed = self.disk_bytes - self.disk_bytes // _SLACK
            for _, size, path in entries:
                if total <= allowed:
                    break
                _remove_entry(path)
                total -= size
            for fetch in self.folder.iterdir():
                if _FETCH_NAME.fullmatch(fetch.name) and time.time() - fetch.stat().st_mtime > _ABANDONED_S:
                    fetch.unlink(missing_ok=True)
        return True

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, size, path) of all entries that are there."""
        for path in self.folder.glob("??/*/*"):
            if _is_entry(path):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    yield status.st_mtime, status.st_size, path

    # --- memory -------------------------------------------------------------------------------------------------------

    def _remember(self, url: str, data: bytes) -> None:
        if len(data) > self.memory_bytes:
            return
        with self._lock:
            if url not in self._memory:
                self._in_memory += len(data)
            self._memory[url] = data
            self._memory.move_to_end(url)
            while self._in_memory > self.memory_bytes:
                _, dropped = self._memory.popitem(last=False)
                self._in_memory -= len(dropped)


class _CannotWrite(Exception):
    """The folder takes nothing."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Tells errors of the folder from those of the remote side."""
    try:
        yield
    except OSError as error:
        raise _CannotWrite(f"{error.strerror or error}") from error


def _is_taken_within(seconds: float, lock: IO[str]) -> bool:
    """Take the lock of a file, or see that somebody else keeps it."""
    give_up_at = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.005)
        else:
            return True


def _is_entry(path: Path) -> bool:
    """Whether the cache alone can have named it so: two hashes, below the first two digits of the first one."""
    key = path.parent
    return bool(_HASH.fullmatch(path.name) and _HASH.fullmatch(key.name)) and key.parent.name == key.name[:2]


def _remove_entry(path: Path) -> None:
    with contextlib.suppress(OSError):  # somebody else did, or begins a new one in the folder
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _open_by_fsspec(url: str) -> BinaryIO:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        raise ModelError("reading URLs needs fsspec (pip install fsspec), or CachedFiles(opener=...)") from error
    file: BinaryIO = fsspec.open(url, "rb").open()
    return file
