from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.fake_service import FakeService, Reply, Rubato

ROW = {"name": "TOKEN", "updated_at": "t", "updated_by": "ada"}


@pytest.mark.parametrize("typed", ["the value\n", "the value\r\n", "the value"])
def test_the_value_comes_from_stdin(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    service.on("PUT", "/projects/vision/secrets/TOKEN", Reply(ROW, status=201))
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    done = rubato("secret", "set", "TOKEN", "--project", "vision")
    assert (done.code, done.out) == (0, "")
    assert service.requests[-1].json == {"value": "the value"}
    assert "the value" not in done.err


def test_lines_within_a_value_stay(service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch) -> None:
    service.on("PUT", "/projects/default/secrets/KEY", Reply(ROW, status=201))
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n\n"))
    assert rubato("secret", "set", "KEY").code == 0
    assert service.requests[-1].json == {"value": "one\ntwo\n"}


def test_a_value_as_an_argument_or_none_is_refused(
    service: FakeService, rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rubato("secret", "set", "TOKEN", "the-value").code == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    done = rubato("secret", "set", "TOKEN")
    assert done.code == 1
    assert "stdin is empty" in done.err
    assert service.requests == []


def test_secrets_are_listed_and_deleted(service: FakeService, rubato: Rubato) -> None:
    service.on("GET", "/projects/default/secrets", {"items": [ROW], "next_cursor": None})
    assert rubato("secret", "list").out.splitlines()[1].split() == ["TOKEN", "t", "ada"]
    assert rubato("secret", "list", "--json").json == [ROW]
    service.on("DELETE", "/projects/default/secrets/TOKEN", Reply(status=204, content=b""))
    assert rubato("secret", "delete", "TOKEN").code == 0
    assert rubato("secret", "delete", "NOPE").code == 102


def test_at_a_terminal_it_is_asked_for_twice_and_not_shown(tmp_path: Path, service: FakeService) -> None:
    service.on("PUT", "/projects/default/secrets/TOKEN", Reply(ROW, status=201))
    environment = {**os.environ, "RUBATO_URL": service.url, "RUBATO_TOKEN": "rbt_test", "RUBATO_HOME": str(tmp_path)}
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rubato.cli", "secret", "set", "TOKEN"]
    with subprocess.Popen(
        command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        os.close(theirs)
        shown = read_until(ours, b"Value of TOKEN: ")
        os.write(ours, b"the value\n")
        shown += read_until(ours, b": ")
        os.write(ours, b"the value\n")
        shown += read_until(ours, b"is set in default")
        assert process.wait() == 0
    os.close(ours)
    assert service.requests[-1].json == {"value": "the value"}
    assert b"the value" not in shown


def read_until(terminal: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 1024)
    return seen
