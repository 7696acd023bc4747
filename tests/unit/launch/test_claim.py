from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rubato.checkpoint.storage import Folder, LocalFolder, open_folder
from rubato.errors import CheckpointError, UserError
from rubato.launch import claim
from rubato.launch.claim import OWNER_NAME, Claim


@pytest.fixture
def store() -> Iterator[Folder]:
    """An object store in memory."""
    folder = open_folder(f"memory:///{secrets.token_hex(4)}")
    yield folder
    folder.remove_all()


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


def save(root: Folder, name: str) -> None:
    (root / name).write("stripe", [b"x"])


def test_a_second_run_is_refused_with_the_name_of_the_first_one(tmp_path: Path) -> None:
    with closing(Claim(LocalFolder(tmp_path), "run_0001")) as first:
        advice = r"wait for its end, stop it \(`rubato cancel run_0001 --wait`\), or give this one another"
        advice += rf" --checkpoint-dir\. If that host is gone, delete {tmp_path}/rubato-owner\.json$"
        with pytest.raises(UserError, match=rf"run_0001 \(process {os.getpid()} on .*\) saves to {tmp_path}.*{advice}"):
            Claim(LocalFolder(tmp_path), "run_0002")
        assert first.taken_by() == ""
    with closing(Claim(LocalFolder(tmp_path), "run_0002")) as second:
        assert second.taken_by() == ""
        assert second.former == ""
    assert not list(tmp_path.iterdir()), "an orderly end leaves nothing"


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import os, sys; from rubato.launch.claim import Claim; from rubato.checkpoint.storage import LocalFolder; "
        "from pathlib import Path; one = Claim(LocalFolder(Path(sys.argv[1])), 'run_gone'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert json.loads((tmp_path / OWNER_NAME).read_bytes())["run"] == "run_gone"
    with closing(Claim(LocalFolder(tmp_path), "run_next")) as one:
        assert (one.former, one.attempt) == ("", 1)


FORKS = """
import os, sys, time
from pathlib import Path
from rubato.checkpoint.storage import LocalFolder
from rubato.launch.claim import Claim

one = Claim(LocalFolder(Path(sys.argv[1])), "python train.py")
reading, writing = os.pipe()
child = os.fork()
if not child:
    one.close()
    os.write(writing, b"x")
    time.sleep(600)
os.read(reading, 1)
print(child, flush=True)
time.sleep(600)
"""


def test_what_a_killed_run_has_forked_holds_nothing(tmp_path: Path) -> None:
    """A worker of a DataLoader, which has no way to hear of it."""
    with subprocess.Popen([sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        try:
            with pytest.raises(UserError, match=rf"python train.py \(process {run.pid} on "):
                Claim(LocalFolder(tmp_path), "run_early")
            run.kill()
            run.wait()
            os.kill(child, 0)
            with closing(Claim(LocalFolder(tmp_path), "run_next")) as one:
                assert one.taken_by() == ""
        finally:
            run.kill()
            os.kill(child, signal.SIGKILL)


def test_the_end_of_the_former_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    former = Claim(LocalFolder(tmp_path), "run_former")
    ending = threading.Timer(0.3, former.close)
    ending.start()
    with closing(Claim(LocalFolder(tmp_path), "run_next")):
        assert json.loads((tmp_path / OWNER_NAME).read_bytes())["run"] == "run_next"
    ending.join()
    assert re.search(r"run_former \(process .* saves to .*: waiting whether it ends", capsys.readouterr().err)


AS_ANOTHER = """
import os, sys
from pathlib import Path
from rubato.checkpoint.storage import LocalFolder
from rubato.errors import RubatoError
from rubato.launch.claim import OWNER_NAME, Claim

os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setuid(65534)
try:
    Claim(LocalFolder(Path(".")), "run_mine")
    print(Path(OWNER_NAME).read_text())
except RubatoError as error:
    print(error)
"""


def claim_as_another(folder: Path) -> str:
    """What a user finds who may not write to the owner's file."""
    run = [sys.executable, "-c", AS_ANOTHER, str(folder)]
    return subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_the_file_of_another_users_run_is_replaced_if_that_is_over(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with closing(Claim(LocalFolder(tmp_path), "run_theirs")):
        (tmp_path / OWNER_NAME).chmod(0o444)
        left = (tmp_path / OWNER_NAME).read_bytes()
        assert re.search(
            r"^run_theirs \(process .*If that host is gone, delete rubato-owner.json", claim_as_another(tmp_path)
        )
    (tmp_path / OWNER_NAME).write_bytes(left)
    (tmp_path / OWNER_NAME).chmod(0o444)
    assert json.loads(claim_as_another(tmp_path))["run"] == "run_mine"


def test_who_may_not_replace_the_file_of_another_user_is_told_to_have_it_deleted(tmp_path: Path) -> None:
    (tmp_path / OWNER_NAME).write_text(json.dumps({"run": "run_theirs", "pid": 7, "host": "a", "since": "then"}))
    (tmp_path / OWNER_NAME).chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        told = claim_as_another(tmp_path)
    finally:
        tmp_path.chmod(0o755)
    advice = (
        r"run_theirs \(process 7 on a, since then\) was the last one .* if it is over, have its user delete that file"
    )
    assert re.search(rf"^cannot write rubato-owner.json: Permission denied. {advice}", told)


def test_two_who_replace_it_at_once_do_not_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / OWNER_NAME
    path.write_text("{}")
    opened, left = os.open, path.stat().st_ino

    def refuse(name: Any, flags: int, *more: Any, **named: Any) -> int:
        if name == path and flags & os.O_RDWR and path.exists() and path.stat().st_ino == left:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(name, flags, *more, **named)

    monkeypatch.setattr(claim.os, "open", refuse)
    start = threading.Barrier(4)

    def take(number: int) -> Claim | None:
        start.wait()
        with contextlib.suppress(UserError):
            return Claim(LocalFolder(tmp_path), f"run_{number}")
        return None

    with ThreadPoolExecutor(4) as pool:
        have = [one for one in pool.map(take, range(4)) if one is not None]
    assert len(have) == 1
    assert have[0].taken_by() == ""
    have[0].close()


def test_each_run_has_a_later_attempt(tmp_path: Path) -> None:
    save(LocalFolder(tmp_path), "3-10")
    with closing(Claim(LocalFolder(tmp_path), "run_1")) as one:
        assert one.attempt == 4


def test_where_locks_are_not_to_be_had_the_older_run_hears_of_the_newer_one(store: Folder) -> None:
    first = Claim(store, "run_old")
    assert (first.former, first.attempt, first.taken_by()) == ("", 1, "")
    second = Claim(store, "run_new")
    assert second.former.startswith(f"run_old (process {os.getpid()} on ")
    assert second.attempt == 2, "also where the first one has saved nothing yet"
    assert second.taken_by() == ""
    assert first.taken_by().startswith("run_new (process ")
    first.close()
    assert second.taken_by() == "", "it releases what is its own only"
    save(store, "2-5")
    second.close()
    assert not store.exists(OWNER_NAME)
    assert first.taken_by() == "a run that saved as attempt 2, after this one's 1,"


@pytest.mark.usefixtures("without_locks")
def test_a_file_system_without_locks_is_as_an_object_store(tmp_path: Path) -> None:
    first, second = Claim(LocalFolder(tmp_path), "run_1"), Claim(LocalFolder(tmp_path), "run_2")
    assert first.taken_by().startswith("run_2 ")
    assert second.taken_by() == ""


def test_a_lock_that_another_machine_does_not_see_is_found_out(tmp_path: Path) -> None:
    with closing(Claim(LocalFolder(tmp_path), "run_1")) as first:
        (tmp_path / OWNER_NAME).write_text(json.dumps({"run": "run_2", "host": "other", "pid": 7, "token": "x"}))
        assert first.taken_by().startswith("run_2 (process 7 on other")
        (tmp_path / OWNER_NAME).write_text('{"run": "ru')  # it is being written just now
        assert first.taken_by() == ""


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, removed = fcntl.flock, []

    def end_of_the_former(*args: Any) -> None:
        if not removed:
            removed.append((tmp_path / OWNER_NAME).unlink())
        lock(*args)

    monkeypatch.setattr(claim.fcntl, "flock", end_of_the_former)
    with closing(Claim(LocalFolder(tmp_path), "run_1")):
        assert json.loads((tmp_path / OWNER_NAME).read_bytes())["run"] == "run_1"
        with pytest.raises(UserError, match="run_1"):
            Claim(LocalFolder(tmp_path), "run_2")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match=r"cannot write .*taken"):
        Claim(LocalFolder(tmp_path / "taken"), "run_1")


def test_what_fails_while_it_is_taken_leaves_it_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> int:
        raise OSError("no answer")

    with monkeypatch.context() as broken:
        broken.setattr(claim, "next_attempt", fail)
        with pytest.raises(OSError, match="no answer"):
            Claim(LocalFolder(tmp_path), "run_1")
    Claim(LocalFolder(tmp_path), "run_2").close()
