"""A working folder as one zip: packed the same way every time, and unpacked by a reader that trusts nothing.

Packing is deterministic (sorted names, one date, two modes): the same folder has the same SHA-256 and is uploaded once.
Unpacking accepts regular files and folders with plain relative names only, counts the bytes it really writes, and puts
the folder in place in one stroke: there is never half a package under the target's name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rubato.errors import PackageError
from rubato.wire.storage import MANIFEST_NAME
from rubato.wire.zip_directory import lists_too_much

IGNORE_FILE = ".rubatoignore"
DEFAULT_IGNORES = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.py[cod]",
    ".venv/",
    "venv/",
    "node_modules/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".ipynb_checkpoints/",
    ".DS_Store",
    # Secrets that people keep beside their code; `!.env` in .rubatoignore packs it all the same.
    ".env",
)
_DATE = (1980, 1, 1, 0, 0, 0)  # The earliest that zip can say.
_CHUNK_BYTES = 1 << 20
_CHECKPOINT = re.compile(r"\d+-\d+")


@dataclass(frozen=True)
class PackageLimits:
    """What a package may hold. The service refuses larger uploads; the unpacker checks the bytes themselves."""

    packed_bytes: int = 50 * 1000 * 1000
    unpacked_bytes: int = 500 * 1000 * 1000
    files: int = 10_000
    ratio: int = 200
    """Unpacked bytes for one packed byte of a file, beyond its first MB: more is a bomb, no source code."""
    name_bytes: int = 512


DEFAULT_LIMITS = PackageLimits()


@dataclass(frozen=True)
class PackedFolder:
    """A package on disk, content-addressed."""

    path: Path
    sha256: str
    packed_bytes: int
    unpacked_bytes: int
    files: int
    checkpoints: int = 0
    """That lay in the folder, and were left out."""


# --- pack -------------------------------------------------------------------------------------------------------------


def pack_folder(folder: Path, target: Path, *, limits: PackageLimits = DEFAULT_LIMITS) -> PackedFolder:
    """Pack `folder` into the zip `target`, without checkpoints and what `.rubatoignore` and the built-in list name.

    Raises:
        PackageError: the folder holds a link or a special file, or more than the limits allow, or cannot be read; or
            the disk of `target` takes no more.
    """
    if not folder.is_dir():
        raise PackageError(f"{folder} is no folder")
    rules = read_ignore_rules(folder)
    unpacked = 0
    count = 0
    left_out: list[Path] = []
    with _writing(target), zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, path in _walk(folder, "", rules, left_out):
            count += 1
            if count > limits.files:
                raise PackageError(f"{folder} holds more than {limits.files:,} files; {_name_advice()}")
            unpacked += _pack_file(archive, name, path, limits.unpacked_bytes - unpacked)
    packed = target.stat().st_size
    if packed > limits.packed_bytes:
        raise PackageError(
            f"{folder} packs to {_size(packed)}, more than the {_size(limits.packed_bytes)} that a package may have; "
            f"{_name_advice()}"
        )
    if count == 0:
        raise PackageError(f"{folder} holds no file to pack (everything is ignored, or it is empty)")
    return PackedFolder(target, hash_file(target), packed, unpacked, count, len(left_out))


def _pack_file(archive: zipfile.ZipFile, name: str, path: Path, room_bytes: int) -> int:
    """Add one file; returns its size."""
    size = 0
    with _reading(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as source:
        mode = 0o755 if os.fstat(descriptor).st_mode & 0o100 else 0o644
        entry = zipfile.ZipInfo(name, _DATE)
        entry.create_system = 3  # Unix, wherever it is packed.
        entry.external_attr = (stat.S_IFREG | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        with archive.open(entry, "w") as sink:
            while chunk := _read_chunk(source, path):
                size += len(chunk)
                if size > room_bytes:
                    raise PackageError(f"the working folder is too large (at {name}); {_name_advice()}")
                sink.write(chunk)
    return size


def _read_chunk(source: BinaryIO, path: Path) -> bytes:
    with _reading(path):
        return source.read(_CHUNK_BYTES)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tells errors of what is packed from those of the disk that the package is written to."""
    try:
        yield
    except OSError as error:
        raise PackageError(f"cannot read {path}: {error.strerror}; mend it, or {_name_advice()}") from error


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PackageError(
            f"cannot write the package in {target.parent}: {error.strerror}; make room there, or name another folder "
            "by TMPDIR"
        ) from error


def _walk(folder: Path, prefix: str, rules: tuple[IgnoreRule, ...], left_out: list[Path]) -> Iterator[tuple[str, Path]]:
    """The files to pack, as (name, path), ordered by name; checkpoints of an earlier run are put into `left_out`."""
    with _reading(folder), os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    for entry in entries:
        name = f"{prefix}{entry.name}"
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_ignored(name, rules, is_folder=is_folder):
            continue
        path = Path(entry.path)
        if is_folder and _CHECKPOINT.fullmatch(entry.name) and (path / MANIFEST_NAME).is_file():
            left_out.append(path)
        elif is_folder:
            yield from _walk(path, f"{name}/", rules, left_out)
        elif entry.is_symlink():
            raise PackageError(f"{name} is a link; put a copy in its place, or {_name_advice()}")
        elif entry.is_file(follow_symlinks=False):
            _check_name(name)
            yield name, path
        else:
            raise PackageError(f"{name} is neither a file nor a folder; {_name_advice()}")


def hash_file(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name_advice() -> str:
    return f"name in {IGNORE_FILE} what the training does not need"


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


# --- ignore rules -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IgnoreRule:
    """One line of an ignore file."""

    pattern: re.Pattern[str]
    takes_back: bool
    folders_only: bool


def read_ignore_rules(folder: Path) -> tuple[IgnoreRule, ...]:
    """The built-in list, then the lines of the folder's `.rubatoignore`."""
    lines = list(DEFAULT_IGNORES)
    ignore_file = folder / IGNORE_FILE
    try:
        lines += ignore_file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise PackageError(f"cannot read {ignore_file}: {error}") from error
    return parse_ignore_lines(lines)


def parse_ignore_lines(lines: list[str]) -> tuple[IgnoreRule, ...]:
    """Rules as in a .gitignore: `#` comments, `!` takes back, `/` anchors, a last `/` means folders, `*`, `?`, `**`.

    Raises:
        PackageError: a line is no pattern.
    """
    rules = []
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        takes_back = text.startswith("!")
        text = text.removeprefix("!")
        folders_only = text.endswith("/")
        text = text.rstrip("/")
        if not text:
            continue
        anchored = "/" in text
        body = _translate(text.lstrip("/"))
        try:
            pattern = re.compile(body if anchored else rf"(?:.*/)?{body}")
        except re.error as error:
            raise PackageError(f"{IGNORE_FILE}: {line.strip()!r} is no pattern: {error}") from error
        rules.append(IgnoreRule(pattern, takes_back, folders_only))
    return tuple(rules)


def is_ignored(name: str, rules: tuple[IgnoreRule, ...], *, is_folder: bool) -> bool:
    """Whether a path is left out; the last rule that matches decides. An ignored folder is not looked into."""
    ignored = False
    for rule in rules:
        if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(name):
            ignored = not rule.takes_back
    return ignored


def _translate(glob: str) -> str:
    """A glob as a regular expression; `*` and `?` stay within one folder, `**` crosses them."""
    out = []
    position = 0
    while position < len(glob):
        if glob.startswith("**/", position):
            out.append("(?:.*/)?")
            position += 3
        elif glob.startswith("**", position):
            out.append(".*")
            position += 2
        elif glob[position] == "*":
            out.append("[^/]*")
            position += 1
        elif glob[position] == "?":
            out.append("[^/]")
            position += 1
        elif glob[position] == "[" and (end := glob.find("]", position + 2)) > 0:
            inside = glob[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]")
            position = end + 1
        else:
            out.append(re.escape(glob[position]))
            position += 1
    return "".join(out)


# --- unpack -----------------------------------------------------------------------------------------------------------


def unpack_folder(package: Path, target: Path, *, sha256: str, limits: PackageLimits = DEFAULT_LIMITS) -> None:
    """Unpack a package into the new folder `target`; where that exists already, nothing is done.

    Args:
        package: the zip.
        target: where the folder shall appear, in one stroke, complete.
        sha256: what the package must hash to.
        limits: what it may hold.

    Raises:
        PackageError: the package is damaged, is not the one named, or holds something that a package must not hold.
    """
    if target.is_dir():
        return
    size = package.stat().st_size
    if size > limits.packed_bytes:
        raise PackageError(f"the package has {_size(size)}, more than the {_size(limits.packed_bytes)} allowed")
    found = hash_file(package)
    if found != sha256:
        raise PackageError(f"the package's bytes hash to {found}, not to {sha256}; upload it again")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if lists_too_much(package, limits.files):
            raise PackageError(f"the package lists more than the {limits.files:,} files allowed")
        with zipfile.ZipFile(package) as archive:
            _unpack_all(archive, staging, limits)
        staging.chmod(0o755)
        try:
            staging.rename(target)
        except OSError:
            if not target.is_dir():
                raise
            # Another process put the same content in place first.
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, UnicodeDecodeError, NotImplementedError) as error:
        raise PackageError(f"the package is damaged: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _unpack_all(archive: zipfile.ZipFile, folder: Path, limits: PackageLimits) -> None:
    entries = archive.infolist()
    files = [entry for entry in entries if not entry.is_dir()]
    if len(files) > limits.files:
        raise PackageError(f"the package holds {len(files):,} files, more than the {limits.files:,} allowed")
    seen: set[str] = set()
    for entry in entries:
        _check_entry(entry, limits)
        name = entry.filename.rstrip("/")
        if name in seen:
            raise PackageError(f"the package holds {name!r} twice")
        seen.add(name)
    room = limits.unpacked_bytes
    for entry in entries:
        path = folder.joinpath(*entry.filename.rstrip("/").split("/"))
        try:
            if entry.is_dir():
                path.mkdir(parents=True, exist_ok=True)
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            room -= _unpack_file(archive, entry, path, room, limits)
        except (FileExistsError, NotADirectoryError) as error:
            raise PackageError(f"the package holds {entry.filename!r} both as a file and as a folder") from error


def _unpack_file(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, room_bytes: int, limits: PackageLimits
) -> int:
    """Write one file; returns the bytes really written, whatever the package's directory claims."""
    bound = min(room_bytes, 1_000_000 + limits.ratio * entry.compress_size)
    mode = 0o755 if (entry.external_attr >> 16) & 0o100 else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    written = 0
    with os.fdopen(descriptor, "wb") as sink, archive.open(entry) as source:
        while chunk := source.read(_CHUNK_BYTES):
            written += len(chunk)
            if written > bound:
                raise PackageError(
                    f"{entry.filename!r} unpacks to more than {_size(bound)}; "
                    f"a package may have {_size(limits.unpacked_bytes)} unpacked, and no file may shrink that much"
                )
            sink.write(chunk)
    return written


def _check_entry(entry: zipfile.ZipInfo, limits: PackageLimits) -> None:
    """Raise for anything but a plain file or folder with a plain relative name."""
    # zipfile cuts names at NUL; the uncut one is what another reader may see.
    _check_name(entry.orig_filename.rstrip("/") if entry.is_dir() else entry.orig_filename)
    if len(entry.filename.encode()) > limits.name_bytes:
        raise PackageError(f"the name {entry.filename[:80]!r}... is longer than {limits.name_bytes} bytes")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind != 0 and (kind == stat.S_IFDIR) != entry.is_dir()):
        raise PackageError(f"{entry.filename!r} is a link or a special file; a package holds files and folders only")
    if entry.flag_bits & 0x1:
        raise PackageError(f"{entry.filename!r} is encrypted")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise PackageError(f"{entry.filename!r} is compressed by method {entry.compress_type}; use stored or deflated")


def _check_name(name: str) -> None:
    """Raise unless the name is a plain relative path.

    Raises:
        PackageError: absolute, `..`, `.`, empty parts, backslash, drive letter or a control character.
    """
    parts = name.split("/")
    unsafe = (
        any(part in ("", ".", "..") for part in parts)
        or "\\" in name
        or re.match(r"[A-Za-z]:", name) is not None
        or any(ord(character) < 32 or ord(character) == 127 or 0xD800 <= ord(character) < 0xE000 for character in name)
    )
    if unsafe:
        raise PackageError(f"{name!r} is not a plain relative path; a package holds no absolute, parent or odd names")
