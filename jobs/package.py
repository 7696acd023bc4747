"""The user's code on a node: fetched once by its hash, unpacked for each worker, and swept when nobody needs it.

A worker's folder belongs to whoever holds the lock beside it, and the kernel frees that when the supervisor's process
ends, however it does. So what lies beside a free lock is nobody's, and the next worker of the node takes it away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rubato.errors import PackageError
from rubato.packaging import unpack_folder

Fetch = Callable[[str, Path], None]
"""Writes the package of a hash to a path."""
PACKAGE_KEPT_S = 7 * 86400.0
"""After its last use: the workers of a job that comes again tomorrow need not fetch it."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""A file system that knows none."""


def scratch_root() -> Path:
    """Where workers of this node keep code: beneath the temporary folder, for this user only.

    Raises:
        PackageError: somebody else owns the folder.
    """
    root = Path(tempfile.gettempdir()) / f"rubato-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    status = root.lstat()
    if status.st_uid != os.getuid() or not root.is_dir() or root.is_symlink():
        raise PackageError(f"{root} belongs to another user; remove it, or set TMPDIR")
    return root


class WorkerFolder:
    """The folder of one worker, held from here on until it is removed or this process ends.

    Args:
        name: of the worker, unique on the node.
        root: `scratch_root()`.

    Raises:
        PackageError: somebody else owns the root.  OSError: it cannot be made.
    """

    def __init__(self, name: str, root: Path | None = None) -> None:
        self._root = root or scratch_root()
        self._folder = self._root / "workers" / name
        self._folder.parent.mkdir(exist_ok=True)
        try:
            self._lock = _take_lock(_lock_of(self._folder), waits=True)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self._lock = None
            _lock_of(self._folder).unlink(missing_ok=True)  # without it nobody takes the folder away

    def prepare(self, package: str | None, fetch: Fetch) -> Path:
        """The working folder: the package unpacked, or an empty folder where the job has none.

        Args:
            package: SHA-256 of the packed folder.
            fetch: gets the package from the service; the unpacker checks its hash.

        Raises:
            PackageError: the package cannot be had, or does not hold.
        """
        # Of a try before this one, or of a supervisor that was killed: names are never used twice by living ones.
        shutil.rmtree(self._folder, ignore_errors=True)
        code = self._folder / "code"
        if package is None:
            code.mkdir(parents=True)
            return code
        archive = self._root / "packages" / f"{package}.zip"
        # Not there, just swept, or damaged: it is fetched.
        with contextlib.suppress(FileNotFoundError, PackageError):
            os.utime(archive)
            unpack_folder(archive, code, sha256=package)
            return code
        archive.parent.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=archive.parent)
        os.close(descriptor)
        try:
            fetch(package, Path(temporary))
            Path(temporary).replace(archive)
        finally:
            Path(temporary).unlink(missing_ok=True)
        unpack_folder(archive, code, sha256=package)
        return code

    def remove(self) -> None:
        """The worker is gone: take its folder away."""
        lock, self._lock = self._lock, None
        if lock is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            _remove(self._folder, lock)

    def sweep(self) -> None:
        """Take away the folders of workers whose supervisors ended without it, and packages not used for long."""
        for lock in self._root.glob("workers/*.lock"):
            with contextlib.suppress(OSError):
                if (descriptor := _take_lock(lock, waits=False)) is not None:
                    _remove(lock.with_suffix(""), descriptor)
        for package in self._root.glob("packages/*"):
            with contextlib.suppress(OSError):
                if time.time() - package.stat().st_mtime > PACKAGE_KEPT_S:
                    package.unlink()


def _lock_of(folder: Path) -> Path:
    """Beside it: the folder is removed while it is held."""
    return folder.with_name(f"{folder.name}.lock")


def _take_lock(path: Path, *, waits: bool) -> int | None:
    """Lock a file, which is made if need be; its descriptor, which holds the lock, or None where somebody else does."""
    while True:
        with contextlib.ExitStack() as held:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            # Who held it before may have removed it: then the name is free, or another file's.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    held.pop_all()
                    return descriptor


def _remove(folder: Path, lock: int) -> None:
    """Remove a folder whose lock is held, then the lock; it stays where something of the folder does."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not folder.exists():
            _lock_of(folder).unlink(missing_ok=True)
    os.close(lock)
