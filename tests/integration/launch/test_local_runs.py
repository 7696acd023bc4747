"""Commands on a `rubato run`, from another terminal and after its end; no service is there."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rubato.cli.app import run as run_command
from rubato.launch.control import RUN_FILE
from rubato.launch.local import describe_kept, run_local
from rubato.launch.records import LocalRecord, read_record, run_folder
from rubato.wire.spec import spec_to_json
from rubato.wire.storage import parse_storage
from tests.integration.launch.toy_run import TOY, spec
from tests.waiting import wait_for

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rubato(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A command: exit code, output and errors. Where it asks a service, nothing answers."""
    monkeypatch.setenv("RUBATO_HOME", str(home))
    monkeypatch.setenv("RUBATO_URL", "http://127.0.0.1:1")
    monkeypatch.setattr("rubato.client.transport.RETRY_INITIAL_S", 0.01)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_a_run_that_lives_is_shown_and_led_as_a_job(background: Any, rubato: Call) -> None:
    one = background(spec(steps=10**6))
    run_id = one.run.run_id
    one.wait(3)
    code, out, _ = rubato("get", run_id)
    assert code == 0
    assert "running (training)" in out
    assert "1 of 1 wanted, 1 to 4 allowed" in out
    assert f"checkpoints  {one.run.folder / 'checkpoints'}" in out
    assert out.splitlines()[-1].split()[:3] == ["w1.1", "0", "active"]

    code, _, err = rubato("scale", run_id, "2", "--wait", "--timeout", "30")
    assert (code, "1 → 2 workers" in err) == (0, True), err
    assert rubato("scale", run_id, "9")[0] == 1
    assert rubato("wait", run_id, "--timeout", "0")[0] == 101
    code, _, err = rubato("delete", run_id)
    assert (code, "is alive" in err, one.run.folder.is_dir()) == (1, True, True)
    assert rubato("checkpoint", run_id)[0] == 0
    wait_for(lambda: "checkpoint.committed" in rubato("events", run_id)[1], "a checkpoint", 30.0)
    assert rubato("pause", run_id, "--wait")[0] == 0
    assert one.join().state == "paused"
    assert rubato("scale", run_id, "1")[0] == 102
    code, out, _ = rubato("get", run_id, "--json")
    told = json.loads(out)
    assert (code, told["status"], told["folder"]) == (0, "paused", str(one.run.folder))
    assert told["step"] >= 3
    assert (told["desired_workers"], told["scalings"]) == (2, 1), "as it was asked while it ran"


def test_what_a_run_has_done_is_told_after_its_end(
    home: Path, tmp_path: Path, rubato: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    where = parse_storage(str(kept))
    assert run_local(spec(steps=5), working_dir=tmp_path, checkpoint_dir=where, home=home, command=TOY) == 0
    run_id = capsys.readouterr().out.splitlines()[0]
    assert read_record(home, run_id).checkpoints == str(kept)  # where `rubato export` looks

    code, out, _ = rubato("get", run_id)
    assert code == 0
    assert f"digest       {'d' * 64}" in out
    assert "none any more; 1 was wanted, 1 to 4 allowed" in out
    assert rubato("wait", run_id)[:2] == (0, "succeeded\n")
    kinds = [line.split()[2] for line in rubato("events", run_id)[1].splitlines()]
    assert kinds[0] == "worker.started"
    assert kinds[-1] == "outcome"
    only = rubato("events", run_id, "--kind", "worker.ready", "--json")[1].splitlines()
    assert [json.loads(line)["kind"] for line in only] == ["worker.ready"]
    assert rubato("logs", run_id)[1].splitlines() == ["[w1.1] hello from 1.1"]
    assert rubato("logs", run_id, "-f", "--grep", "hello")[1].splitlines() == ["[w1.1] hello from 1.1"]
    assert rubato("logs", run_id, "--grep", "nothing of this")[1:] == ("", "No line matches.\n")
    chart = json.loads(rubato("metrics", run_id, "--json")[1])
    assert chart["loss"]["x"] == [1, 2, 3, 4, 5]
    assert "loss" in rubato("metrics", run_id, "-w")[1]


CRASH = (sys.executable, "-c", "print('boom'); raise SystemExit(3)")


@pytest.mark.parametrize(("command", "code", "status"), [(TOY, 0, "succeeded"), (CRASH, 100, "failed")])
def test_a_run_tells_programs_how_it_ended(
    tmp_path: Path, rubato: Call, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], code: int, status: str
) -> None:
    monkeypatch.setattr("rubato.launch.local.run_local", partial(run_local, command=command))
    (tmp_path / "toy.py").write_text("def train(run): ...\n")
    (tmp_path / "toy.json").write_text(json.dumps(spec_to_json(spec(steps=5))))
    done, out, err = rubato("run", str(tmp_path / "toy.json"), "--json")
    told = json.loads(out)
    assert (done, told["status"]) == (code, status)
    assert told["id"] in err.splitlines()
    assert told == json.loads(rubato("get", told["id"], "--json")[1])


def test_who_follows_a_run_hears_everything_and_then_its_end(background: Any, home: Path) -> None:
    one = background(spec(steps=10**6))
    one.wait(1)
    heard: list[dict[str, Any]] = []
    listener = threading.Thread(target=lambda: heard.extend(read_record(home, one.run.run_id).follow("events")))
    listener.start()
    wait_for(lambda: not one.ask(verb="status")["observed"]["joining"], "all training", 30.0)
    one.ask(verb="cancel")
    one.join()
    listener.join(30)
    assert not listener.is_alive()
    assert heard == read_record(home, one.run.run_id).lines("events")
    assert heard[-1]["state"] == "cancelled"


def test_a_run_that_was_killed_and_half_a_line_of_it(home: Path, rubato: Call) -> None:
    folder = run_folder(home, "run_6a0000000000aa")
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text(json.dumps({"name": "toy", "socket": "no-such-socket"}))
    row = {"step": 7, "values": {"loss": 0.5}}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + '\n{"step": 8, "val')
    code, out, _ = rubato("get", folder.name)
    assert code == 0
    assert "its process ended without a word" in out
    assert ["step", "7"] in [line.split() for line in out.splitlines()]
    assert rubato("wait", folder.name)[0] == 100


def test_what_no_run_can_do_is_said_without_asking_a_service(rubato: Call) -> None:
    code, _, err = rubato("explain", "run_6a0000000000aa")
    assert code == 1
    assert "which no service knows: get, events" in err
    code, _, err = rubato("logs", "run_6a0000000000aa")
    assert code == 102
    assert "there is no run run_6a0000000000aa in " in err


def test_a_record_of_an_older_release_is_read(home: Path) -> None:
    folder = run_folder(home, "run_6a0000000000aa")
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text("{}")
    record = read_record(home, folder.name)
    assert isinstance(record, LocalRecord)
    assert (record.name, record.checkpoints) == (folder.name, str(folder / "checkpoints"))


@pytest.mark.parametrize(
    ("state", "step", "text"),
    [
        ("cancelled", 30, "the checkpoint of step 30 is kept: run it again with --checkpoint-dir /kept to go on"),
        ("failed", None, "this run has saved no checkpoint in /kept"),
        ("succeeded", 46, "its last checkpoint is in /kept; `rubato export run_1` takes the model out"),
        ("succeeded", None, ""),
    ],
)
def test_what_is_left_of_a_run_is_said_at_its_end(state: str, step: int | None, text: str) -> None:
    said = describe_kept(state, "run_1", step, "/kept")
    assert said.startswith(text)
    assert bool(said) == bool(text)
