"""Where checkpoints lie: a folder that all nodes see, or an object store. A URI that all processes understand."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rubato.errors import UserError

MANIFEST_NAME = "manifest.json"
"""The file that makes a folder a checkpoint; written last, and removed first."""
PIN_NAME = "pinned"
"""A file of this name in a checkpoint's folder keeps it for ever."""
PIN_TEXT = b"Kept until this file is deleted.\n"
EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Which of our extras speaks a scheme; others name their fsspec package themselves."""

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_ADVICE = (
    "write a folder (/shared/rubato), file:///shared/rubato, or the address of an object store (s3://BUCKET/PREFIX)"
)
_READ_ONLY = ("http", "https", "data", "github", "git", "zip", "tar")


@dataclass(frozen=True)
class StorageUri:
    """A folder on storage."""

    scheme: str
    """`file`, or a scheme that fsspec knows."""
    path: str
    """Of a local folder: its path, absolute or relative. Else all that follows `://`, such as `BUCKET/PREFIX`."""

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine's file system."""
        return self.scheme == "file"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def __truediv__(self, name: str) -> StorageUri:
        return replace(self, path=f"{self.path.rstrip('/')}/{name}")

    def absolute(self) -> StorageUri:
        """The same, with the working folder before a relative path, and the home for `~`."""
        return replace(self, path=str(Path(self.path).expanduser().absolute())) if self.is_local else self

    def __str__(self) -> str:
        return self.path if self.is_local else f"{self.scheme}://{self.path}"


def parse_storage(text: str) -> StorageUri:
    """Read a path or URI; that it can be reached is not looked at.

    Raises:
        UserError: it is neither; the message says what to write.
    """
    match = _SCHEME.fullmatch(text)
    if match is None:
        if not text.strip() or "://" in text:
            raise UserError(f"{text!r} is no storage: {_ADVICE}")
        return StorageUri("file", text)
    scheme, rest = match[1], match[2]
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost") or len(parts.path) < 2:
            raise UserError(f"{text!r} names no folder of this machine: write file:///ABSOLUTE/FOLDER, three slashes")
        return StorageUri("file", unquote(parts.path).rstrip("/"))
    if scheme in _READ_ONLY:
        raise UserError(f"{text!r} cannot be written to: {_ADVICE}")
    bucket = rest.split("/", 1)[0]
    if "@" in bucket:
        # The address is shown in logs, events and replies.
        raise UserError(
            f"the storage {scheme}://... carries credentials: leave them out and give them by the environment "
            "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3) or the machine's role"
        )
    if not bucket and scheme != "memory":
        raise UserError(f"{text!r} names no bucket: write {scheme}://BUCKET/PREFIX")
    return StorageUri(scheme, rest.strip("/") if scheme != "memory" else "/" + rest.strip("/"))


def describe_missing_driver(scheme: str, cause: str) -> str:
    """What to do where the package that speaks a scheme is not there."""
    extra = EXTRAS.get(scheme)
    if extra is not None:
        advice = f"pip install '.[{extra}]' in the checkout of Rubato"
        return f"storage {scheme}:// needs a package that is not installed here: {advice}"
    return f"storage {scheme}:// cannot be used here ({cause}); install its fsspec package, or {_ADVICE}"
