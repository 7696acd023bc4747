from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rubato.errors import UserError
from rubato.launch.control import RUN_FILE, ControlServer, ask_run


def answer(request: dict[str, object]) -> dict[str, object]:
    if request["verb"] == "refuse":
        raise UserError("no, because")
    return {"echo": request["verb"]}


@pytest.fixture(params=["short", "x" * 120])
def run_dir(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = tmp_path / request.param
    folder.mkdir()
    server = ControlServer(folder, answer)
    (folder / RUN_FILE).write_text(json.dumps({"socket": str(server.path)}))
    yield folder
    server.close()
    assert not server.path.exists()
    assert server.path.parent == folder or not server.path.parent.exists()


def test_a_question_is_answered_wherever_the_socket_had_to_go(run_dir: Path) -> None:
    assert ask_run(run_dir, {"verb": "hello"}) == {"echo": "hello"}
    assert ask_run(run_dir, {"verb": "again"}) == {"echo": "again"}


def test_a_refusal_says_why(run_dir: Path) -> None:
    with pytest.raises(UserError, match="no, because"):
        ask_run(run_dir, {"verb": "refuse"})
    with pytest.raises(UserError, match="does not hold"):
        ask_run(run_dir, {"no": "verb"})


def test_a_run_that_never_was_or_has_ended(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ask_run(tmp_path, {"verb": "hello"})
    server = ControlServer(tmp_path, answer)
    (tmp_path / RUN_FILE).write_text(json.dumps({"socket": str(server.path)}))
    server.close()
    with pytest.raises((FileNotFoundError, ConnectionError)):
        ask_run(tmp_path, {"verb": "hello"})


@pytest.mark.parametrize("line", ['{"verb": "scale", "workers": Infinity}', "[" * 60_000])
def test_no_request_ends_the_conversation(tmp_path: Path, line: str) -> None:
    def scale(request: dict[str, object]) -> dict[str, object]:
        return {"workers": int(request["workers"])}  # type: ignore[call-overload]

    server = ControlServer(tmp_path, scale)
    (tmp_path / RUN_FILE).write_text(json.dumps({"socket": str(server.path)}))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(30)
        connection.connect(str(server.path))
        connection.sendall(line.encode() + b"\n")
        assert b"does not hold" in connection.recv(1 << 16)
    assert ask_run(tmp_path, {"verb": "scale", "workers": 3}) == {"workers": 3}
    server.close()
