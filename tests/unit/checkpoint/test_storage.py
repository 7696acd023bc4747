from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec  # type: ignore[import-untyped]  # noqa: F401
import pytest
from folder_contract import FolderContract, content, refuses_to_prepare
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from rubato.checkpoint.storage import Folder, LocalFolder, ObjectFolder, open_folder
from rubato.errors import CheckpointError, StorageUnreachable, UserError


class TestLocalFolder(FolderContract):
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Folder:
        return open_folder(str(tmp_path / "job"))

    def test_a_file_system_without_hard_links(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)
        assert folder.write_new("manifest", b"first") is not None
        assert folder.write_new("manifest", b"second") is None
        assert content(folder, "manifest") == b"first"
        assert [path.name for path in Path(str(folder)).iterdir()] == ["manifest"]

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("a file where the folder should be")
        refuses_to_prepare(LocalFolder(tmp_path / "taken"), "cannot make the folder .*taken: File exists")

    @pytest.mark.skipif(sys.platform != "linux", reason="/proc takes files from nobody, also not from root")
    def test_a_folder_that_may_only_be_read(self) -> None:
        refuses_to_prepare(LocalFolder(Path("/proc/self")), "cannot write rubato-probe in /proc/self: .*may write to")


class TestMemory(FolderContract):
    @pytest.fixture
    def folder(self, request: pytest.FixtureRequest) -> Iterator[Folder]:
        folder = open_folder(f"memory://{request.node.name}")
        yield folder
        folder.remove_all()

    # fsspec's memory shows a file while it is written, and looks first and writes then: on S3 these two are tested.
    test_what_fails_halfway_leaves_no_file = None  # type: ignore[assignment]
    test_of_many_at_once_one_writes = None  # type: ignore[assignment]

    def test_a_store_that_knows_no_condition_is_asked_before_and_read_after(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert isinstance(folder, ObjectFolder)
        filesystem = folder._filesystem
        plain = filesystem.pipe_file
        disturb: list[bytes] = []

        def pipe_file(path: str, data: bytes, mode: str = "overwrite") -> None:
            if mode == "create":
                raise NotImplementedError
            plain(path, data)
            for other in disturb:
                plain(path, other)

        monkeypatch.setattr(filesystem, "pipe_file", pipe_file)
        assert folder.write_new("manifest", b"first") is not None
        assert folder.write_new("manifest", b"second") is None
        disturb.append(b"of another")
        assert folder.write_new("raced", b"mine") is None, "the last writer stays, and the other one sees that"

    def test_errors_of_any_kind_say_what_to_look_at(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(folder, ObjectFolder)

        def fail(*_: Any, **__: Any) -> None:
            raise RuntimeError("Could not connect to the endpoint")

        for verb in ("open", "pipe_file", "cat_file", "size"):
            monkeypatch.setattr(folder._filesystem, verb, fail)
        with pytest.raises(CheckpointError, match=r"cannot write a in memory://.*Could not connect .*AWS_ENDPOINT_URL"):
            folder.write("a", [b"x"])
        refuses_to_prepare(folder, "cannot write rubato-probe")
        with pytest.raises(StorageUnreachable, match="RuntimeError: Could not connect"):
            folder.size("a")

    def test_an_upload_whose_end_fails_is_given_up(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(folder, ObjectFolder)
        given_up = []

        class Upload:
            def write(self, data: memoryview) -> int:
                return len(data)

            def close(self) -> None:
                raise RuntimeError("503 when the last part was sent")

            def discard(self) -> None:
                given_up.append(self)

        monkeypatch.setattr(folder._filesystem, "open", lambda *_: Upload())
        with pytest.raises(CheckpointError, match="503 when the last part"):
            folder.write("a", [b"x"])
        assert len(given_up) == 1


@pytest.mark.parametrize(("uri", "advice"), [("s3://bucket/jobs", r"pip install '\.\[s3\]'"), ("gs://b", "fsspec")])
def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, uri: str, advice: str) -> None:
    for name in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    for protocol in ("s3", "gs"):  # a file system that a test before this one has loaded
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(UserError, match=advice):
        open_folder(uri)


class HostedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Wants the host of the address, and leaves it out of paths, as the drivers of ftp and webhdfs do."""

    protocol = "hosted"
    cachable = False
    hosts: ClassVar[list[str]] = []

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        if host == "broken":
            raise OSError("there is no libjvm.so\nand a hundred lines more")
        self.hosts.append(host)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("hosted://").partition("/")[2] if "://" in path else path

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"host": path.removeprefix("hosted://").partition("/")[0]}


class TestHosted:
    @pytest.fixture(autouse=True)
    def driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        registry = sys.modules["fsspec.registry"]
        monkeypatch.setattr(registry, "_registry", {"hosted": HostedFileSystem})
        monkeypatch.setattr(registry, "registry", {"hosted": HostedFileSystem})
        monkeypatch.setattr(HostedFileSystem, "hosts", [])

    def test_a_driver_is_given_the_host_and_plain_paths(self) -> None:
        folder = open_folder("hosted://node-7/jobs")
        folder.prepare()
        (folder / "1-5").write("a", [b"x"])
        assert HostedFileSystem.hosts == ["node-7"]
        assert folder.folders() == ["1-5"]
        assert content(open_folder(str(folder / "1-5")), "a") == b"x"
        assert MemoryFileSystem().exists("/jobs/1-5/a")
        folder.remove_all()

    def test_one_that_cannot_be_set_up_says_so_in_a_line(self) -> None:
        with pytest.raises(
            UserError, match=r"^storage hosted://broken/jobs cannot be opened: .*libjvm.so; is .*here\?$"
        ):
            open_folder("hosted://broken/jobs")


def test_a_server_that_is_not_there_is_told() -> None:
    with pytest.raises(UserError, match=r"storage ftp://127.0.0.1:1/jobs cannot be opened: .*refused"):
        open_folder("ftp://127.0.0.1:1/jobs")


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UserError, match=r"storage foo:// cannot be used here .*s3://BUCKET/PREFIX"):
        open_folder("foo://bucket")
