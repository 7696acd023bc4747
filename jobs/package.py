"""The user's code on a node: fetched once by its hash, unpacked for each worker."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rubato.errors import PackageError
from rubato.packaging import hash_file, unpack_folder

Fetch = Callable[[str, Path], None]
"""Writes the package of a hash to a path."""


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


def prepare_code(package: str | None, name: str, fetch: Fetch, root: Path | None = None) -> Path:
    """The working folder of a worker: the package unpacked, or an empty folder where the job has none.

    Args:
        package: SHA-256 of the packed folder.
        name: of the worker, unique on the node.
        fetch: gets the package from the service; the unpacker checks its hash.
        root: `scratch_root()`.

    Raises:
        PackageError: the package cannot be had, or does not hold.
    """
    root = root or scratch_root()
    folder = root / "workers" / name
    # One of a supervisor that was killed: its worker is gone, and names are never used twice by living ones.
    shutil.rmtree(folder, ignore_errors=True)
    code = folder / "code"
    if package is None:
        code.mkdir(parents=True)
        return code
    folder.mkdir(parents=True)
    archive = root / "packages" / f"{package}.zip"
    if not archive.is_file() or hash_file(archive) != package:
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


def remove_code(code: Path) -> None:
    """The worker is gone: take its folder away."""
    shutil.rmtree(code.parent, ignore_errors=True)
