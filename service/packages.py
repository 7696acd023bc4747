"""Packed working folders: streamed to disk under caps, verified, looked into but never unpacked."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import stat
import time
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rubato.errors import PackageError
from rubato.wire.zip_directory import lists_too_much
from service.errors import ErrorKind, ServiceError, not_found
from service.threads import HOME_FILES, run_in

MAX_FILES = 10_000
MAX_UNPACKED_BYTES = 500_000_000
MAX_RATIO = 200
"""Unpacked to packed bytes; text packs 10 to 20 times, a bomb thousands of times."""
RATIO_FLOOR_BYTES = 10_000_000
"""Below this nobody minds the ratio."""
OLDEST_UPLOAD_S = 86_400.0
"""No upload is without a byte for so long."""
MAX_NAME_BYTES = 1_000
ASIDE = ".aside-"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DRIVE = re.compile(r"[A-Za-z]:")


@dataclass(frozen=True)
class Upload:
    """A package that is checked and not stored yet."""

    num_bytes: int
    num_files: int
    part: Path
    path: Path

    async def keep(self) -> None:
        """Store it under its hash."""
        await run_in(HOME_FILES, _keep, self.part, self.path)


@dataclass(frozen=True)
class Aside:
    """A package's file that is about to be removed."""

    sha256: str
    file: Path


class PackageStore:
    """Zip files named by their SHA-256."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def path(self, sha256: str) -> Path:
        """Where a package lies; the name is checked, so it cannot lead elsewhere.

        Raises:
            ServiceError: not_found.
        """
        if not _SHA256.fullmatch(sha256):
            raise not_found("package", sha256[:80])
        return self._folder / f"{sha256}.zip"

    @asynccontextmanager
    async def receive(self, sha256: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[Upload]:
        """Take in an upload; it is gone afterwards where nobody kept it.

        Raises:
            ServiceError: package_too_large, package_invalid.
        """
        if not _SHA256.fullmatch(sha256):
            raise ServiceError(
                ErrorKind.PACKAGE_INVALID, "The address must end in the SHA-256 of the zip: 64 hexadecimal digits."
            )
        part = self._folder / f".part-{secrets.token_hex(8)}"
        try:
            size, found = await self._spool(part, chunks)
            if found != sha256:
                raise ServiceError(
                    ErrorKind.PACKAGE_INVALID,
                    f"The bytes hash to {found}, not to the {sha256} of the address; pack and upload again.",
                )
            num_files = await run_in(HOME_FILES, inspect_zip, part, size)
            yield Upload(size, num_files, part, self.path(sha256))
        finally:
            # Shielded: whoever is cut off leaves nothing behind either.
            await asyncio.shield(asyncio.wrap_future(HOME_FILES.submit(part.unlink, missing_ok=True)))

    async def holds(self, sha256: str) -> bool:
        """Whether the file of a package is there.

        Raises:
            ServiceError: not_found (no hash).
        """
        return await run_in(HOME_FILES, self.path(sha256).is_file)

    def put_aside(self, sha256: str) -> Aside | None:
        """Take the file of a package out of the way, under a name that nobody else uses; None: it is not there."""
        aside = Aside(sha256, self._folder / f"{ASIDE}{sha256}-{secrets.token_hex(8)}")
        try:
            self.path(sha256).replace(aside.file)
        except FileNotFoundError:
            return None
        return aside

    def settle(self, aside: Aside, *, is_wanted: bool) -> None:
        """Bring back what was put aside, or remove it; what came to its place meanwhile has the same bytes."""
        with suppress(FileNotFoundError):
            if is_wanted:
                aside.file.replace(self.path(aside.sha256))
            else:
                aside.file.unlink()

    def list_aside(self) -> list[Aside]:
        """What is put aside, by others or before a crash."""
        return [Aside(file.name.removeprefix(ASIDE)[:64], file) for file in self._folder.glob(f"{ASIDE}*")]

    def list_old(self, age_s: float) -> list[str]:
        """Packages whose file was written longer ago than that."""
        before, found = time.time() - age_s, []
        for file in self._folder.glob("*.zip"):
            with suppress(FileNotFoundError):
                if _SHA256.fullmatch(file.stem) and file.stat().st_mtime <= before:
                    found.append(file.stem)
        return found

    def remove_parts(self, silent_s: float) -> None:
        """Clear what interrupted uploads left behind: parts that nobody has written to for so long.

        Called at start, before the first upload of this process; replicas share the folder, and one may receive.
        """
        before = time.time() - silent_s
        for part in self._folder.glob(".part-*"):
            with suppress(FileNotFoundError):
                if part.stat().st_mtime <= before:
                    part.unlink()

    async def _spool(self, part: Path, chunks: AsyncIterator[bytes]) -> tuple[int, str]:
        digest = hashlib.sha256()
        size = 0
        await run_in(HOME_FILES, _begin, part)
        async for chunk in chunks:
            size += len(chunk)
            if size > self._max_bytes:
                raise ServiceError(
                    ErrorKind.PACKAGE_TOO_LARGE,
                    f"A package may have {self._max_bytes} bytes; leave data out with .rubatoignore.",
                )
            digest.update(chunk)
            await run_in(HOME_FILES, _append, part, chunk)
        await run_in(HOME_FILES, _sync, part)
        return size, digest.hexdigest()


def inspect_zip(path: Path, packed_bytes: int) -> int:
    """Check a zip by its directory alone; gives the number of entries.

    The sizes in the directory are the uploader's word: whoever unpacks must count for itself. This check is for the
    early and clear message.

    Raises:
        ServiceError: package_invalid, package_too_large.
    """
    try:
        if lists_too_much(path, MAX_FILES):
            raise _too_large(f"its directory is longer than that of {MAX_FILES} entries, which are allowed")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (PackageError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError) as error:
        raise _invalid(f"it is no readable zip ({error})") from None
    if len(entries) > MAX_FILES:
        raise _too_large(f"it has {len(entries)} entries, and {MAX_FILES} are allowed")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED_BYTES:
        raise _too_large(f"it unpacks to {unpacked} bytes, and {MAX_UNPACKED_BYTES} are allowed")
    if unpacked > RATIO_FLOOR_BYTES and unpacked > MAX_RATIO * max(1, packed_bytes):
        raise _invalid(f"it unpacks to {unpacked // max(1, packed_bytes)} times its size, as only a zip bomb does")
    seen: set[str] = set()
    for entry in entries:
        _check_entry(entry)
        if entry.filename in seen:
            raise _invalid(f"{_shown(entry.filename)} stands in it twice")
        seen.add(entry.filename)
    return len(entries)


def _check_entry(entry: zipfile.ZipInfo) -> None:
    # The raw name as well: zipfile turns backslashes into slashes and cuts at NUL, an unpacker elsewhere may not.
    for name in (entry.filename, entry.orig_filename):
        _check_name(name)
    mode = entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _invalid(f"{_shown(entry.filename)} is a link or a device; only files and folders are allowed")
    if entry.flag_bits & 0x1:
        raise _invalid(f"{_shown(entry.filename)} is encrypted")
    check_method(entry)


def check_method(entry: zipfile.ZipInfo) -> None:
    """Refuse what unpacks without a bound: zipfile gives LZMA and bzip2 as much memory as a packed block asks for.

    Raises:
        ServiceError: package_invalid.
    """
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = f"compressed by method {entry.compress_type}"
        raise _invalid(f"{_shown(entry.filename)} is {method}; use stored or deflated")


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or "\\" in name or _DRIVE.match(name):
        raise _invalid(f"{_shown(name)} is no relative path")
    if ".." in parts:
        raise _invalid(f"{_shown(name)} leads out of the folder by '..'")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise _invalid(f"{_shown(name)} holds control characters")
    if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        raise _invalid(f"{_shown(name)} is longer than {MAX_NAME_BYTES} bytes")


def _begin(part: Path) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _append(part: Path, chunk: bytes) -> None:
    # Opened for each chunk: no descriptor is left where nobody waits for the thread any more.
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), "wb") as stream:
        stream.write(chunk)


def _keep(part: Path, path: Path) -> None:
    part.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else name[:77] + "...")


def _invalid(what: str) -> ServiceError:
    return ServiceError(ErrorKind.PACKAGE_INVALID, f"The package is refused: {what}.")


def _too_large(what: str) -> ServiceError:
    return ServiceError(ErrorKind.PACKAGE_TOO_LARGE, f"The package is too large: {what}; use .rubatoignore.")
