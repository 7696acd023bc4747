"""The file of a backup: a plain tar. Its last member, the manifest, names every other with size and SHA-256.

A backup that was cut off has no manifest, and so is none. It appears under its name only once it is whole and synced.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, Literal, Self

from rubato.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
BLOCK_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 256 << 20

Progress = Callable[[str, int, int], None]
"""What is done, and how many bytes of how many."""
DatabaseKind = Literal["sqlite", "postgresql"]


class BackupError(UserError):
    """A backup cannot be made, is damaged, or does not fit where it is to go; the message says what to do."""


@dataclass(frozen=True)
class Member:
    """One file of a backup."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a backup says of itself."""

    created_at: str
    """RFC 3339, UTC: the moment of the database's snapshot."""
    database: DatabaseKind
    revision: str
    """The migration that the database had."""
    storage: str
    """Where the checkpoints lay, which are not in the backup."""
    num_jobs: int
    members: tuple[Member, ...]
    format: int = FORMAT

    @property
    def total_bytes(self) -> int:
        """Of all members."""
        return sum(member.bytes for member in self.members)


class ArchiveWriter:
    """Writes a backup beside its final name; `commit` gives it the name. One writer a name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.part")
        self._members: list[Member] = []

    def __enter__(self) -> Self:
        if self._path.exists():
            raise BackupError(f"{self._path} exists; a backup never replaces another: give a new name, or remove it.")
        try:
            descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BackupError(f"{self._path} cannot be written: {error.strerror}.") from error
        self._stream: IO[bytes] = os.fdopen(descriptor, "r+b")
        try:
            # Ends with the process: what a killed backup left is taken over here, never a living one's.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._stream.close()
            raise BackupError(f"another backup is being written to {self._path}.") from None
        self._stream.truncate(0)
        self._tar = tarfile.open(fileobj=self._stream, mode="w")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._part.unlink(missing_ok=True)

    def add_bytes(self, name: str, data: bytes) -> Member:
        """A member from memory."""
        return self._add(name, io.BytesIO(data), len(data))

    def add_file(self, name: str, path: Path, size: int | None = None) -> Member:
        """A member from a file, or from its first bytes where it may still grow.

        Raises:
            FileNotFoundError: it is not there (any more).
            BackupError: it is shorter than that.
        """
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size if size is None else size
            return self._add(name, stream, size)

    def commit(self, **facts: Any) -> Manifest:
        """Write the manifest, sync, and give the file its name.

        Args:
            facts: the fields of `Manifest` but its members.
        """
        manifest = Manifest(members=tuple(self._members), **facts)
        content = json.dumps(asdict(manifest), sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()
        self.add_bytes(MANIFEST, json.dumps({"sha256": digest, "content": content}).encode())
        self._tar.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        if self._path.exists():
            raise BackupError(f"{self._path} came to be meanwhile; give another name.")
        self._part.rename(self._path)
        sync_folder(self._path.parent)
        return manifest

    def _add(self, name: str, stream: IO[bytes], size: int) -> Member:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        reader = _Hashing(stream, size)
        try:
            self._tar.addfile(entry, reader)
        except OSError as error:
            if reader.left and not error.errno:
                raise BackupError(
                    f"{name} has {reader.left} bytes less than it should; it was cut meanwhile."
                ) from None
            raise BackupError(f"the backup cannot be written: {error.strerror or error}.") from error
        member = Member(name, size, reader.hexdigest())
        self._members.append(member)
        return member


class ArchiveReader:
    """Reads a backup; nothing in it is believed before its hash was compared."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with ExitStack() as on_error:
            try:
                self._tar = on_error.enter_context(tarfile.open(path, mode="r:"))
                self._entries = {entry.name: entry for entry in self._tar.getmembers()}
            except (OSError, tarfile.TarError) as error:
                raise BackupError(f"{path} cannot be read as a backup: {error}.") from error
            self.manifest = self._read_manifest()
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tar.close()

    def unpack(self, folder: Path, tell: Progress) -> None:
        """Write all members below a folder, compare their hashes, and sync them.

        Raises:
            BackupError: damaged, or it cannot be written.
        """
        done, total = 0, self.manifest.total_bytes
        for member in self.manifest.members:
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            digest = hashlib.sha256()
            try:
                descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "wb") as output, self._open(member) as stream:
                    while block := stream.read(BLOCK_BYTES):
                        digest.update(block)
                        output.write(block)
                        done += len(block)
                        tell("checking and unpacking", done, total)
                    output.flush()
                    os.fsync(output.fileno())
            except (OSError, tarfile.TarError) as error:
                raise BackupError(f"{member.name} of {self._path} cannot be unpacked: {error}.") from error
            if digest.hexdigest() != member.sha256:
                raise self._damaged(f"the hash of {member.name} does not hold")

    def read(self, name: str) -> bytes:
        """A small member, its hash compared; empty where there is none."""
        member = next((one for one in self.manifest.members if one.name == name), None)
        if member is None:
            return b""
        with self._open(member) as stream:
            data = stream.read()
        if hashlib.sha256(data).hexdigest() != member.sha256:
            raise self._damaged(f"the hash of {name} does not hold")
        return data

    def _open(self, member: Member) -> IO[bytes]:
        entry = self._entries.get(member.name)
        stream = self._tar.extractfile(entry) if entry is not None and entry.isreg() else None
        if entry is None or stream is None or entry.size != member.bytes:
            raise self._damaged(f"{member.name} is missing, or has another size")
        return stream

    def _read_manifest(self) -> Manifest:
        entry = self._entries.pop(MANIFEST, None)
        stream = self._tar.extractfile(entry) if entry is not None and entry.size <= MAX_MANIFEST_BYTES else None
        if stream is None:
            raise BackupError(f"{self._path} ends without a manifest: it is no backup, or a part of one.")
        try:
            outer = json.loads(stream.read())
            content = outer["content"]
            if hashlib.sha256(content.encode()).hexdigest() != outer["sha256"]:
                raise self._damaged("the hash of its manifest does not hold")
            data = json.loads(content)
            if data["format"] != FORMAT:
                raise BackupError(f"{self._path} has format {data['format']}; this release reads format {FORMAT}.")
            data["members"] = tuple(Member(**member) for member in data["members"])
            manifest = Manifest(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged("its manifest cannot be read") from error
        for member in manifest.members:
            # Names become paths below the staging folder.
            parts = PurePosixPath(member.name).parts
            if not parts or PurePosixPath(member.name).is_absolute() or ".." in parts:
                raise self._damaged(f"the name {member.name!r} leads elsewhere")
        return manifest

    def _damaged(self, what: str) -> BackupError:
        return BackupError(f"{self._path} is damaged: {what}. Use another copy.")


class _Hashing:
    """The first bytes of a stream, hashed as they are read."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._digest = hashlib.sha256()
        self.left = size

    def read(self, count: int = -1) -> bytes:
        """Up to so many of the bytes that are left."""
        block = self._stream.read(self.left if count < 0 else min(count, self.left))
        self.left -= len(block)
        self._digest.update(block)
        return block

    def hexdigest(self) -> str:
        """Of what was read."""
        return self._digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
