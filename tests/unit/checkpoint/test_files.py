from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubato.checkpoint.files import FileRecord, write_file, write_new_file
from rubato.errors import CheckpointError


def test_a_file_is_written_and_recorded(tmp_path: Path) -> None:
    record = write_file(tmp_path / "a" / "b" / "name", [b"one ", memoryview(b"two"), b""])
    assert (tmp_path / "a" / "b" / "name").read_bytes() == b"one two"
    assert record == FileRecord("name", 7, hashlib.sha256(b"one two").hexdigest())


def test_an_error_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    write_file(tmp_path / "name", [b"old"])

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "name", chunks())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_full_disk_is_an_error_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(CheckpointError, match=r"cannot write name in .*: No space left on device; make room"):
        write_file(tmp_path / "name", [b"x"])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_visible_under_the_name_before_the_bytes_are_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    real = os.fsync

    def watch(descriptor: int) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        real(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    write_file(tmp_path / "name", [b"x"])
    assert len(seen[0]) == 1
    assert seen[0][0].startswith("name.")
    assert seen[0][0].endswith(".partial")
    assert seen[-1] == ["name"]


def test_a_folder_above_that_may_not_be_opened_undoes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent of the storage's root is often such a folder: /home and /scratch with mode 0711."""
    real = os.open
    outer = tmp_path / "alice"

    def refuse(path: str | Path, *arguments: int) -> int:
        if Path(path) == outer:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    assert write_new_file(outer / "job" / "1-5" / "manifest.json", [b"whole"]) is not None
    assert (outer / "job" / "1-5" / "manifest.json").read_bytes() == b"whole"


def test_a_file_system_that_cannot_sync_folders_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def refuse(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    assert write_file(tmp_path / "stripe", [b"x"]).bytes == 1
    assert write_new_file(tmp_path / "1-5" / "manifest.json", [b"x"]) is not None
