"""What holds for every command: it has `--json`, equal to what the API says, and it stands in the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main

from rubato.cli.app import app
from rubato.cli.exits import ExitCode
from tests.unit.cli.fake_service import FakeService, Reply, Request, Rubato, job

REFERENCE = Path(__file__).parents[3] / "docs/reference/cli.md"
WITHOUT_JSON = {
    "completion": "prints a script",
}
INTERFACE = [
    "up",
    "down",
    "doctor",
    "login",
    "init",
    "submit",
    "run",
    "ps",
    "get",
    "explain",
    "logs",
    "metrics",
    "scale",
    "pause",
    "resume",
    "cancel",
    "checkpoint",
    "clone",
    "export",
    "nodes",
    "top",
    "wait",
    "completion",
    "checkpoints.ls",
    "checkpoints.download",
    "checkpoints.pin",
    "checkpoints.rm",
    "token.create",
    "token.ls",
    "token.revoke",
]


def commands() -> Iterator[tuple[str, Any]]:
    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if isinstance(command, typer.core.TyperGroup):
            for name, child in command.commands.items():
                yield from walk(child, (*path, name))
        else:
            yield ".".join(path), command

    return walk(typer.main.get_command(app), ())


def test_every_command_gives_json_or_has_a_reason_not_to() -> None:
    found = dict(commands())
    assert set(INTERFACE) <= set(found)
    silent = {
        name for name, command in found.items() if "--json" not in {opt for one in command.params for opt in one.opts}
    }
    assert silent == set(WITHOUT_JSON)


def test_what_lists_and_removes_is_called_alike_everywhere() -> None:
    shown = {name: command for name, command in commands() if not command.hidden}
    assert [name for name in shown if name.rpartition(".")[2] in ("list", "remove", "delete")] == ["delete"]
    hidden = {name for name, _ in commands()} - set(shown)
    assert hidden == {"node.list", "secret.list", "secret.delete", "webhook.list", "webhook.delete"}
    callbacks = {name: command.callback for name, command in commands()}
    for old in hidden:
        group, _, verb = old.partition(".")
        new = callbacks[f"{group}.{ {'list': 'ls', 'delete': 'rm'}[verb] }"]
        assert callbacks[old].__name__ == new.__name__, "scripts go on with the names of before"


def test_everything_that_a_command_takes_says_what_it_is() -> None:
    silent = [f"{name} {one.name}" for name, command in commands() for one in command.params if not one.help]
    assert silent == []


def test_the_reference_writes_arguments_as_the_help_does() -> None:
    page = REFERENCE.read_text()
    for line in (
        "| `PROJECT` | Name of a project. |",
        "| `WORKER` | Id of a worker (w1.2), or its present rank. |",
        "| `--limit, -n N` | At most so many, newest first. Default: `50`. |",
        "| `--role user\\|cluster\\|scraper` | cluster: an agent's; scraper: of Prometheus. Default: `user`. |",
        "| `--watch, -w / --once` | Again every 2 seconds, until Ctrl-C. Default: on a terminal. |",
    ):
        assert line in page


def test_every_exit_code_is_in_the_reference() -> None:
    page = REFERENCE.read_text()
    for code in ExitCode:
        assert f"| `{code.value}` | {code.meaning} |" in page


NODE = {"node_id": "n1", "hostname": "a", "address": "10.0.0.1", "state": "ready", "workers_left": 0, "jobs": []}
CHECKPOINT = {"id": "ckpt_1", "attempt": 1, "step": 2, "files": [], "pinned": True}
ACTION = {"worker_id": "w1", "kind": "drain", "state": "done", "message": "left"}
NAMED = {"name": "x", "user": "ada", "role": "editor"}
ENTRY = {"id": 1, "time": "t", "actor": "ada", "action": "job.submitted", "job_id": "job_1", "detail": {}}
CHART = {"loss": {"x": [1], "y": [0.5]}}
LINE = {"id": "1", "time": "t", "stream": "stdout", "line": "hello", "rank": 0}
EXPLAINED = {"job_id": "job_1", "name": "digits", "status": "running", "because": "it has what it wants"}
# Command line, method and path, the reply, and which part of it is printed.
CASES: list[tuple[str, str, Any, str | None]] = [
    ("ps", "GET /jobs", {"items": [job()]}, "items"),
    ("get job_1", "GET /jobs/job_1", job(), None),
    ("explain job_1", "GET /jobs/job_1/explain", EXPLAINED, None),
    ("metrics job_1", "GET /jobs/job_1/metrics/chart", {"series": CHART}, "series"),
    ("pause job_1", "POST /jobs/job_1/pause", job(status="pausing"), None),
    ("pause job_1 --force", "POST /jobs/job_1/pause", job(status="pausing"), None),
    ("resume job_1", "POST /jobs/job_1/resume", job(status="queued"), None),
    ("cancel job_1", "POST /jobs/job_1/cancel", job(status="stopping"), None),
    ("checkpoint job_1", "POST /jobs/job_1/checkpoint", job(), None),
    ("update job_1 --priority 7", "PATCH /jobs/job_1", job(), None),
    ("clone job_1", "POST /jobs/job_1/clone", job(id="job_2"), None),
    ("wait job_1 --for running", "GET /jobs/job_1", job(), None),
    ("checkpoints ls job_1", "GET /jobs/job_1/checkpoints", {"items": [CHECKPOINT]}, "items"),
    ("checkpoints pin ckpt_1", "PATCH /checkpoints/ckpt_1", CHECKPOINT, None),
    ("pin ckpt_1", "PATCH /checkpoints/ckpt_1", CHECKPOINT, None),
    ("nodes", "GET /clusters/default/nodes", {"items": [NODE]}, "items"),
    ("node ls", "GET /clusters/default/nodes", {"items": [NODE]}, "items"),
    ("worker ls job_1", "GET /jobs/job_1/workers", {"items": [{"worker_id": "w1", "rank": 0}]}, "items"),
    ("worker drain job_1 w1", "POST /jobs/job_1/workers/w1/drain", ACTION, None),
    ("worker kill job_1 w1", "POST /jobs/job_1/workers/w1/kill", ACTION, None),
    ("token create x", "POST /tokens", {"id": "tok_1", "token": "rbt_1"}, None),
    ("token ls", "GET /tokens", {"items": [{"id": "tok_1"}]}, "items"),
    ("project add x", "POST /projects", NAMED, None),
    ("project set x --description y", "PATCH /projects/x", NAMED, None),
    ("project ls", "GET /projects", {"items": [NAMED]}, "items"),
    ("project members x", "GET /projects/x", {"members": [NAMED]}, "members"),
    ("project grant x ada editor", "PUT /projects/x/members/ada", NAMED, None),
    ("user add ada", "POST /users", NAMED, None),
    ("audit", "GET /audit", {"items": [ENTRY]}, "items"),
    ("user ls", "GET /users", {"items": [NAMED]}, "items"),
    ("user set ada --admin", "PATCH /users/ada", NAMED, None),
    ("user disable ada", "PATCH /users/ada", NAMED, None),
    ("user enable ada", "PATCH /users/ada", NAMED, None),
    ("webhook add x https://a.example", "POST /projects/default/webhooks", NAMED, None),
    ("webhook ls", "GET /projects/default/webhooks", {"items": [NAMED]}, "items"),
    ("webhook deliveries x", "GET /projects/default/webhooks/x/deliveries", {"items": [NAMED]}, "items"),
    ("secret ls", "GET /projects/default/secrets", {"items": [NAMED]}, "items"),
    ("logs job_1", "GET /jobs/job_1/logs", {"items": [LINE], "has_more": False}, None),
]


@pytest.mark.parametrize(("line", "asked", "reply", "part"), CASES, ids=[case[0].partition(" -")[0] for case in CASES])
def test_json_is_what_the_api_says(
    service: FakeService, rubato: Rubato, line: str, asked: str, reply: Any, part: str | None
) -> None:
    method, _, path = asked.partition(" ")
    service.on("GET", "/jobs/job_1", job())
    service.on(method, path, reply)
    done = rubato(*line.split(), "--json")
    assert done.code == 0, done.err
    expected = LINE if line.startswith("logs") else reply if part is None else reply[part]
    assert done.json == expected


def test_a_name_that_is_nearly_right_is_corrected(service: FakeService, rubato: Rubato) -> None:
    def missing(request: Request) -> Reply:
        name = request.path.rpartition("/")[2]
        return Reply({"detail": f"There is no job '{name}'.", "code": "not_found"}, status=404)

    service.on("GET", "/jobs", {"items": [job(), job(name="digest"), job(name="other")]})
    service.on("GET", "/jobs/*", missing)
    done = rubato("get", "digts")
    assert done.code == ExitCode.NOT_FOUND
    assert "There is no job 'digts'. Did you mean digits or digest?" in done.err
    assert "Did you mean" not in rubato("get", "zebra").err
    assert "Did you mean 'submit'" in rubato("sbmit").err
