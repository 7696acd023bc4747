from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobs.package import WorkerFolder
from rubato.errors import PackageError
from rubato.packaging import PackedFolder, pack_folder


@pytest.fixture
def packed(tmp_path: Path) -> PackedFolder:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text("pass\n")
    return pack_folder(folder, tmp_path / "package.zip")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


class Service:
    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.asked = 0

    def fetch(self, sha256: str, target: Path) -> None:
        self.asked += 1
        shutil.copy(self.archive, target)


def test_a_package_is_fetched_once_and_unpacked_for_each(packed: PackedFolder, root: Path) -> None:
    service = Service(packed.path)
    one, two = WorkerFolder("job-1.1", root), WorkerFolder("job-1.2", root)
    first, second = (folder.prepare(packed.sha256, service.fetch) for folder in (one, two))
    assert service.asked == 1
    assert first != second
    (first / "train.py").write_text("changed\n")
    assert (second / "train.py").read_text() == "pass\n"
    one.remove()
    two.remove()
    two.remove()
    assert list((root / "workers").iterdir()) == []


def test_a_damaged_copy_is_fetched_anew_and_a_wrong_one_refused(packed: PackedFolder, root: Path) -> None:
    (root / "packages").mkdir(parents=True)
    (root / "packages" / f"{packed.sha256}.zip").write_bytes(b"half a zi")
    service, folder = Service(packed.path), WorkerFolder("job-1.1", root)
    for _ in range(2):  # what could not be finished is begun again
        code = folder.prepare(packed.sha256, service.fetch)
        assert service.asked == 1
        assert (code / "train.py").read_text() == "pass\n"
    with pytest.raises(PackageError, match="hash to"):
        folder.prepare("0" * 64, service.fetch)
    folder.remove()


def test_a_job_without_code_starts_in_an_empty_folder(root: Path) -> None:
    folder = WorkerFolder("job-1.1", root)
    code = folder.prepare(None, pytest.fail)
    assert list(code.iterdir()) == []
    folder.remove()


HOLD = """
import sys, time
from pathlib import Path
from jobs.package import WorkerFolder
folder = WorkerFolder(sys.argv[2], Path(sys.argv[1]))
(folder.prepare(None, None) / "left.txt").touch()
print("held", flush=True)
time.sleep(60)
"""


def test_what_a_killed_supervisor_left_is_swept_and_what_a_living_one_holds_is_not(root: Path) -> None:
    own = WorkerFolder("own-1.1", root)
    code = own.prepare(None, pytest.fail)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, str(root), name], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
        )
        for name in ("dead-1.1", "living-1.1")
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.stdout.close()
    dead, living = processes
    dead.kill()
    dead.wait()
    own.sweep()
    assert sorted(path.name for path in (root / "workers").glob("*-1.1")) == ["living-1.1", "own-1.1"]
    assert code.is_dir()
    assert (root / "workers" / "living-1.1" / "code" / "left.txt").exists()
    assert not (root / "workers" / "dead-1.1.lock").exists()
    living.kill()
    living.wait()
    own.remove()
    WorkerFolder("own-1.2", root).sweep()
    assert [path.name for path in (root / "workers").iterdir()] == ["own-1.2.lock"]


def test_no_sweep_meets_a_worker_that_just_begins(root: Path) -> None:
    """Workers come and go, by the same name to make it harder, while others sweep all the time."""
    is_over = threading.Event()
    sweeper = WorkerFolder("sweeper-1.1", root)

    def sweep() -> None:
        while not is_over.is_set():
            sweeper.sweep()

    threads = [threading.Thread(target=sweep) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            folder = WorkerFolder("job-1.1", root)
            code = folder.prepare(None, pytest.fail)
            (code / "train.py").touch()
            assert (code / "train.py").exists()
            folder.remove()
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_a_file_system_without_locks_is_never_swept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with monkeypatch.context() as without:
        without.setattr(fcntl, "flock", refuse)
        folder = WorkerFolder("job-1.1", root)
        code = folder.prepare(None, pytest.fail)
        folder.sweep()
    WorkerFolder("job-1.2", root).sweep()
    assert code.is_dir()
    folder.remove()
    assert not code.exists()


def test_a_package_goes_a_week_after_its_last_use(packed: PackedFolder, root: Path) -> None:
    service, folder = Service(packed.path), WorkerFolder("job-1.1", root)
    folder.prepare(packed.sha256, service.fetch)
    archive = root / "packages" / f"{packed.sha256}.zip"
    for name in ("other.zip", "tmphalf"):
        (archive.parent / name).touch()
    old = time.time() - 8 * 86400
    for path in archive.parent.iterdir():
        os.utime(path, (old, old))
    folder.prepare(packed.sha256, service.fetch)
    folder.sweep()
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]
    assert service.asked == 1
    os.utime(archive, (old, old))
    folder.sweep()
    folder.prepare(packed.sha256, service.fetch)
    assert service.asked == 2
    folder.remove()
