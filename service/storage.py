"""Files of checkpoints, where the settings say that they lie: opened for downloads, never written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rubato.errors import UserError
from rubato.wire.storage import StorageUri, describe_missing_driver

REQUEST_BYTES = 4 * 1024 * 1024
"""Of an object in one request: held in memory for each download that is under way."""


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
            yield await asyncio.to_thread(self._filesystem.cat_file, self._path, start=start, end=stop)


def find_stored(uri: StorageUri) -> Path | ObjectFile | None:
    """A file to send; None: there is none, or it is no plain file.

    Raises:
        UserError: the package that speaks to the storage is missing.
    """
    if uri.is_local:
        path = Path(uri.path)
        return path if path.is_file() and not path.is_symlink() else None
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
