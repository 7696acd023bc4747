from __future__ import annotations

from typing import Any

import pytest
import typer.main

from rubato.cli.app import PANELS, app
from rubato.cli.command_list import OTHER_WORDS
from tests.unit.cli.fake_service import FakeService, Rubato


def test_the_help_lists_every_command_once_under_its_head_in_one_line(
    rubato: Rubato, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = rubato("--help").out.splitlines()
    assert [line.removesuffix(":") for line in lines if line.endswith(":")][1:] == list(PANELS)
    listed = [line.split()[0] for line in lines[lines.index("Jobs:") :] if line.startswith("  ")]
    command: Any = typer.main.get_command(app)
    assert sorted(listed) == sorted(command.commands)
    assert [line for line in lines if "..." in line.removeprefix("Usage: rubato [OPTIONS] COMMAND [ARGS]...")] == []
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scale digits abc", "'WORKERS': must be a whole number, got 'abc'"),
        ("scale digits 0", "'WORKERS': must be at least 1, got 0"),
        ("ps --limit 2.5", "must be a whole number, got '2.5'"),
        ("update digits --priority 101", "must be at most 100, got 101"),
        ("plan train.py --gbit fast", "must be a number, got 'fast'"),
        ("token create x --role king", "'king' is not one of "),
        ("init --template imags", "'imags' is not one of plain, images, text, stream; did you mean 'images'?"),
        ("completion tcsh", ": 'tcsh' is not one of bash, zsh, fish, powershell"),
        ("status", "No such command 'status'. Did you mean 'get'?"),
        ("resmue digits", "No such command 'resmue'. Did you mean 'resume'"),
        ("zebra", "No such command 'zebra'. See `rubato --help`."),
        ("--zebra", "No such option"),
    ],
)
def test_what_no_command_can_be_made_of_is_told_with_what_to_do(
    service: FakeService, rubato: Rubato, line: str, message: str
) -> None:
    done = rubato(*line.split())
    assert (done.code, done.out, service.requests) == (2, "", [])
    assert message in " ".join(done.err.split())


def test_words_of_other_tools_lead_to_commands_that_there_are() -> None:
    command: Any = typer.main.get_command(app)
    assert set(OTHER_WORDS.values()) <= set(command.commands)
    assert not set(OTHER_WORDS) & set(command.commands)
