"""What every kind of storage must hold; each kind runs these."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator

import pytest

from rubato.checkpoint.files import FileRecord
from rubato.checkpoint.storage import Folder, open_folder
from rubato.errors import CheckpointError

LARGE = bytes(range(256)) * 2**14 * 5
"""20 MiB: more than one block, one part, one request."""


def content(folder: Folder, name: str) -> bytes:
    return b"".join(folder.read(name))


class FolderContract:
    @pytest.fixture
    def folder(self) -> Folder:
        raise NotImplementedError

    def test_a_file_comes_back_and_is_recorded(self, folder: Folder) -> None:
        chunks = [b"one ", memoryview(b"two"), b"", LARGE]
        record = (folder / "1-5").write("name", chunks)
        data = b"".join(bytes(chunk) for chunk in chunks)
        assert record == FileRecord("name", len(data), hashlib.sha256(data).hexdigest())
        again = open_folder(str(folder / "1-5"))
        assert again.name == "1-5"
        assert content(again, "name") == data
        assert (again.size("name"), again.exists("name"), again.exists("nam")) == (len(data), True, False)

    def test_a_file_takes_the_place_of_another(self, folder: Folder) -> None:
        for data in (b"old and longer", b"new"):
            folder.write("name", [data])
        assert content(folder, "name") == b"new"

    def test_what_fails_halfway_leaves_no_file(self, folder: Folder) -> None:
        folder.write("name", [b"old"])

        def chunks() -> Iterator[bytes]:
            yield LARGE
            raise KeyboardInterrupt

        for name in ("name", "other"):
            with pytest.raises(KeyboardInterrupt):
                folder.write(name, chunks())
        assert content(folder, "name") == b"old"
        assert not folder.exists("other")

    def test_only_the_first_new_file_is_written(self, folder: Folder) -> None:
        first = (folder / "1-5").write_new("manifest", b"first")
        assert first == FileRecord("manifest", 5, hashlib.sha256(b"first").hexdigest())
        assert (folder / "1-5").write_new("manifest", b"second") is None
        assert content(folder / "1-5", "manifest") == b"first"

    def test_of_many_at_once_one_writes(self, folder: Folder) -> None:
        for attempt in range(5):
            start, won = threading.Barrier(4), []

            def write(number: int, name: str = f"{attempt}", start=start, won=won) -> None:  # type: ignore[no-untyped-def]
                start.wait()
                if folder.write_new(name, b"writer %d" % number) is not None:
                    won.append(number)

            threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(won) == 1
            assert content(folder, f"{attempt}") == b"writer %d" % won[0]

    def test_folders_are_listed_and_deleted(self, folder: Folder) -> None:
        assert folder.folders() == []
        folder.write("file", [b"x"])
        for name in ("1-5", "1-50"):
            (folder / name).write("a", [b"x"])
            (folder / name / "deep").write("b", [b"x"])
        assert sorted(folder.folders()) == ["1-5", "1-50"]
        (folder / "1-5").remove("a")
        assert not (folder / "1-5").exists("a")
        (folder / "1-5").remove_all()
        assert folder.folders() == ["1-50"]
        assert (folder / "1-50").exists("a")

    def test_what_is_not_there(self, folder: Folder) -> None:
        assert not folder.exists("absent")
        for ask in (lambda: folder.size("absent"), lambda: content(folder, "absent")):
            with pytest.raises(FileNotFoundError):
                ask()

    def test_preparing_leaves_nothing(self, folder: Folder) -> None:
        folder.prepare()
        assert not folder.exists("rubato-probe")


def refuses_to_prepare(folder: Folder, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        folder.prepare()
