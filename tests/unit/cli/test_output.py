from __future__ import annotations

import json
import sys
from datetime import datetime

import pytest

from rubato.cli.live import Picture, _screen
from rubato.cli.output import fail, note, put, put_json, put_table, stdout_console
from tests.unit.cli.fake_service import FakeService, Rubato, event, job, log_with

TEXT = "[bold]a[/red] :rocket:"


def test_text_of_people_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    put_table([{"name": TEXT, "note": "[red]b"}], ("name", "note"))
    assert capsys.readouterr().out.splitlines()[1].rstrip() == f"{TEXT}  [red]b"
    stdout_console().print(_screen(Picture([TEXT], [TEXT]), datetime(2026, 1, 31), is_away=False))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()[:2]] == [TEXT, TEXT]


EVIL = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x9b2J"


def test_a_pipe_gets_no_control_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    put(EVIL)
    put_table([{"name": EVIL}], ("name",))
    note(EVIL)
    fail(EVIL)
    captured = capsys.readouterr()
    assert [line.strip() for line in captured.out.splitlines()] == ["red", "NAME", "red"]
    assert captured.err.splitlines() == ["red", "error: red"]


def test_a_terminal_gets_the_colours_of_a_line_and_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    put(EVIL)
    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n"
    put_table([{"name": EVIL}], ("name",))
    note(EVIL)
    captured = capsys.readouterr()
    for sequence in ("\x1b]", "\x1b[2J", "\x1b[31m", "\x9b"):
        assert sequence not in captured.out + captured.err


def test_json_is_what_it_was_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    put_json({"line": EVIL})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"line": EVIL}
    assert "\x1b" not in shown
    assert "\x9b" not in shown


def test_what_a_job_wrote_steers_no_terminal(service: FakeService, rubato: Rubato) -> None:
    evil = "\x1b]52;c;ZXZpbA==\x07\x1b[2Jbad\r"
    failure = {"failure_class": "user", "message": evil, "traceback": f"Traceback\n{evil}"}
    ended = job(status="failed", message=evil, failure=failure)
    line = {"id": "0:1", "time": "t", "stream": "stdout", "line": evil, "rank": 0, "worker_id": "w1"}
    service.on("GET", "/jobs/job_1", ended)
    service.on("GET", "/jobs/job_1/logs", {"items": [line], "next": "0:1"})
    service.on("GET", "/jobs/job_1/events", log_with([event(1, "worker.ready", evil)], ""))
    assert rubato("logs", "job_1").out == "[rank 0] bad\n"
    assert rubato("logs", "job_1", "--json").json["line"] == evil
    shown = rubato("get", "job_1")
    assert "bad\n" in shown.out
    told = rubato("events", "job_1")
    assert told.out.endswith("bad\n")
    for text in (shown.out, told.out, rubato("wait", "job_1").err):
        assert not {"\x1b", "\x07", "\r"} & set(text)
