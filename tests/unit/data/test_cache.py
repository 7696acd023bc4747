from __future__ import annotations

import errno
import fcntl
import io
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from rubato.data import CachedFiles
from rubato.errors import ModelError


class Remote:
    """URLs `SIZE/NAME`; counts what was opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def __call__(self, url: str) -> BinaryIO:
        self.opened.append(url)
        return io.BytesIO(content(url))


def content(url: str) -> bytes:
    size, name = url.split("/")
    return (name.encode() * int(size))[: int(size)]


def files(folder: Path, remote: Any, **sizes: Any) -> CachedFiles:
    return CachedFiles(folder, **{"disk": 10_000, "memory": 300, **sizes}, opener=remote)


def on_disk(folder: Path) -> list[Path]:
    return list(folder.glob("??/*/*"))


def test_each_level_serves_what_it_has(tmp_path: Path) -> None:
    remote = Remote()
    cached = files(tmp_path, remote)
    for _ in range(3):
        assert cached.read("100/a") == content("100/a")
        assert cached.read("1000/b") == content("1000/b")  # more than memory takes
    assert remote.opened == ["100/a", "1000/b"]
    assert (cached.counts.memory, cached.counts.disk, cached.counts.remote) == (2, 2, 2)
    other = files(tmp_path, remote)  # another process of the node
    assert other.read("100/a") == content("100/a")
    assert len(remote.opened) == 2


def test_memory_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cached = files(tmp_path, Remote())
    for url in ("100/a", "100/b", "100/c"):
        cached.read(url)
    cached.read("100/a")
    cached.read("100/d")
    assert list(cached._memory) == ["100/c", "100/a", "100/d"]
    assert cached._in_memory == 300


def test_the_disk_is_bounded_and_keeps_what_was_used_last(tmp_path: Path) -> None:
    cached = files(tmp_path, Remote(), memory=0)
    for index in range(40):
        cached.read(f"500/{index}")
        for path in on_disk(tmp_path):  # times a second apart, as of a slower program
            os.utime(path, (path.stat().st_atime - 1, path.stat().st_mtime - 1))
        cached.read("500/0")
        assert sum(path.stat().st_size for path in on_disk(tmp_path)) <= 10_000
    assert len(on_disk(tmp_path)) >= 16
    before = cached.counts.remote
    for url in ("500/0", "500/39", "500/38"):
        cached.read(url)
    assert cached.counts.remote == before
    cached.read("500/1")
    assert cached.counts.remote == before + 1


def test_a_file_larger_than_the_disk_is_read_and_not_kept(tmp_path: Path) -> None:
    cached = files(tmp_path, Remote())
    assert cached.read("10001/a") == content("10001/a")
    assert not on_disk(tmp_path)
    assert not list(tmp_path.glob(".rubato-fetch-*"))


@pytest.mark.parametrize("damage", [b"", b"aaab", b"longer than it was" * 20])
def test_a_damaged_entry_is_found_and_fetched_again(tmp_path: Path, damage: bytes) -> None:
    remote = Remote()
    files(tmp_path, remote).read("100/a")
    on_disk(tmp_path)[0].write_bytes(damage)
    cached = files(tmp_path, remote)
    assert cached.read("100/a") == content("100/a")
    assert cached.counts.corrupt == 1
    assert len(remote.opened) == 2
    assert files(tmp_path, remote).read("100/a") == content("100/a")
    assert len(remote.opened) == 2


def test_an_open_file_can_be_read_while_it_is_removed(tmp_path: Path) -> None:
    cached = files(tmp_path, Remote())
    with cached.open("1000/a") as new, cached.open("1000/a") as old:
        on_disk(tmp_path)[0].unlink()
        assert new.read() == old.read() == content("1000/a")


def test_what_a_killed_process_left_is_removed_and_what_is_under_way_is_not(tmp_path: Path) -> None:
    for name, age in ((".rubato-fetch-abcdefg1", 7200), (".rubato-fetch-abcdefg2", 60)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    files(tmp_path, Remote()).read("100/a")
    assert [path.name for path in tmp_path.glob(".rubato-fetch-*")] == [".rubato-fetch-abcdefg2"]


def test_files_that_it_did_not_make_are_neither_deleted_nor_changed(tmp_path: Path) -> None:
    key, digest = "ab" + "0" * 62, "1" * 64
    names = [
        "new-york.csv",
        "new-abcdefgh",
        "lock",
        ".rubato-fetch-notes.txt",
        "en/train/part1",
        "ab/cd/part1",
        f"ab/{key}/README",
        f"ab/notes/{digest}",
        f"cd/{key}/{digest}",
        f"ab/{key}/{digest}x",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name * 100)
        os.utime(tmp_path / name, (0, 0))
    cached = files(tmp_path, Remote(), disk=1000, memory=0)
    for number in range(20):
        cached.read(f"100/{number}")
    assert [name for name in names if (tmp_path / name).read_text() == name * 100] == names
    assert sum(path.stat().st_size for path in tmp_path.glob(f"??/{'?' * 64}/{'?' * 64}")) <= 1000 + len(names[8]) * 100


def test_what_lies_beside_an_entry_is_not_taken_for_it(tmp_path: Path) -> None:
    remote = Remote()
    cached = files(tmp_path, remote, memory=0)
    key = cached._entry("100/a")
    key.mkdir(parents=True)
    (key / ".earlier").write_text("an editor's, a network's")  # whichever is listed first
    cached.read("100/a")
    (key / ".later").write_text("an editor's, a network's")
    assert cached.read("100/a") == content("100/a")
    assert (cached.counts.disk, cached.counts.corrupt) == (1, 0)
    assert len(list(key.iterdir())) == 3


class Broken(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError(errno.ECONNRESET, "the server is gone")


def test_an_error_of_the_remote_side_is_raised_and_leaves_nothing(tmp_path: Path) -> None:
    cached = files(tmp_path, lambda url: Broken())
    with pytest.raises(OSError, match="the server is gone"):
        cached.read("100/a")
    assert not on_disk(tmp_path)
    assert not list(tmp_path.glob(".rubato-fetch-*"))


def test_a_folder_that_takes_nothing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    remote = Remote()
    cached = files(tmp_path / "file" / "folder", remote, memory=0)
    with pytest.warns(UserWarning, match="cannot be written: Not a directory; it is left out"):
        assert cached.read("100/a") == content("100/a")
    assert cached.read("100/a") == content("100/a")  # told once


@pytest.mark.parametrize("size", [300, 9000])
def test_a_full_disk_takes_nothing_and_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """A small file is still in the buffer when it is given up, and closing it writes again."""

    def on_full_disk(prefix: str, dir: Path) -> tuple[int, str]:
        (dir / f"{prefix}abcdefgh").touch()
        return os.open("/dev/full", os.O_RDWR), str(dir / f"{prefix}abcdefgh")

    monkeypatch.setattr("tempfile.mkstemp", on_full_disk)
    cached = files(tmp_path, Remote(), memory=0)
    with pytest.warns(UserWarning, match="cannot be written: No space left on device; it is left out"):
        assert cached.read(f"{size}/a") == content(f"{size}/a")
    assert not list(tmp_path.glob(".rubato-fetch-*"))


def test_it_pickles_without_what_it_holds(tmp_path: Path) -> None:
    cached = CachedFiles(tmp_path, disk="1MiB", memory="10KB")
    assert (cached.disk_bytes, cached.memory_bytes) == (1 << 20, 10_000)
    cached._remember("a", b"x" * 5000)
    data = pickle.dumps(cached)
    assert len(data) < 1000
    there = pickle.loads(data)
    assert (there.folder, there.disk_bytes, there.memory_bytes) == (tmp_path, 1 << 20, 10_000)
    assert not there._memory


def test_fsspec_opens_urls(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("hello")
    cached = CachedFiles(tmp_path / "cache")
    assert cached.read(f"file://{tmp_path}/file.txt") == b"hello"
    (tmp_path / "file.txt").unlink()
    assert CachedFiles(tmp_path / "cache").read(f"file://{tmp_path}/file.txt") == b"hello"


def test_a_size_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"CachedFiles: .* write bytes"):
        CachedFiles(tmp_path, disk="a lot")


HAMMER = """
import io, random, sys
from rubato.data import CachedFiles
from tests.unit.data.test_cache import content
cached = CachedFiles(sys.argv[1], disk=5000, memory=400, opener=lambda url: io.BytesIO(content(url)))
dice = random.Random(sys.argv[2])
for _ in range(600):
    url = f"{dice.choice((50, 300, 700))}/{dice.randrange(12)}"
    assert cached.read(url) == content(url), url
assert not cached.counts.corrupt, cached.counts
"""


def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(tmp_path), str(seed)], env=environment())
        for seed in range(3)
    ]
    assert [one.wait(100) for one in running] == [0, 0, 0]
    assert sum(path.stat().st_size for path in on_disk(tmp_path)) <= 5000 * (1 + 3 / 16) + 3 * 700
    assert not list(tmp_path.glob(".rubato-fetch-*"))


def test_one_that_keeps_the_lock_for_long_holds_up_nobody_and_room_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rubato.data.cache._LOCK_WAIT_S", 0.02)
    cached = files(tmp_path, Remote(), memory=0, disk=1000)
    cached.read("100/first")
    with (tmp_path / ".rubato-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for index in range(15):
            cached.read(f"100/{index}")
        assert len(on_disk(tmp_path)) == 16
    cached.read("1/last")
    assert len(on_disk(tmp_path)) == 10


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
