from __future__ import annotations

import io
import json
import os
import random
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from rubato.errors import PackageError
from rubato.packaging import (
    DEFAULT_IGNORES,
    IGNORE_FILE,
    PackageLimits,
    hash_file,
    pack_folder,
    unpack_folder,
)
from tests.pickle_bomb import PickleBomb

IGNORE_CASES = json.loads(Path(__file__).with_name("ignore_cases.json").read_text())


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def names_in(package: Path) -> list[str]:
    with zipfile.ZipFile(package) as archive:
        return archive.namelist()


# --- pack ----------------------------------------------------------------------------------------------------


def test_same_content_gives_the_same_bytes_whatever_the_dates_and_the_order_of_creation(tmp_path: Path) -> None:
    files = {"train.py": b"print(1)\n", "data/a.csv": b"1,2\n", "data/b.csv": b"3,4\n", "zz": b""}
    first = fill(tmp_path / "first", files)
    second = fill(tmp_path / "second", dict(reversed(files.items())))
    for path in second.rglob("*"):
        os.utime(path, (10**9, 10**9))
    one = pack_folder(first, tmp_path / "one.zip")
    two = pack_folder(second, tmp_path / "two.zip")
    assert one.sha256 == two.sha256 == hash_file(tmp_path / "one.zip")
    assert one.files == 4
    assert one.unpacked_bytes == sum(len(content) for content in files.values())
    assert names_in(tmp_path / "one.zip") == sorted(files)


def test_the_executable_bit_is_kept_and_other_mode_bits_are_not(tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"run.sh": b"#!/bin/sh\n", "secret": b"x"})
    (folder / "run.sh").chmod(0o4777)
    (folder / "secret").chmod(0o600)
    package = pack_folder(folder, tmp_path / "package.zip")
    unpack_folder(package.path, tmp_path / "out", sha256=package.sha256)
    assert stat.S_IMODE((tmp_path / "out/run.sh").stat().st_mode) & 0o7111 == 0o111
    assert stat.S_IMODE((tmp_path / "out/secret").stat().st_mode) & 0o7111 == 0


def test_caches_environments_and_secrets_stay_at_home(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "work",
        {
            "train.py": b"",
            ".git/config": b"",
            "lib/__pycache__/x.pyc": b"",
            "old.pyc": b"",
            ".venv/bin/python": b"",
            ".env": b"KEY=1",
            "sub/.env": b"KEY=2",
            ".envrc": b"",
        },
    )
    assert names_in(pack_folder(folder, tmp_path / "package.zip").path) == [".envrc", "train.py"]


def test_rubatoignore_leaves_out_and_takes_back(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "work",
        {
            ".rubatoignore": b"*.csv\n!keep.csv\n/runs\n!.env\n",
            "a.csv": b"",
            "keep.csv": b"",
            "runs/1": b"",
            ".env": b"",
        },
    )
    assert names_in(pack_folder(folder, tmp_path / "package.zip").path) == [".env", ".rubatoignore", "keep.csv"]


def test_checkpoints_of_earlier_runs_stay_at_home_and_nothing_that_only_looks_like_one(tmp_path: Path) -> None:
    left = ("kept/1-30/manifest.json", "kept/1-30/stripe-1.safetensors", "2-60/manifest.json")
    kept = ("train.py", "2026-11/data.csv", "1-2x/manifest.json", "manifest.json")
    folder = fill(tmp_path / "work", dict.fromkeys((*left, *kept), b"x"))
    packed = pack_folder(folder, tmp_path / "package.zip")
    assert names_in(tmp_path / "package.zip") == sorted(kept)
    assert (packed.files, packed.checkpoints) == (4, 2)


def test_the_built_in_list_is_the_one_that_the_page_knows() -> None:
    assert list(DEFAULT_IGNORES) == IGNORE_CASES["defaults"]


@pytest.mark.parametrize("case", IGNORE_CASES["cases"], ids=lambda case: " ".join(case["lines"]))
def test_ignore_patterns(case: dict[str, list[str]], tmp_path: Path) -> None:
    names = [*case["ignored"], *case["kept"]]
    kept = []
    for number, name in enumerate(names):  # one folder each: a name may be a folder of another
        folder = fill(tmp_path / f"work-{number}", {name: b"", "packed": b""})
        (folder / IGNORE_FILE).write_text("\n".join([*case["lines"], f"/{IGNORE_FILE}"]))
        kept += [one for one in names_in(pack_folder(folder, tmp_path / "package.zip").path) if one != "packed"]
    assert kept == case["kept"]


def test_a_pattern_that_is_none_is_named(tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"train.py": b"", IGNORE_FILE: b"[z-a].txt\n"})
    with pytest.raises(PackageError, match=r"\.rubatoignore.*\[z-a\]\.txt"):
        pack_folder(folder, tmp_path / "package.zip")


def test_a_link_is_refused_with_advice(tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"train.py": b""})
    (folder / "data").symlink_to("/etc")
    with pytest.raises(PackageError, match=r"data is a link.*\.rubatoignore"):
        pack_folder(folder, tmp_path / "package.zip")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"train.py": b""})
    os.mkfifo(folder / "pipe")
    with pytest.raises(PackageError, match="pipe is neither a file nor a folder"):
        pack_folder(folder, tmp_path / "package.zip")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (PackageLimits(files=2), "more than 2 files"),
        (PackageLimits(unpacked_bytes=10), "too large"),
        (PackageLimits(packed_bytes=100), "more than the 0.0 MB"),
    ],
)
def test_limits_hold_when_packing(tmp_path: Path, limits: PackageLimits, message: str) -> None:
    folder = fill(tmp_path / "work", {"a": random.Random(1).randbytes(200), "b": b"x", "c": b"y"})
    with pytest.raises(PackageError, match=message):
        pack_folder(folder, tmp_path / "package.zip", limits=limits)


def test_a_missing_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="is no folder"):
        pack_folder(tmp_path / "nowhere", tmp_path / "package.zip")
    (tmp_path / "empty").mkdir()
    with pytest.raises(PackageError, match="no file to pack"):
        pack_folder(tmp_path / "empty", tmp_path / "package.zip")


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_full_disk_below_the_package_is_not_taken_for_a_fault_of_the_folder(tmp_path: Path, size: int) -> None:
    folder = fill(tmp_path / "work", {"train.py": random.Random(1).randbytes(size)})
    (tmp_path / "package.zip").symlink_to("/dev/full")
    with pytest.raises(PackageError, match=r"cannot write the package in .*: No space left on device; make room there"):
        pack_folder(folder, tmp_path / "package.zip")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(tmp_path / "work", {"train.py": b"x"})
    real = os.open

    def refuse(path: Path, *arguments: int) -> int:
        if path == folder / "train.py":
            raise PermissionError(13, "Permission denied")
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PackageError, match=r"cannot read .*train\.py: Permission denied; mend it, or name in"):
        pack_folder(folder, tmp_path / "package.zip")


# --- unpack ----------------------------------------------------------------------------------------------------


def test_what_was_packed_comes_out_again(tmp_path: Path) -> None:
    files = {
        "train.py": b"print(1)\n",
        "pkg/mod.py": b"x = 1\n",
        "blob": random.Random(2).randbytes(3_000_000),
        "é": b"",
    }
    package = pack_folder(fill(tmp_path / "work", files), tmp_path / "package.zip")
    target = tmp_path / "out" / package.sha256
    unpack_folder(package.path, target, sha256=package.sha256)
    assert {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()} == files
    assert [path.name for path in target.parent.iterdir()] == [package.sha256]


def test_unpacking_again_does_nothing(tmp_path: Path) -> None:
    package = pack_folder(fill(tmp_path / "work", {"a": b"1"}), tmp_path / "package.zip")
    unpack_folder(package.path, tmp_path / "out", sha256=package.sha256)
    (tmp_path / "out/a").write_bytes(b"mine")
    unpack_folder(package.path, tmp_path / "out", sha256=package.sha256)
    assert (tmp_path / "out/a").read_bytes() == b"mine"


def refuse(tmp_path: Path, content: bytes, message: str, limits: PackageLimits | None = None) -> None:
    """Unpacking must raise, and leave nothing behind, inside the target or beside it."""
    package = tmp_path / "evil.zip"
    package.write_bytes(content)
    arena = tmp_path / "arena"
    arena.mkdir()
    with pytest.raises(PackageError, match=message):
        unpack_folder(package, arena / "out", sha256=hash_file(package), limits=limits or PackageLimits())
    assert list(arena.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arena", "evil.zip"]


def zip_of(*entries: tuple[str, bytes] | tuple[zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for entry, content in entries:
            archive.writestr(entry, content)
    return buffer.getvalue()


def entry_of_kind(name: str, kind: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = (kind | 0o777) << 16
    return entry


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "a/../../evil",
        "a/..",
        "..",
        "/etc/passwd",
        "//x",
        "a//b",
        "./a",
        "a/./b",
        "C:/x",
        "c:x",
        "a\nb",
        "a\x7f",
    ],
)
def test_names_that_leave_the_folder_or_hide_are_refused(tmp_path: Path, name: str) -> None:
    refuse(tmp_path, zip_of((name, b"x")), "not a plain relative path")


def test_a_backslash_is_refused(tmp_path: Path) -> None:
    # zipfile on Linux keeps it; a reader elsewhere would see a path.
    refuse(tmp_path, zip_of(("a_b", b"x")).replace(b"a_b", b"a\\b"), "not a plain relative path")


def test_a_name_with_nul_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zip_of(("aXb", b"x")).replace(b"aXb", b"a\0b"), "not a plain relative path")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR])
def test_links_and_special_files_are_refused(tmp_path: Path, kind: int) -> None:
    refuse(tmp_path, zip_of((entry_of_kind("a", kind), b"/etc/passwd")), "a link or a special file")


def test_a_folder_that_says_it_is_a_link_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zip_of((entry_of_kind("a/", stat.S_IFLNK), b"")), "a link or a special file")


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    content = zip_of(("a", b"1"), ("b", b"2")).replace(b"b", b"a")
    refuse(tmp_path, content, "holds 'a' twice")


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")])
def test_a_name_that_is_file_and_folder_is_refused(tmp_path: Path, names: tuple[str, str]) -> None:
    refuse(tmp_path, zip_of((names[0], b"1"), (names[1], b"2")), "both as a file and as a folder")


def test_a_bomb_is_refused_before_it_is_written_out(tmp_path: Path) -> None:
    refuse(tmp_path, zip_of(("zeros", bytes(50_000_000))), "unpacks to more than")


def test_a_lying_size_does_not_help_a_bomb(tmp_path: Path) -> None:
    content = bytearray(zip_of(("zeros", bytes(2_000_000))))
    for signature, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):
        at = content.find(signature) + offset
        content[at : at + 4] = (10).to_bytes(4, "little")
    refuse(tmp_path, bytes(content), "damaged|unpacks to more than")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (PackageLimits(files=2), "allowed"),
        (PackageLimits(unpacked_bytes=2), "unpacks to more than"),
        (PackageLimits(packed_bytes=10), "more than the 0.0 MB allowed"),
        (PackageLimits(name_bytes=3), "longer than 3 bytes"),
    ],
)
def test_limits_hold_when_unpacking(tmp_path: Path, limits: PackageLimits, message: str) -> None:
    refuse(tmp_path, zip_of(("one", b"1"), ("two", b"2"), ("three", b"3")), message, limits)


def test_an_overlong_directory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    content = zip_of(*((f"f{index}", b"") for index in range(50)))
    refuse(tmp_path, content, "lists more than", PackageLimits(files=20))


def test_a_count_that_lies_does_not_hide_an_overlong_directory(tmp_path: Path) -> None:
    content = bytearray(zip_of(*((f"f{index}", b"") for index in range(50))))
    struct.pack_into("<2H", content, len(content) - 14, 1, 1)
    refuse(tmp_path, bytes(content), "lists more than", PackageLimits(files=20))


def test_zip64_does_not_hide_an_overlong_directory(tmp_path: Path) -> None:
    """zipfile goes by its record also where the record that everybody has says little, and announces none."""
    content = zip_of(*((f"f{index}", b"") for index in range(50)))
    end = len(content) - 22
    size, start = struct.unpack_from("<2L", content, end + 12)
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 50, 50, size, start)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    innocent = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 46, 0, 0)
    hidden = content[:end] + record + locator + innocent
    assert len(zipfile.ZipFile(io.BytesIO(hidden)).infolist()) == 50
    refuse(tmp_path, hidden, "lists more than", PackageLimits(files=20))


def test_pickles_are_no_package_and_in_one_they_are_files(tmp_path: Path) -> None:
    bomb = PickleBomb(tmp_path / "mark")
    forms = bomb.forms()
    for name in ("binary", "text", "yaml"):
        (tmp_path / name).mkdir()
        refuse(tmp_path / name, forms[name], "no zip")
    package = tmp_path / "package.zip"
    package.write_bytes(zip_of(*forms.items()))
    unpack_folder(package, tmp_path / "out", sha256=hash_file(package))
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == forms
    assert not bomb.went_off


def test_an_unusual_compression_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zip_of(("a", b"x"), method=zipfile.ZIP_BZIP2), "compressed by method 12")


def test_an_encrypted_entry_is_refused(tmp_path: Path) -> None:
    content = bytearray(zip_of(("a", b"x")))
    content[content.find(b"PK\3\4") + 6] |= 1
    content[content.find(b"PK\1\2") + 8] |= 1
    refuse(tmp_path, bytes(content), "is encrypted")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"no zip at all", id="text"),
        pytest.param(b"PK\5\6", id="only a signature"),
        # Named, because the bytes hold the time: two test processes would give it two names.
        pytest.param(zip_of(("a", b"12345" * 9))[:-30], id="cut off"),
    ],
)
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    refuse(tmp_path, content, "no zip|damaged")


def test_a_flipped_byte_is_seen(tmp_path: Path) -> None:
    content = bytearray(zip_of(("a", bytes(range(256)) * 4), method=zipfile.ZIP_STORED))
    content[100] ^= 1
    refuse(tmp_path, bytes(content), "damaged")


def test_bytes_that_are_not_those_named_are_refused(tmp_path: Path) -> None:
    package = pack_folder(fill(tmp_path / "work", {"a": b"1"}), tmp_path / "package.zip")
    with pytest.raises(PackageError, match="hash to"):
        unpack_folder(package.path, tmp_path / "out", sha256="0" * 64)
    assert not (tmp_path / "out").exists()
