"""What a shell completes, and what is said of jobs by name."""

from __future__ import annotations

from typing import Any

import pytest
import typer.main

from rubato.cli.app import app
from rubato.cli.options import ENDED, RESUMABLE, UNFINISHED
from tests.unit.cli.fake_service import FakeService, Rubato, job


def complete(line: str) -> list[str]:
    """What a shell would offer for the job of a command."""
    command: Any = typer.main.get_command(app)
    for word in line.split():
        command = command.commands[word]
    (argument,) = (one for one in command.params if one.name == "job")
    context = command.context_class(command)
    return [one.value for one in argument.shell_complete(context, "dig")]


@pytest.mark.parametrize(
    ("line", "statuses"),
    [
        ("scale", UNFINISHED),
        ("pause", UNFINISHED),
        ("update", UNFINISHED),
        ("worker kill", UNFINISHED),
        ("resume", RESUMABLE),
        ("delete", ENDED),
        ("get", ()),
    ],
)
def test_a_command_completes_the_jobs_that_it_can_act_on(
    service: FakeService, rubato: Rubato, line: str, statuses: tuple[str, ...]
) -> None:
    service.on("GET", "/jobs", {"items": [job(), job(name="old-digits")]})
    assert complete(line) == ["digits"]
    query = service.requests[-1].query
    assert (query["q"], query.get("status", "")) == ("dig", ",".join(statuses))
