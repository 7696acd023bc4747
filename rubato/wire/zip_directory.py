"""How long the directory of a zip may be, looked at before it is read. For all who open packages."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from rubato.errors import PackageError

_END_RECORD = struct.Struct("<4s4H2LH")
_ENTRY_MARK, _END_MARK, _ZIP64_MARK = b"PK\1\2", b"PK\5\6", b"PK\6\7"
_ZIP64_LOCATOR_BYTES = 20
_LONGEST_COMMENT_BYTES = 1 << 16  # One more than there can be: so far back zipfile looks.
_CENTRAL_ENTRY_BYTES = 1024  # A central directory entry is 46 bytes, the name, and a little more.


def lists_too_much(package: Path, max_files: int) -> bool:
    """Whether a zip's directory is longer than any of so many files; then it must not be opened.

    `zipfile` reads all of the directory at once, and makes ten times its bytes of it in memory.

    Raises:
        PackageError: it is no zip.
    """
    with package.open("rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - _LONGEST_COMMENT_BYTES - _END_RECORD.size - _ZIP64_LOCATOR_BYTES))
        tail = file.read()
        at = tail.rfind(_END_MARK)
        if at < 0 or len(tail) - at < _END_RECORD.size:
            raise PackageError("the package is no zip")
        _, _, _, _, count, directory_bytes, _, _ = _END_RECORD.unpack_from(tail, at)
        # zip64 is for packages beyond the limits only. It is announced by 0xFFFF and 0xFFFFFFFF here, but zipfile goes
        # by its record wherever there is one.
        has_zip64 = tail[max(0, at - _ZIP64_LOCATOR_BYTES) : at].startswith(_ZIP64_MARK)
        if has_zip64 or count > max_files * 2 or directory_bytes > max_files * _CENTRAL_ENTRY_BYTES:
            return True
        # The count is the packer's word, and zipfile goes by the bytes.
        file.seek(max(0, length - len(tail) + at - directory_bytes))
        return file.read(directory_bytes).count(_ENTRY_MARK) > max_files * 2
