from __future__ import annotations

import fcntl
import io
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rubato.home import Home, RunRecord
from tests.unit.cli.fake_service import FakeService, Reply, Rubato, job

LINE = {"id": "0:1", "time": "2026-01-02T03:04:05Z", "stream": "stdout", "line": "hello", "rank": 0}


def test_what_the_machine_refuses_is_told_without_a_traceback(
    service: FakeService, rubato: Rubato, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    done = rubato("init", str(tmp_path / "file"))
    assert done.code == 1
    assert f"{tmp_path / 'file'}: File exists; mend that, or name another path" in done.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    done = rubato("secret", "set", "KEY")
    assert done.code == 1
    assert "no text in UTF-8 (invalid start byte at byte 0)" in done.err
    monkeypatch.setitem(sys.modules, "rubato.checkpoint.export", None)
    monkeypatch.delattr("rubato.checkpoint.export", raising=False)  # where another test has imported it
    done = rubato("export", str(tmp_path))
    assert done.code == 1
    assert "pip install '.[train]' in the checkout" in done.err


@pytest.mark.parametrize("command", [("logs", "digits"), ("ps",)])
def test_a_reader_that_has_enough_is_no_error(service: FakeService, tmp_path: Path, command: tuple[str, ...]) -> None:
    service.on("GET", "/jobs", {"items": [job()], "next_cursor": None})
    service.on("GET", "/jobs/digits/logs", {"items": [LINE], "next": "0:1"})
    environment = {**os.environ, "RUBATO_URL": service.url, "RUBATO_TOKEN": "rbt_test", "RUBATO_HOME": str(tmp_path)}
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [sys.executable, "-m", "rubato.cli", *command],
        env=environment, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


def test_only_who_is_not_known_is_told_to_sign_in(service: FakeService, rubato: Rubato) -> None:
    for status, is_told in ((401, True), (403, False)):
        service.on("POST", "/jobs/digits/checkpoint", Reply({"detail": "You are a viewer."}, status=status))
        done = rubato("checkpoint", "digits")
        assert (done.code, "You are a viewer." in done.err) == (4, True)
        assert ("rubato login" in done.err) == is_told


def test_a_service_that_is_gone_is_started_by_hand_or_comes_back_by_its_keeper(rubato: Rubato, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"  # nobody's from here on
    home = Home(tmp_path / "home")
    home.create()
    home.write_record(RunRecord(url=url, ray_address="", ray_temp_dir="", started_at=""))
    assert "start the service with `rubato up`" in rubato("ps", "--url", url).err
    with home.lock_file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a keeper does
        assert "the keeper on this machine lives and starts the service again" in rubato("ps", "--url", url).err
        home.write_record(RunRecord(url="http://127.0.0.1:1", ray_address="", ray_temp_dir="", started_at=""))
        assert "start the service with `rubato up`" in rubato("ps", "--url", url).err
