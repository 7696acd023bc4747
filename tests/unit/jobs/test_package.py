from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jobs.package import prepare_code, remove_code
from rubato.errors import PackageError
from rubato.packaging import PackedFolder, pack_folder


@pytest.fixture
def packed(tmp_path: Path) -> PackedFolder:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text("pass\n")
    return pack_folder(folder, tmp_path / "package.zip")


class Service:
    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.asked = 0

    def fetch(self, sha256: str, target: Path) -> None:
        self.asked += 1
        shutil.copy(self.archive, target)


def test_a_package_is_fetched_once_and_unpacked_for_each(packed: PackedFolder, tmp_path: Path) -> None:
    service, root = Service(packed.path), tmp_path / "root"
    root.mkdir()
    first = prepare_code(packed.sha256, "job-1.1", service.fetch, root)
    second = prepare_code(packed.sha256, "job-1.2", service.fetch, root)
    assert service.asked == 1
    assert first != second
    (first / "train.py").write_text("changed\n")
    assert (second / "train.py").read_text() == "pass\n"
    remove_code(first)
    assert not first.parent.exists()
    assert (prepare_code(packed.sha256, "job-1.2", service.fetch, root) / "train.py").exists()


def test_a_damaged_copy_is_fetched_anew_and_a_wrong_one_refused(packed: PackedFolder, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "packages").mkdir(parents=True)
    (root / "packages" / f"{packed.sha256}.zip").write_bytes(b"half a zi")
    service = Service(packed.path)
    prepare_code(packed.sha256, "job-1.1", service.fetch, root)
    assert service.asked == 1
    wrong = "0" * 64
    with pytest.raises(PackageError, match="hash to"):
        prepare_code(wrong, "job-1.2", service.fetch, root)


def test_a_job_without_code_starts_in_an_empty_folder(tmp_path: Path) -> None:
    code = prepare_code(None, "job-1.1", pytest.fail, tmp_path)
    assert list(code.iterdir()) == []
